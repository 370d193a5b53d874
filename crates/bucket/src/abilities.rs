//! The abilities of a store, as a probe found them, and the uses that they allow.

use serde::{Deserialize, Serialize};

/// Something that a store may or may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ability {
    /// Shows an object and its bytes at once after a put, and no longer after a delete.
    ReadsAfterWrite,
    /// Refuses a put of a name that is taken.
    CreateOnly,
    /// Lets one of two puts at the same time win, and tells the other.
    CreateOnlyRace,
    /// Keeps the nonce of the creator with the object.
    KeepsNonce,
    /// Puts objects in pieces, unseen until they are finished.
    Pieces,
    /// Pieces may differ in length.
    UnequalPieces,
    /// Refuses to finish an upload whose name is taken.
    CreateOnlyPieces,
    /// Lists the pieces of an upload.
    ListsPieces,
    /// Lists uploads by the beginning of their names.
    ListsUploads,
    /// Reads a range.
    RangedGet,
    /// Returns the bytes that exist when a range extends past the end.
    RangePastEnd,
    /// Lists an object at once after a put, and no longer after a delete, in order of names.
    ListsAfterWrite,
    /// Deletes.
    Deletes,
    /// Locks an object against deletion.
    Locks,
    /// Refuses to shorten a lock, and to delete a locked object.
    LocksHold,
}

/// Whether a store has an ability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It has.
    Yes,
    /// It has not.
    No,
    /// It could not be found out.
    Unknown,
}

/// One finding of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The ability that was tried.
    pub ability: Ability,
    /// How it ended.
    pub verdict: Verdict,
    /// The same as a sentence.
    pub says: String,
}

/// A use of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// Image dumps: objects with names at random, written once.
    Dump,
    /// Locks on dumps and images.
    Lock,
    /// The destination of a mirror: one writer at a time, fenced by names that are created once.
    Mirror,
    /// The home of a volume: the same, and the only copy.
    Volume,
}

impl Use {
    fn needs(self) -> &'static [Ability] {
        use Ability::*;
        match self {
            Use::Dump => &[ReadsAfterWrite, Pieces, RangedGet],
            Use::Lock => &[Locks, LocksHold],
            Use::Mirror | Use::Volume => &[
                ReadsAfterWrite,
                CreateOnly,
                CreateOnlyRace,
                KeepsNonce,
                RangedGet,
                RangePastEnd,
                ListsAfterWrite,
                Deletes,
            ],
        }
    }

    /// Abilities that it is better with, and the consequence of each that is missing.
    fn wants(self) -> &'static [(Ability, &'static str)] {
        use Ability::*;
        match self {
            Use::Dump => &[
                (CreateOnly, "an object is safe only because its name is random and used once"),
                (CreateOnlyPieces, "a part is safe only because its name is random and used once"),
                (KeepsNonce, "a put whose answer is lost fails instead of being resolved"),
                (UnequalPieces, "dumps to it fail"),
                (ListsPieces, "an interrupted part is resumed by what this server remembers alone"),
                (
                    ListsUploads,
                    "remains of interrupted dumps are not found; set a lifecycle rule that aborts them",
                ),
                (ListsAfterWrite, "a new dump may be missing from a list for a while"),
                (RangePastEnd, "reads near the end of a part need one more request"),
                (Deletes, "dumps cannot be pruned"),
            ],
            Use::Lock => &[],
            Use::Mirror | Use::Volume => &[],
        }
    }

    /// The ability in words: `image dumps`.
    pub fn noun(self) -> &'static str {
        match self {
            Use::Dump => "image dumps",
            Use::Lock => "locks",
            Use::Mirror => "a mirror",
            Use::Volume => "a volume",
        }
    }
}

/// Whether a bucket may be used for something, with sentences for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// It may.
    Yes,
    /// It may, and this is to be known.
    WithWarnings(Vec<String>),
    /// It may not: it would be unsafe.
    No(Vec<String>),
}

/// The findings of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Abilities {
    /// Each ability once.
    pub found: Vec<Found>,
    /// Objects that the probe could not clean up, and until when.
    pub left: Vec<String>,
}

impl Abilities {
    /// How the trial of an ability ended.
    pub fn verdict(&self, ability: Ability) -> Verdict {
        self.found
            .iter()
            .find(|found| found.ability == ability)
            .map_or(Verdict::Unknown, |found| found.verdict)
    }

    /// The store has it for certain.
    pub fn has(&self, ability: Ability) -> bool {
        self.verdict(ability) == Verdict::Yes
    }

    fn says(&self, ability: Ability) -> String {
        let found = self.found.iter().find(|found| found.ability == ability);
        found.map_or_else(
            || format!("it is not known whether the store has `{ability:?}`"),
            |found| found.says.clone(),
        )
    }

    /// Whether the bucket may be used for this. An unknown ability counts as missing.
    pub fn allows(&self, what: Use) -> Allowed {
        let lacks: Vec<String> = what
            .needs()
            .iter()
            .filter(|ability| !self.has(**ability))
            .map(|ability| format!("{}: unsafe for {}", self.says(*ability), what.noun()))
            .collect();
        if !lacks.is_empty() {
            return Allowed::No(lacks);
        }
        let warnings: Vec<String> = what
            .wants()
            .iter()
            .filter(|(ability, _)| !self.has(*ability))
            .map(|(ability, without)| format!("{}: {without}", self.says(*ability)))
            .collect();
        if warnings.is_empty() { Allowed::Yes } else { Allowed::WithWarnings(warnings) }
    }
}
