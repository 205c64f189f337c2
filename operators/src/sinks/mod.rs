//! Sinks: files and the terminal.
pub mod csv;
pub mod jsonl;
mod lock;
pub mod log_file;
pub mod parquet;
pub(crate) mod rows;
pub(crate) mod staging;
pub mod stdout;
mod stream;
mod text_file;
pub mod whole_file;

#[cfg(test)]
pub(crate) mod test;
