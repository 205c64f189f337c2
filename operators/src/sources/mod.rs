//! Sources: files in a folder, rows of a file.
pub mod csv;
mod directory;
pub mod image_directory;
mod jpeg_header;
pub mod jsonl;
mod lines;
pub mod repeat;
mod table;
pub mod wav_directory;

use std::path::Path;

/// What to do about a file or folder that is not there: the name that was probably meant, else `otherwise`.
fn missing_help(path: &Path, otherwise: &str) -> String {
    match tidemill_spec::yaml::similar_file(path).as_deref().and_then(Path::file_name) {
        Some(name) => format!("did you mean `{}`? {otherwise}", name.to_string_lossy()),
        None => otherwise.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod test;
