//! How what goes on is told, and ended.
use crate::cause::OperateError;
use crate::clock;
use std::time::Duration;

/// How often it is looked whether somebody wants an end.
const LOOK: Duration = Duration::from_millis(50);

/// Whoever called: is told what happens, and may want an end.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Takes a line about what goes on.
    pub tell: &'a (dyn Fn(&str) + Sync),
    /// Whether everything should end now.
    pub is_interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl Control<'_> {
    /// Goes on only where nobody wants an end.
    ///
    /// # Errors
    /// [`OperateError::Interrupted`].
    pub fn check(&self) -> Result<(), OperateError> {
        if (self.is_interrupted)() { Err(OperateError::Interrupted) } else { Ok(()) }
    }

    /// Waits, unless somebody wants an end.
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
