//! The user of a request, by the rules of its export.

use cairn_proto_nfs::rpc::Credential;

/// Which users of a client become the anonymous user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Squash {
    /// Root alone.
    #[default]
    Root,
    /// None.
    None,
    /// All.
    All,
}

/// The rules of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Which users are anonymous.
    pub squash: Squash,
    /// The anonymous user and its group.
    pub anonymous: (u32, u32),
}

impl Rules {
    /// The anonymous user and group of most systems.
    pub const NOBODY: (u32, u32) = (65_534, 65_534);
}

impl Default for Rules {
    fn default() -> Self {
        Self { read_only: false, squash: Squash::Root, anonymous: Self::NOBODY }
    }
}

/// The user of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    groups: Vec<u32>,
}

impl Caller {
    /// The user that a credential claims, after the rules of an export.
    pub(crate) fn of(credential: &Credential, rules: &Rules) -> Self {
        let (uid, gid) = rules.anonymous;
        let anonymous = Self { uid, gid, groups: Vec::new() };
        match credential {
            Credential::None => anonymous,
            Credential::Sys { .. } if rules.squash == Squash::All => anonymous,
            Credential::Sys { uid: 0, .. } if rules.squash == Squash::Root => anonymous,
            Credential::Sys { uid, gid, groups } => {
                // The group of root gives rights as well.
                let squash = |group: u32| match (group, rules.squash) {
                    (0, Squash::Root) => rules.anonymous.1,
                    (group, _) => group,
                };
                let groups = groups.iter().copied().map(squash).collect();
                Self { uid: *uid, gid: squash(*gid), groups }
            }
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub(crate) fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}
