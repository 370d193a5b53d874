//! Findings of a check, in words.

use std::sync::Arc;

use cairn_api::name_findings;
use cairn_volume::{CheckDepth, Volume};

use crate::error::ServerError;

/// The findings of a check of a volume that is not in service yet.
pub(crate) fn findings(
    volume: &Arc<Volume>,
    name: &str,
    depth: CheckDepth,
) -> Result<Vec<String>, ServerError> {
    let mut on = |_| std::ops::ControlFlow::Continue(());
    let report = volume.check_to(depth, &mut on).map_err(ServerError::volume(name))?;
    Ok(name_findings(volume, name, &report.findings))
}
