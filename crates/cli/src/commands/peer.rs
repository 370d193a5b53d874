//! `cairn peer`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::volume::segment;
use crate::arguments::Peer;
use crate::exit::Failure;
use crate::image_names::clock;
use crate::output::{Output, ago, fields, note_line, table};

/// Runs a command on peers.
pub fn run(command: Peer, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Peer::Invite { name, volume, expires, advertise } => {
            let expires_ms = expires.map(|expires| expires.0.as_millis().try_into().unwrap_or(u64::MAX));
            let request = api::Invite { volume, expires_ms, advertise, name };
            let invitation: api::Invitation = client.post("/v1/peers/invite", &request)?;
            if !output.json && !output.quiet {
                let volume = invitation.volume.as_deref().unwrap_or("VOLUME");
                note_line(&format!(
                    "this token is a secret for one server, until {}; on the destination, with the token in a file:\n\
                     cairn mirror create {volume} @FILE --every 15m",
                    clock(invitation.expires_ms)
                ));
            }
            output.show(&invitation, |invitation| invitation.token.clone());
        }
        Peer::List => {
            let peers: Vec<api::Peer> = client.get("/v1/peers")?;
            output.show(&peers, |peers| list(peers));
        }
        Peer::Show { id } => {
            let peers = named(&id, client)?;
            output.show(&peers, |peers| peers.iter().map(show).collect::<Vec<_>>().join("\n\n"));
        }
        Peer::Rename { id, new_name } => {
            let peers = named(&id, client)?;
            let Some(peer) = peers.first() else { return Ok(()) };
            let path = format!("/v1/peers/{}", segment(&peer.id)?);
            let renamed: api::Peer = client.patch(&path, &api::RenamePeer { name: new_name })?;
            output.tell(&renamed, |renamed| format!("{id} is {} now", renamed.name));
        }
        Peer::Revoke { id } => {
            let peers = named(&id, client)?;
            let volumes: Vec<&str> = peers.iter().filter_map(|peer| peer.volume.as_deref()).collect();
            let volumes = match volumes[..] {
                [] => String::new(),
                _ => format!(" to {}", volumes.join(", ")),
            };
            output.confirm(&format!(
                "this ends the access of peer {id}{volumes}: its mirrors get no more updates"
            ))?;
            for peer in &peers {
                let () = client.delete(&format!("/v1/peers/{}", segment(&peer.id)?))?;
            }
            output.tell(&serde_json::json!({ "revoked": id }), |_| format!("revoked {id}"));
        }
    }
    Ok(())
}

/// The peers of that id, or else all of that name: a server has an entry for each of its mirrors.
fn named(id: &str, client: &Client) -> Result<Vec<api::Peer>, Failure> {
    let peers: Vec<api::Peer> = client.get("/v1/peers")?;
    if let Some(peer) = peers.iter().find(|peer| peer.id == id) {
        return Ok(vec![peer.clone()]);
    }
    let found: Vec<api::Peer> = peers.into_iter().filter(|peer| peer.name == id).collect();
    if found.is_empty() {
        let next = "list what exists with `cairn peer list`";
        return Err(Failure::new(ErrorKind::NotFound, format!("there is no peer `{id}`"), next));
    }
    Ok(found)
}

fn state(peer: &api::Peer) -> (&'static str, String) {
    match peer.state {
        api::PeerState::Invited => ("invited", format!("expires {}", ago(peer.expires_ms))),
        api::PeerState::Expired => ("expired", ago(peer.expires_ms)),
        api::PeerState::Pinned => ("pinned", ago(peer.pinned_ms.unwrap_or(peer.invited_ms))),
    }
}

fn show(peer: &api::Peer) -> String {
    let (state, when) = state(peer);
    fields([
        ["name".to_owned(), peer.name.clone()],
        ["id".to_owned(), peer.id.clone()],
        ["state".to_owned(), format!("{state}, {when}")],
        ["volume".to_owned(), peer.volume.clone().unwrap_or_else(|| "all".to_owned())],
        ["certificate".to_owned(), peer.fingerprint.clone().unwrap_or_else(|| "-".to_owned())],
    ])
}

fn list(peers: &[api::Peer]) -> String {
    let row = |peer: &api::Peer| {
        let (state, when) = state(peer);
        let volume = peer.volume.clone().unwrap_or_else(|| "all".to_owned());
        [peer.name.clone(), state.to_owned(), when, volume, peer.id.clone()]
    };
    table(["NAME", "STATE", "WHEN", "VOLUME", "ID"], peers.iter().map(row))
}
