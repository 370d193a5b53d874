//! `cairn peer`.

use cairn_api as api;
use cairn_api::client::Client;

use super::volume::segment;
use crate::arguments::Peer;
use crate::exit::Failure;
use crate::output::{Output, ago, note_line, table};

/// Runs a command on peers.
pub fn run(command: Peer, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Peer::Invite { volume, expires, advertise } => {
            let expires_ms = expires.map(|expires| expires.0.as_millis().try_into().unwrap_or(u64::MAX));
            let request = api::Invite { volume, expires_ms, advertise, name: None };
            let invitation: api::Invitation = client.post("/v1/peers/invite", &request)?;
            if !output.json && !output.quiet {
                let volume = invitation.volume.as_deref().unwrap_or("VOLUME");
                note_line(&format!(
                    "this word is a secret, good once, and expires {}; on the destination:\n\
                     cairn mirror create {volume} TOKEN --every 15m",
                    ago(invitation.expires_ms)
                ));
            }
            output.show(&invitation, |invitation| invitation.token.clone());
        }
        Peer::List => {
            let peers: Vec<api::Peer> = client.get("/v1/peers")?;
            output.show(&peers, |peers| list(peers));
        }
        Peer::Revoke { id } => {
            let peers: Vec<api::Peer> = client.get("/v1/peers")?;
            // One that is not there is told by the server, and nobody is asked about it.
            if peers.iter().any(|peer| peer.id == id) {
                output.confirm(&format!(
                    "this ends the access of peer {id}: its mirrors get no more updates"
                ))?;
            }
            let () = client.delete(&format!("/v1/peers/{}", segment(&id)?))?;
            output.tell(&serde_json::json!({ "revoked": id }), |_| format!("revoked {id}"));
        }
    }
    Ok(())
}

fn list(peers: &[api::Peer]) -> String {
    let row = |peer: &api::Peer| {
        let (state, when) = match peer.state {
            api::PeerState::Invited => ("invited", format!("expires {}", ago(peer.expires_ms))),
            api::PeerState::Expired => ("expired", ago(peer.expires_ms)),
            api::PeerState::Pinned => ("pinned", ago(peer.pinned_ms.unwrap_or(peer.invited_ms))),
        };
        let fingerprint =
            peer.fingerprint.as_deref().map_or("-", |digits| digits.get(..16).unwrap_or(digits));
        let volume = peer.volume.clone().unwrap_or_else(|| "all".to_owned());
        [peer.id.clone(), state.to_owned(), when, volume, fingerprint.to_owned()]
    };
    table(["ID", "STATE", "WHEN", "VOLUME", "CERTIFICATE"], peers.iter().map(row))
}
