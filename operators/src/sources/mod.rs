//! Sources: files in a folder, rows of a file.
pub mod repeat;
