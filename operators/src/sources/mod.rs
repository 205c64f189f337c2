//! Sources: files in a folder, rows of a file, lines from connections.
mod cells;
mod connections;
pub mod csv;
mod directory;
mod event_time;
pub mod file_directory;
mod followed;
pub mod image_directory;
mod input;
mod jpeg_header;
pub mod jsonl;
mod jump;
mod lines;
pub mod objects;
pub mod parquet;
pub mod received;
pub mod repeat;
pub(crate) mod table;
pub mod tail;
pub mod tcp;
pub mod video;
pub mod wav_directory;

use std::path::Path;

/// Returns advice about a missing file or folder: `written` is the path in the workflow, `path` the resolved one. It
/// explains common mistakes, else suggests the name probably meant, else `otherwise`.
fn missing_help(written: &str, path: &Path, otherwise: &str) -> String {
    if let Some(rest) = written.strip_prefix('~') {
        return format!("`~` is not expanded: write `${{HOME}}{rest}` or the whole path");
    }
    if let Some((_, address)) = written.split_once("://") {
        let name = address.rsplit('/').find(|part| !part.is_empty()).unwrap_or(address);
        return format!(
            "addresses are not fetched: fetch it first, for instance with `curl -L -o {name} {written}`, and write the \
             path of the file, or pipe it in and write `path: \"-\"`"
        );
    }
    match tidemill_spec::yaml::similar_file(path).as_deref().and_then(Path::file_name) {
        Some(name) => format!("did you mean `{}`? {otherwise}", name.to_string_lossy()),
        None => otherwise.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod test;
