//! Checks whether a sink could be opened, before a run creates or changes its state. A rejected run then leaves everything
//! unchanged.
use super::csv::Csv;
use super::dataset::{self, Dataset};
use super::jsonl::Jsonl;
use super::lock::check_free;
use super::parquet::Parquet;
use super::parquet_writer;
use super::staging::{Staging, write_error};
use crate::api::{BoundSink, OperatorError};
use crate::kind::TypedSinkKind;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;

/// Checks whether a sink could write its files, and with a token continue after its committed part. Changes nothing.
/// Conditions that only appear on opening, such as a full disk, are not checked.
///
/// # Errors
/// Another run writes one of the files, or one has lost rows; the text names it and gives advice.
pub fn check(sink: &BoundSink, token: Option<&[u8]>) -> Result<(), OperatorError> {
    for path in &sink.files {
        is_free(path)?;
        match (sink.kind.as_str(), token.filter(|_| sink.durable.is_some())) {
            (Csv::KIND | Jsonl::KIND, Some(token)) => Staging::check(path, token)?,
            (Parquet::KIND, Some(token)) => parquet_writer::check(path, token)?,
            (Dataset::KIND, token) => dataset::check(path, token)?,
            _ => {}
        }
    }
    Ok(())
}

/// Checks the text file of a sink that is to be [cut back](super::cut_back).
///
/// # Errors
/// See [`super::cut_back`].
pub fn check_cut_back(path: &Path, token: &[u8]) -> Result<(), OperatorError> {
    Staging::check(path, token)
}

/// Refuses the text file of an ended run if others have appended to it since: continuing from an earlier token would cut
/// that off. `rows`: number of rows that the run wrote after the token. Changes nothing.
///
/// # Errors
/// There is more; the text names the file and gives advice.
pub fn check_ended(kind: &str, path: &Path, token: &[u8], rows: u64) -> Result<(), OperatorError> {
    if !matches!(kind, Csv::KIND | Jsonl::KIND) {
        return Ok(());
    }
    let committed = Staging::committed_of(path, token)?;
    let end = File::open(path).and_then(|file| end_of_rows(file, committed, rows, kind == Csv::KIND));
    match end.map_err(|error| write_error(path, &error))? {
        None => Ok(()),
        Some(end) => Err(OperatorError::new(format!(
            "cannot continue `{path}`: the run had ended at byte {end}, and another run has written more \
             since then, which this run would remove: move that part to another file and `truncate -s {end} \
             {path}`, or start from the beginning with `tidemill state reset`",
            path = path.display()
        ))),
    }
}

/// Returns where `rows` rows after `from` end, if more data follows. `has_quotes`: a line break between quotes ends no row.
fn end_of_rows(mut file: File, from: u64, rows: u64, has_quotes: bool) -> io::Result<Option<u64>> {
    file.seek(SeekFrom::Start(from))?;
    let mut content = BufReader::with_capacity(1 << 16, file);
    let (mut end, mut found, mut is_quoted) = (from, 0, false);
    loop {
        let chunk = content.fill_buf()?;
        if chunk.is_empty() {
            return Ok(None);
        }
        for byte in chunk {
            if found == rows {
                return Ok(Some(end));
            }
            end += 1;
            match byte {
                b'"' if has_quotes => is_quoted = !is_quoted,
                b'\n' if !is_quoted => found += 1,
                _ => {}
            }
        }
        let read = chunk.len();
        content.consume(read);
    }
}

/// The lock is on the file, or on a hidden one beside it if only that exists.
fn is_free(path: &Path) -> Result<(), OperatorError> {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    check_free(&target, path)?;
    [".lock", ".rows"]
        .iter()
        .try_for_each(|ending| check_free(&target.with_file_name(format!(".{name}{ending}")), path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::SinkKind;
    use crate::sinks::test::{answers, bind};
    use crate::testing::batch;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let content = |entry: std::fs::DirEntry| {
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        };
        entries.map(content).collect()
    }

    /// Data that others append to the file of an ended run is found, with its position.
    #[test]
    fn what_others_wrote_behind_the_end_is_found() {
        for (kind, row) in [(&Csv as &dyn SinkKind, "x,1\n"), (&Jsonl, "{\"key\":\"x\",\"n\":1}\n")] {
            let folder = tempfile::tempdir().unwrap();
            let (bound, path) =
                (bind(kind, folder.path(), "path: a\nmode: append").unwrap(), folder.path().join("a"));
            let mut sink = (bound.make)().unwrap();
            let write = |sink: &mut dyn crate::api::Sink| {
                sink.write(&batch(&answers(), &[json!({"key": "a \"quoted\"\nline", "n": 1})])).unwrap();
                sink.commit(1).unwrap();
            };
            write(sink.as_mut());
            let token = sink.token().unwrap().unwrap();
            (0..3).for_each(|_| write(sink.as_mut()));
            sink.close().unwrap();
            let ended = std::fs::read(&path).unwrap();
            check_ended(kind.kind(), &path, &token, 3).unwrap();
            for more in [row, "x"] {
                std::fs::write(&path, [&ended[..], more.as_bytes()].concat()).unwrap();
                let message = check_ended(kind.kind(), &path, &token, 3).unwrap_err().message;
                assert!(message.contains(&format!("truncate -s {} ", ended.len())), "{message}");
                assert!(message.contains("another run has written more"), "{message}");
            }
        }
    }

    /// The check gives the error of opening the sink, and changes nothing.
    #[test]
    fn what_opening_would_tell_is_told_before() {
        for kind in [&Csv as &dyn SinkKind, &Jsonl, &Parquet] {
            let folder = tempfile::tempdir().unwrap();
            let bound = bind(kind, folder.path(), "path: a").unwrap();
            let durable = bound.durable.as_ref().unwrap();
            check(&bound, None).unwrap();
            assert!(files(folder.path()).is_empty(), "nothing is made");
            let mut sink = durable(None).unwrap();
            for n in 0..3 {
                sink.write(&batch(&answers(), &[json!({"key": "a", "n": n})])).unwrap();
                sink.commit(n + 1).unwrap();
            }
            let busy = check(&bound, None).unwrap_err().message;
            assert!(busy.contains("is being written by"), "{busy}");
            let token = sink.token().unwrap().unwrap();
            assert_eq!(check(&bound, Some(&token)).unwrap_err().message, busy);
            sink.flush().unwrap()().unwrap();
            sink.suspend().unwrap();
            drop(sink);
            let before = files(folder.path());
            check(&bound, Some(&token)).unwrap();
            assert_eq!(files(folder.path()), before);
            for (name, content) in before {
                let path = folder.path().join(name);
                std::fs::write(&path, &content[..content.len() / 2]).unwrap();
                let message = check(&bound, Some(&token)).unwrap_err().message;
                assert_eq!(std::fs::read(&path).unwrap().len(), content.len() / 2, "it is left alone");
                assert_eq!(durable(Some(&token)).err().unwrap().message, message);
                std::fs::write(&path, &content).unwrap();
            }
            // A finished one is created again.
            let mut sink = durable(Some(&token)).unwrap();
            sink.close().unwrap();
            drop(sink);
            check(&bound, Some(&token)).unwrap();
        }
    }
}
