//! Handles of a session. One without bytes is charged no memory, so that their number has a limit of its own.
use crate::device::{DeviceError, ModelId, TensorId};
use std::collections::HashSet;

/// Tensors and models that a session may hold together.
pub(super) const MOST_HANDLES: usize = 1 << 14;

/// Handles that name something now.
#[derive(Debug, Default)]
pub(super) struct Handles {
    pub(super) tensors: HashSet<TensorId>,
    pub(super) models: HashSet<ModelId>,
}

impl Handles {
    /// Returns the number of models.
    pub(super) fn models(&self) -> u64 {
        self.models.len() as u64
    }

    /// Returns whether there may be so many more.
    ///
    /// # Errors
    /// [`DeviceError::Value`] with the limit.
    pub(super) fn room(&self, wanted: usize) -> Result<(), DeviceError> {
        let held = self.tensors.len() + self.models.len();
        if held.saturating_add(wanted) <= MOST_HANDLES {
            return Ok(());
        }
        Err(DeviceError::Value(format!(
            "the session holds {held} tensors and models, and {wanted} more are too many: at most {MOST_HANDLES} are allowed; free some"
        )))
    }
}
