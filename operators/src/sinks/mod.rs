//! Sinks: files and the terminal.
pub mod csv;
pub mod jsonl;
mod rows;
pub(crate) mod staging;
pub mod stdout;

#[cfg(test)]
pub(crate) mod test;
