//! Errors of groups.
//!
//! Each has its kind and the step that comes next.

use cairn_api::ErrorKind;

/// An error of groups.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupsError {
    /// The mirrors of a group have no snapshot of it in common.
    #[error("the volumes of group `{group}` have no snapshot of it in common")]
    GroupApart {
        /// Its name.
        group: String,
    },
    /// The mirrors of a group must show one instant, and have none in common.
    #[error(
        "`{volume}` shows nothing: the mirrors of group `{group}` show one instant, and have no snapshot of the group in common"
    )]
    GroupShowsNothing {
        /// The volume.
        volume: String,
        /// The group.
        group: String,
    },
    /// A volume of a group that is shown together can't become another state alone.
    #[error("`{volume}` shows one instant together with the other volumes of group `{group}`")]
    InGroup {
        /// The volume.
        volume: String,
        /// The group.
        group: String,
    },
    /// Two groups would determine the visible image of a volume.
    #[error("a volume of group `{group}` shows one instant with those of group `{other}` already")]
    GroupsShare {
        /// The requested group.
        group: String,
        /// The existing group.
        other: String,
    },
    /// A failover of a group was cut off.
    #[error("the failover or reverse of group `{group}` is unfinished")]
    GroupUnfinished {
        /// Its name.
        group: String,
    },
    /// A group takes writes already.
    #[error("the volumes of group `{group}` were failed over, or took over, and take writes")]
    GroupFailedOver {
        /// Its name.
        group: String,
    },
}

impl GroupsError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            GroupsError::GroupsShare { .. } => ErrorKind::Taken,
            GroupsError::GroupApart { .. } | GroupsError::GroupShowsNothing { .. } => ErrorKind::Diverged,
            GroupsError::GroupFailedOver { .. }
            | GroupsError::GroupUnfinished { .. }
            | GroupsError::InGroup { .. } => ErrorKind::WrongRole,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            GroupsError::GroupApart { group } => format!(
                "make one at the source with `cairn snapshot create --group {group}`, and update the mirrors; or fail the volumes over one by one with `cairn mirror failover`"
            ),
            GroupsError::GroupShowsNothing { group, .. } => format!(
                "make one at the source with `cairn snapshot create --group {group}`, and update the mirrors; or let each volume show its own newest image: `cairn group apart {group}`"
            ),
            GroupsError::InGroup { group, .. } => format!(
                "`cairn group failover {group}` brings all of them to that instant, and `cairn group reverse {group}` changes the roles of all of them as planned; for this one alone, `cairn group apart {group}` first"
            ),
            GroupsError::GroupsShare { group, other } => format!(
                "`cairn group create {group} ... --apart`; or have the other one's volumes show each its own newest image first: `cairn group apart {other}`"
            ),
            GroupsError::GroupUnfinished { group } => {
                format!("resume it: `cairn group failover {group}`")
            }
            GroupsError::GroupFailedOver { group } => {
                format!(
                    "see `cairn group show {group}`; what the volumes showed beyond it is in their snapshots"
                )
            }
        }
    }
}
