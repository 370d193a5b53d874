//! The destination's end of a conversation.

use std::io::{Read, Write};

use cairn_base::{FileId, VolumeId};
use cairn_volume::Volume;

use crate::access::LunAccess;
use crate::error::MirrorError;
use crate::lag::SourceStatus;
use crate::message::{Answer, Began, PROTOCOL_VERSION, Request, StatusOf};
use crate::relationship::Relationship;
use crate::wire::{read_frame, write_frame};

/// Requirements of a source's baseline for its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provision {
    /// The volume; the destination gets the same id.
    pub id: VolumeId,
    /// Its block space, in blocks; the destination's is at least as long.
    pub blocks: u64,
    /// Blocks in use: the size of a baseline.
    pub used: u64,
    /// How many snapshots.
    pub snapshots: u64,
}

/// A conversation with a source after the hello.
pub struct Client<'a, S: Read + Write + ?Sized> {
    pub(crate) stream: &'a mut S,
}

impl<'a, S: Read + Write + ?Sized> Client<'a, S> {
    /// Says hello on a connected and authenticated stream.
    ///
    /// # Errors
    /// [`MirrorError::Version`] with both versions when they differ.
    pub fn hello(stream: &'a mut S) -> Result<Self, MirrorError> {
        let mut client = Self { stream };
        match client.ask(&Request::Hello { version: PROTOCOL_VERSION })? {
            Answer::Hello { version: PROTOCOL_VERSION } => Ok(client),
            Answer::Hello { version } => {
                Err(MirrorError::Version { theirs: version, ours: PROTOCOL_VERSION })
            }
            _ => Err(MirrorError::Protocol("it does not answer a hello")),
        }
    }

    /// Asks for the requirements on a destination of `volume`.
    pub fn provision_info(&mut self, volume: &str) -> Result<Provision, MirrorError> {
        match self.ask(&Request::ProvisionInfo { volume: volume.to_owned() })? {
            Answer::Provision { id, blocks, used, snapshots } => {
                Ok(Provision { id, blocks, used, snapshots })
            }
            answer => Err(unexpected(answer)),
        }
    }

    /// Tells the source that the mirror is permanently gone: the source discards the state that it
    /// keeps for it.
    ///
    /// # Errors
    /// Also of a source that does not know this message: it hangs up.
    pub fn farewell(&mut self, volume: &str, relationship: Relationship) -> Result<(), MirrorError> {
        match self.ask(&Request::Farewell { volume: volume.to_owned(), relationship })? {
            Answer::Farewell => Ok(()),
            answer => Err(unexpected(answer)),
        }
    }

    /// Requests the access rules of a volume's LUNs. LUNs without rules are not listed.
    ///
    /// # Errors
    /// Also of a source that does not know this message: it hangs up.
    pub fn access(&mut self, volume: &str) -> Result<Vec<LunAccess>, MirrorError> {
        match self.ask(&Request::Access { volume: volume.to_owned() })? {
            Answer::Access(luns) => Ok(luns),
            answer => Err(unexpected(answer)),
        }
    }

    /// Asks for the status; `here` answers the source's questions that come first.
    pub(crate) fn status(&mut self, asked: StatusOf, here: &Volume) -> Result<SourceStatus, MirrorError> {
        let mut answer = self.ask(&Request::Status(asked))?;
        if let Answer::AskBegan { accumulating, in_flight } = answer {
            answer = self.ask(&began(here, accumulating, in_flight)?)?;
        }
        match answer {
            Answer::Status(status) => Ok(status),
            answer => Err(unexpected(answer)),
        }
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Result<Answer, MirrorError> {
        self.tell(request)?;
        self.hear()
    }

    /// Reads the answer to a request.
    pub(crate) fn hear(&mut self) -> Result<Answer, MirrorError> {
        let gone = MirrorError::from(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        Answer::parse(&read_frame(self.stream)?.ok_or(gone)?)
    }

    pub(crate) fn tell(&mut self, request: &Request) -> Result<(), MirrorError> {
        let (kind, body) = request.encode();
        write_frame(self.stream, kind, &body)
    }
}

/// Which of the source's maps began at the image that is shown here.
pub(crate) fn began(
    here: &Volume,
    accumulating: FileId,
    in_flight: Option<FileId>,
) -> Result<Request, MirrorError> {
    let mut file = None;
    // Both sides have given the same numbers to files since they parted.
    let maps = [Some(accumulating), in_flight].into_iter().flatten().filter(|_| here.own_head().is_none());
    for map in maps {
        if file.is_none() && here.shows_beginning_of(map)? {
            file = Some(map);
        }
    }
    let status = here.status();
    Ok(Request::Began(Began { file, generation: status.generation, changed: status.changed }))
}

pub(crate) fn unexpected(answer: Answer) -> MirrorError {
    match answer {
        Answer::Refused(refusal) => MirrorError::Refused(refusal),
        _ => MirrorError::Protocol("its answer is to another question"),
    }
}
