//! A conversation with one destination: its requests, one after the other, and their answers.

use std::io::{Read, Write};
use std::sync::Arc;

use cairn_format::Role;
use cairn_stream::Work;
use cairn_volume::{KeepsFresh, Volume};

use super::behind::whole_lag;
use super::{Heard, Shows, Source, answer};
use crate::copies;
use crate::error::{MirrorError, Refusal};
use crate::message::{Answer, Await, PROTOCOL_VERSION, Request, StatusOf, Update};
use crate::offer::SourceVolumes;
use crate::relationship::{PeerName, Relationship, name_in, prefix};
use crate::relay::refuse_circle;
use crate::wire::{Frame, read_frame};

impl Source {
    /// Answers one destination, which the caller has authenticated as `peer`, until it hangs up.
    ///
    /// # Errors
    /// The reason why the conversation ended early. The mirror is unchanged then, or the
    /// destination has the image and reports that next time.
    pub fn serve_session<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        volumes: &dyn SourceVolumes,
        peer: &PeerName,
        work: &mut Work<'_>,
    ) -> Result<(), MirrorError> {
        let mut greeted = false;
        let mut conversation = Conversation { source: self, volumes, peer, fresh: None, shows: None };
        while let Some(frame) = read_frame(stream)? {
            let request = next_request(&frame, greeted)?;
            greeted = true;
            let reply = match request {
                Request::Hello { version } => {
                    answer(stream, &Answer::Hello { version: PROTOCOL_VERSION })?;
                    if version != PROTOCOL_VERSION {
                        return Err(MirrorError::Version { theirs: version, ours: PROTOCOL_VERSION });
                    }
                    continue;
                }
                Request::Update(update) => {
                    conversation.update(stream, &update, work)?;
                    continue;
                }
                Request::Status(asked) => conversation.status(stream, &asked)?,
                request => conversation.reply(request)?,
            };
            answer(stream, &reply.unwrap_or_else(Answer::Refused))?;
        }
        Ok(())
    }
}

fn next_request(frame: &Frame, greeted: bool) -> Result<Request, MirrorError> {
    match (Request::parse(frame)?, greeted) {
        (request @ Request::Hello { .. }, _) | (request, true) => Ok(request),
        (_, false) => Err(MirrorError::Protocol("it does not say hello")),
    }
}

/// The state of a conversation.
struct Conversation<'a> {
    source: &'a Source,
    volumes: &'a dyn SourceVolumes,
    peer: &'a PeerName,
    /// Writes between the steps of a mirror that follows continuously stay in memory during its
    /// conversation.
    fresh: Option<KeepsFresh>,
    shows: Option<Shows>,
}

impl Conversation<'_> {
    /// Sends an image.
    fn update<S: Read + Write + ?Sized>(
        &mut self,
        stream: &mut S,
        update: &Update,
        work: &mut Work<'_>,
    ) -> Result<(), MirrorError> {
        let (source, volumes, peer) = (self.source, self.volumes, self.peer);
        let found = volumes.volume(&update.volume, peer);
        let volume = match found.and_then(|it| refuse_circle(it, volumes, update, peer)) {
            Ok(volume) => volume,
            Err(refusal) => return answer(stream, &Answer::Refused(refusal)),
        };
        self.shows = source.update(stream, &volume, update, peer, volumes, work)?;
        if let Some(former) = volumes.former(&update.volume, peer, update.relationship) {
            source.forget_former(&volume, peer, &former, update.relationship)?;
        }
        Ok(())
    }

    fn status<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        asked: &StatusOf,
    ) -> Result<Result<Answer, Refusal>, MirrorError> {
        let volume = match self.volumes.volume(&asked.volume, self.peer) {
            Ok(volume) => volume,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let status = self.source.status(stream, &volume, asked, self.peer)?;
        Ok(status.map(|status| Answer::Status(whole_lag(status, self.volumes, (&volume, &asked.volume)))))
    }

    /// The answer to a request that takes no more of the stream.
    fn reply(&mut self, request: Request) -> Result<Result<Answer, Refusal>, MirrorError> {
        let (source, volumes, peer) = (self.source, self.volumes, self.peer);
        Ok(match request {
            Request::ProvisionInfo { volume } => volumes.volume(&volume, peer).map(|volume| {
                let status = volume.status();
                Answer::Provision {
                    id: status.id,
                    blocks: status.blocks,
                    used: status.used,
                    snapshots: status.snapshots,
                }
            }),
            Request::Await(wish) => {
                volumes.volume(&wish.volume, peer).and_then(|volume| self.wait(&volume, &wish))
            }
            Request::Copies(asked) => volumes
                .volume(&asked.volume, peer)
                .and_then(|volume| copies::answer(&volume, &asked))
                .map(Answer::Copies),
            Request::Standing(asked) => volumes
                .volume(&asked.volume, peer)
                .and_then(|volume| source.standing(&volume, &asked, peer, volumes))
                .map(Answer::Standing),
            Request::HandOver(wish) => volumes
                .volume(&wish.volume, peer)
                .and_then(|volume| source.hand_over(&volume, &wish, peer, volumes))
                .map(|target| Answer::HandedOver { target }),
            Request::HandOverTogether(wish) => {
                let targets = source.hand_over_together(&wish, peer, volumes);
                targets.map(|targets| Answer::HandedOverTogether { targets })
            }
            Request::Farewell { volume, relationship } => self.farewell(&volume, relationship),
            Request::Access { volume } => access(volumes, &volume, peer),
            Request::Hello { .. }
            | Request::Update(_)
            | Request::Status(_)
            | Request::Ack { .. }
            | Request::Nack { .. }
            | Request::Began(_)
            | Request::Claims(_) => {
                return Err(MirrorError::Protocol("it answers what was not asked"));
            }
        })
    }

    /// Waits until there is an update for a mirror that follows continuously.
    fn wait(&mut self, volume: &Arc<Volume>, wish: &Await) -> Result<Answer, Refusal> {
        let (source, volumes) = (self.source, self.volumes);
        if !self.fresh.as_ref().is_some_and(|kept| Arc::ptr_eq(kept.volume(), volume)) {
            self.fresh = (volume.status_role() == Role::Normal).then(|| volume.keep_fresh());
        }
        let prefix = prefix(self.peer, wish.relationship);
        if source.followers.lock().contains_key(&(volume.id(), prefix.clone())) {
            source.hear(volume, &prefix, &Heard::default());
        }
        let (due, status) = source.awaited(volume, wish, self.shows, self.peer, volumes)?;
        Ok(Answer::Awaited { due, status: whole_lag(status, volumes, (volume, &wish.volume)) })
    }

    fn farewell(&self, volume: &str, relationship: Relationship) -> Result<Answer, Refusal> {
        let found = self.volumes.volume(volume, self.peer)?;
        let name = name_in(&prefix(self.peer, relationship)).to_owned();
        self.volumes.check_room(volume)?;
        self.source.forget(&found, &name).map_err(|error| Refusal::from(&error))?;
        Ok(Answer::Farewell)
    }
}

/// The answer to a destination that requests a volume.
fn access(volumes: &dyn SourceVolumes, volume: &str, peer: &PeerName) -> Result<Answer, Refusal> {
    volumes.volume(volume, peer)?;
    volumes.access(volume).map(Answer::Access)
}
