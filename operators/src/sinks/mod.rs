//! Sinks: files and the terminal.
mod appending;
pub mod checking;
pub mod csv;
mod ending;
mod frames;
mod journal;
pub mod jsonl;
pub(crate) mod lock;
pub mod log_file;
pub mod parquet;
mod parquet_durable;
pub(crate) mod rows;
pub(crate) mod staging;
pub mod stdout;
mod stream;
mod text_file;
pub mod video;
pub mod whole_file;

use crate::api::OperatorError;
use std::path::Path;

/// Cuts a text file of a sink back to what a token of that sink says is committed, and leaves it so: no other run goes on with it.
///
/// # Errors
/// It is not there or is shorter, it is no text file, or another run is writing it; the text names it and says what to do.
pub fn cut_back(path: &Path, token: &[u8]) -> Result<(), OperatorError> {
    staging::Staging::resume(path, token)?.close()
}

/// Whether the text of an error says that an output does not have any more what a state knows to be in it.
pub fn has_lost_rows(text: &str) -> bool {
    text.ends_with(staging::LOST_HELP)
}

#[cfg(test)]
mod power_loss_tests;
#[cfg(test)]
mod survival_tests;
#[cfg(test)]
pub(crate) mod test;
