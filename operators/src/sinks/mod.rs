//! Sinks: files and the terminal.
mod appending;
pub mod checking;
pub mod csv;
pub mod dataset;
mod ending;
mod frames;
mod journal;
pub mod jsonl;
pub(crate) mod lock;
pub mod log_file;
pub mod messages;
pub mod parquet;
#[cfg(feature = "formats")]
mod parquet_durable;
#[cfg(feature = "formats")]
mod parquet_writer;
#[cfg(not(feature = "formats"))]
#[path = "parquet_absent.rs"]
mod parquet_writer;
pub mod rows;
pub(crate) mod staging;
pub mod stdout;
mod stream;
mod text_file;
pub mod video;
pub mod whole_file;

use crate::api::OperatorError;
pub use rows::json_rows;
use std::path::Path;

/// Cuts a text file of a sink back to the committed part of a token of that sink, and releases it: no other run continues
/// it.
///
/// # Errors
/// It is missing, shorter or no text file, or another run is writing it; the text names it and gives advice.
pub fn cut_back(path: &Path, token: &[u8]) -> Result<(), OperatorError> {
    staging::Staging::resume(path, token)?.close()
}

/// Whether an error text says that an output lost rows that a state knows of.
pub fn has_lost_rows(text: &str) -> bool {
    text.ends_with(staging::LOST_HELP)
}

#[cfg(test)]
mod power_loss_tests;
#[cfg(test)]
mod survival_tests;
#[cfg(test)]
pub(crate) mod test;
