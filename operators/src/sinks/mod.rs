//! Sinks: files and the terminal.
mod appending;
pub mod csv;
mod journal;
pub mod jsonl;
mod lock;
pub mod log_file;
pub mod parquet;
mod parquet_durable;
pub(crate) mod rows;
pub(crate) mod staging;
pub mod stdout;
mod stream;
mod text_file;
pub mod whole_file;

#[cfg(test)]
mod survival_tests;
#[cfg(test)]
pub(crate) mod test;
