//! Sources: files in a folder, rows of a file, lines that come by connections.
mod cells;
mod connections;
pub mod csv;
mod directory;
mod event_time;
pub mod image_directory;
mod input;
mod jpeg_header;
pub mod jsonl;
mod jump;
mod lines;
pub mod repeat;
mod table;
pub mod tcp;
pub mod video;
pub mod wav_directory;

use std::path::Path;

/// What to do about a file or folder that is not there: `written` is what the workflow has, `path` where that leads. What
/// is often taken for a path, else the name that was probably meant, else `otherwise`.
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
