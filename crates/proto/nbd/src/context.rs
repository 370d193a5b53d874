//! Metadata contexts: which kinds of block status an export offers, and which a client selected.

use crate::limits::CONTEXTS_MAX;

/// The context of holes and zeroes.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// What stands before the name of a snapshot in a context of changed blocks.
pub const DIRTY_BITMAP_PREFIX: &str = "qemu:dirty-bitmap:";

/// What a context tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextKind {
    /// Holes and zeroes (`base:allocation`).
    Allocation,
    /// Blocks changed since the snapshot of this name (`qemu:dirty-bitmap:NAME`).
    ChangedSince(String),
}

/// A context that a client selected, with the number that stands for it in this session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Chosen by the server; never 0.
    pub id: u32,
    /// What it tells.
    pub kind: ContextKind,
}

impl Context {
    /// The name on the wire.
    pub fn name(&self) -> String {
        match &self.kind {
            ContextKind::Allocation => BASE_ALLOCATION.to_owned(),
            ContextKind::ChangedSince(snapshot) => format!("{DIRTY_BITMAP_PREFIX}{snapshot}"),
        }
    }
}

/// All contexts of an export whose snapshots (for changed blocks) are `snapshots`. The id is the
/// position plus 1.
fn offered(snapshots: &[String]) -> impl Iterator<Item = Context> + '_ {
    let kinds = std::iter::once(ContextKind::Allocation)
        .chain(snapshots.iter().map(|name| ContextKind::ChangedSince(name.clone())));
    (1..).zip(kinds).map(|(id, kind)| Context { id, kind })
}

/// What `queries` select for `NBD_OPT_SET_META_CONTEXT`: exact names only, each once, unknown ones
/// left out.
pub(crate) fn select(queries: &[&str], snapshots: &[String]) -> Vec<Context> {
    let mut selected: Vec<Context> = Vec::new();
    for query in queries {
        let position = if *query == BASE_ALLOCATION {
            Some(0)
        } else {
            query
                .strip_prefix(DIRTY_BITMAP_PREFIX)
                .and_then(|name| snapshots.iter().position(|snapshot| snapshot == name))
                .map(|position| position + 1)
        };
        let Some(context) = position.and_then(|position| offered(snapshots).nth(position)) else { continue };
        if selected.len() < CONTEXTS_MAX && !selected.contains(&context) {
            selected.push(context);
        }
    }
    selected
}

/// What `queries` match for `NBD_OPT_LIST_META_CONTEXT`: no query means all; a namespace, or the
/// leaf without a name, matches all in it.
pub(crate) fn matching(queries: &[&str], snapshots: &[String]) -> Vec<Context> {
    offered(snapshots)
        .filter(|context| {
            let name = context.name();
            queries.is_empty()
                || queries.iter().any(|query| {
                    *query == name
                        || (matches!(*query, "base:" | "qemu:" | DIRTY_BITMAP_PREFIX)
                            && name.starts_with(query))
                })
        })
        .collect()
}
