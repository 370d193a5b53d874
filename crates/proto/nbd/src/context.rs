//! Metadata contexts: which kinds of block status an export offers, and which a client selected.

use crate::limits::CONTEXTS_MAX;

/// The context of holes and zeroes.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The prefix of a snapshot's name in a context of changed blocks.
pub const DIRTY_BITMAP_PREFIX: &str = "qemu:dirty-bitmap:";

/// The kind of a context's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextKind {
    /// Holes and zeroes (`base:allocation`).
    Allocation,
    /// Blocks changed since the snapshot of this name (`qemu:dirty-bitmap:NAME`).
    ChangedSince(String),
}

/// A context that a client selected, with its number in this session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Chosen by the server; never 0.
    pub id: u32,
    /// The kind of its answers.
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

/// The contexts that `queries` select for `NBD_OPT_SET_META_CONTEXT`: exact names only, each once,
/// without unknown ones.
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

/// The contexts that `queries` match for `NBD_OPT_LIST_META_CONTEXT`: no query means all; a
/// namespace, or the leaf without a name, matches all in it.
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
