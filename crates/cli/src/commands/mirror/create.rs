//! `cairn mirror create`: a new volume with a baseline, or a volume of the server as a seed.

use cairn_api as api;
use cairn_api::client::Client;

use super::{divergence, transferred};
use crate::arguments::FromVolume;
use crate::commands::volume::absolute;
use crate::exit::Failure;
use crate::output::{Output, size};

/// The volume that becomes the mirror, if one is named.
pub(super) fn seed(asked: FromVolume) -> Result<Option<api::SeedMirror>, Failure> {
    let FromVolume { from, spill, discard_divergent, compare } = asked;
    let spill = absolute(spill.as_slice())?.pop();
    Ok(from.map(|_| api::SeedMirror { spill, discard: discard_divergent, compare }))
}

/// Creates a mirror, or only shows what that would send.
pub(super) fn run(
    request: &api::CreateMirror,
    dry_run: bool,
    client: &Client,
    output: Output,
) -> Result<(), Failure> {
    let discards = request.seed.as_ref().is_some_and(|seed| seed.discard);
    if dry_run || discards {
        let plan: api::MirrorPlan = client.post("/v1/mirror-plans", request)?;
        if dry_run {
            output.show(&plan, |plan| format!("{}; nothing was done", planned(plan)));
            return Ok(());
        }
        if let Some(found) = plan.divergence.as_ref().filter(|found| found.diverged) {
            output.confirm(&divergence(found))?;
        }
    }
    let job: api::Job = client.post("/v1/mirrors", request)?;
    transferred(job, client, output)
}

/// The bytes that would be sent, and the data that would be lost.
fn planned(plan: &api::MirrorPlan) -> String {
    let full = size(plan.full_bytes);
    let Some(found) = &plan.divergence else {
        return format!(
            "{} would be a new mirror of {} at {}: {full} would be sent",
            plan.name, plan.volume, plan.address
        );
    };
    let sent = match (plan.changed_bytes, plan.compare_bytes) {
        (Some(changed), _) => format!(
            "{} ({changed} bytes) of the present state of {} would be sent, and the blocks that only its newer snapshots have (a full copy is {full})",
            size(changed),
            plan.volume
        ),
        (None, compare) => format!(
            "with --compare, {} of checksums would be compared, and at most {full} would be sent",
            size(compare.unwrap_or_default())
        ),
    };
    format!("{sent}; {}", divergence(found))
}
