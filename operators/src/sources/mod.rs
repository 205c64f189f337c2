//! Sources: files in a folder, rows of a file.
pub mod csv;
mod directory;
pub mod image_directory;
pub mod jsonl;
mod lines;
pub mod repeat;
mod table;
pub mod wav_directory;

#[cfg(test)]
pub(crate) mod test;
