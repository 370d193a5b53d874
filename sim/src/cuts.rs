//! A power cut at each device operation of a life: the parts shared by the lives of trees and of
//! histories.

use anyhow::{Context, Result};

use crate::tally::Tally;

/// The outcome of an action.
pub(crate) enum Done {
    Fine,
    /// The power is gone.
    Off,
}

/// Runs a life without a cut, and then once with a cut after each number of operations that it
/// took. `live` runs it from its beginning, always with the same random numbers, and with the power
/// cut after that many operations. It returns how many there were between the moment from which
/// cuts count and the end.
///
/// # Errors
/// Errors of `live`, with the cut at which each occurred.
pub(crate) fn at_every_operation(
    tally: &mut Tally,
    mut live: impl FnMut(Option<u64>, &mut Tally) -> Result<u64>,
) -> Result<()> {
    let operations = live(None, tally)?;
    for cut in 0..operations {
        tally.points += 1;
        live(Some(cut), tally).with_context(|| format!("with a cut after {cut} operations"))?;
    }
    Ok(())
}
