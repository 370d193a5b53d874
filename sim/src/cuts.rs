//! The power goes once at every device operation of a life: what the lives of trees and of
//! histories share.

use anyhow::{Context, Result};

use crate::tally::Tally;

/// What an action came to.
pub(crate) enum Done {
    Fine,
    /// The power is gone.
    Off,
}

/// Lives a life without a cut, and then once with a cut after each number of operations that it
/// took. `live` lives it from its beginning, always with the same random numbers, with the power
/// gone after so many operations; it says how many there were between the moment from which cuts
/// count and the end.
///
/// # Errors
/// What `live` finds, with the cut at which it did.
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
