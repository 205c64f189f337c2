//! Progress messages and interruption.
use crate::cause::OperateError;
use crate::clock;
use std::time::Duration;

/// Interval of checks for an interruption.
const LOOK: Duration = Duration::from_millis(50);

/// The caller's callbacks: progress and interruption.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Receives a line of progress.
    pub tell: &'a (dyn Fn(&str) + Sync),
    /// Whether everything should end now.
    pub is_interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl Control<'_> {
    /// Checks for an interruption.
    ///
    /// # Errors
    /// [`OperateError::Interrupted`].
    pub fn check(&self) -> Result<(), OperateError> {
        if (self.is_interrupted)() { Err(OperateError::Interrupted) } else { Ok(()) }
    }

    /// Waits, unless interrupted.
    ///
    /// # Errors
    /// [`OperateError::Interrupted`].
    pub fn pause(&self, time: Duration) -> Result<(), OperateError> {
        let until = clock::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}
