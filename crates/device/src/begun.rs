//! A batch that was begun on a device, so that its caller can do other work meanwhile.

use crate::{DeviceError, Operation};

/// A batch in progress, or done already. It completes whether a caller waits or not.
#[must_use = "the outcome of a batch must be looked at"]
pub struct Begun(Stage);

enum Stage {
    Done(Result<(), DeviceError>),
    Later(Box<dyn FnOnce() -> Result<(), DeviceError>>),
}

impl Begun {
    /// A batch that has been run.
    pub fn done(batch: Vec<Operation>) -> Self {
        Self(Stage::Done(outcome_of(batch)))
    }

    /// A batch whose outcome `end` waits for.
    pub fn later(end: impl FnOnce() -> Result<(), DeviceError> + 'static) -> Self {
        Self(Stage::Later(Box::new(end)))
    }

    /// Waits for the end: success, or the first failure of an operation.
    pub fn wait(self) -> Result<(), DeviceError> {
        match self.0 {
            Stage::Done(outcome) => outcome,
            Stage::Later(end) => end(),
        }
    }
}

/// Success, or the first failure of a batch that has been run.
pub(crate) fn outcome_of(batch: Vec<Operation>) -> Result<(), DeviceError> {
    batch.into_iter().try_for_each(Operation::into_outcome)
}
