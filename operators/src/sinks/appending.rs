//! Text files that continue the output of earlier runs.
//!
//! A hidden file beside the output, `.NAME.appending`, records its length before the run, from before the first row until
//! the run has closed its file. So the output of an unfinished run is known: the next one cuts it off and writes it again,
//! unless it continues from a state.
//!
//! A mark that outlives its run makes a later run cut off good rows. So every mode that closes or empties a text file
//! removes the mark: a run may have continued in another mode, or left the file.
use super::ending::Ending;
use super::lock::lock;
use super::staging::{Staging, sync_name, write_error};
use crate::api::OperatorError;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes of a line that an error shows.
const SHOWN: usize = 120;

/// Recorded facts about a file that a run continues.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begun {
    /// Its length before, in bytes.
    length: u64,
    /// Device and inode number: another file under its name has nothing of the run.
    device: u64,
    inode: u64,
}

/// The hidden file.
fn mark(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.appending"))
}

/// Opens the file for appending, or creates it with `header`. `is_whole`: whether a file ends with a whole row.
///
/// # Errors
/// It cannot be written, another run is writing it, it ends in the middle of a row or has another header.
pub(super) fn open(
    path: &Path,
    header: &[u8],
    is_whole: impl Fn(&File) -> io::Result<bool>,
) -> Result<Staging, OperatorError> {
    let failed = |error: io::Error| write_error(path, &error);
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let mut options = OpenOptions::new();
    let target = options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    lock(&target, path)?;
    let found = target.metadata().map_err(failed)?;
    let (device, inode) = (found.dev(), found.ino());
    let begun = read_mark(path)?.filter(|begun| (begun.device, begun.inode) == (device, inode));
    let length = match begun.filter(|begun| begun.length <= found.len()) {
        Some(begun) => {
            target.set_len(begun.length).map_err(failed)?;
            begun.length
        }
        None => found.len(),
    };
    if length > 0 {
        check_header(path, &target, header, length)?;
        if !is_whole(&target).map_err(failed)? {
            return Err(torn(path, &target, length));
        }
    }
    write_mark(path, &Begun { length, device, inode })?;
    let ending = Ending::of(&target, length).map_err(failed)?;
    let mut staging = Staging::of(path, target, true, (length, ending));
    if length == 0 {
        // Not staged, because a rollback must not remove the header.
        staging.buffer().extend_from_slice(header);
        staging.commit()?;
    }
    Ok(staging)
}

/// Removes the mark of a file that a run has emptied.
pub(super) fn forget(path: &Path, target: &File) -> Result<(), OperatorError> {
    if !mark(path).exists() {
        return Ok(());
    }
    // If only the mark were gone after a power loss, the next run would keep the output of a killed one.
    tidemill_disk::sync_all(target).map_err(|error| write_error(path, &error))?;
    finish(path)
}

/// Removes the mark at the end of a run, or when it leaves the file: its rows stay.
pub(super) fn finish(path: &Path) -> Result<(), OperatorError> {
    let mark = mark(path);
    match tidemill_disk::remove(&mark) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(write_error(&mark, &error)),
        // If it returned after a power loss, the next run would cut off the rows of this one.
        Ok(()) => sync_name(path),
    }
}

fn read_mark(path: &Path) -> Result<Option<Begun>, OperatorError> {
    let mark = mark(path);
    let text = match std::fs::read(&mark) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| {
            OperatorError::new(format!("`{}` cannot be read: {error}: allow reading it", mark.display()))
        })?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        OperatorError::new(format!(
            "`{}` does not contain the length of `{}` before the last run ({error}): delete it if the whole file should stay",
            mark.display(),
            path.display()
        ))
    })
}

fn write_mark(path: &Path, begun: &Begun) -> Result<(), OperatorError> {
    let (mark, name) = (mark(path), path.file_name().unwrap_or_default().to_string_lossy());
    let new = path.with_file_name(format!(".{name}.appending.new"));
    let written = (|| {
        let mut file = File::create(&new)?;
        serde_json::to_writer(&mut file, begun)?;
        file.flush()?;
        tidemill_disk::sync_all(&file)?;
        tidemill_disk::rename(&new, &mark)
    })();
    if let Err(error) = written {
        // It may be the file that fills the disk.
        let _ = std::fs::remove_file(&new);
        return Err(write_error(&mark, &error));
    }
    sync_name(&mark)
}

fn check_header(path: &Path, target: &File, header: &[u8], length: u64) -> Result<(), OperatorError> {
    let mut found = vec![0; header.len().max(SHOWN).min(length as usize)];
    target.read_exact_at(&mut found, 0).map_err(|error| write_error(path, &error))?;
    if found.starts_with(header) {
        return Ok(());
    }
    Err(OperatorError::new(format!(
        "cannot continue `{}`: its first line is `{}`, but this run writes `{}`: choose another path, or \
         the columns of the file with `columns`",
        path.display(),
        first_line(&found),
        first_line(header)
    )))
}

fn first_line(bytes: &[u8]) -> String {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let text = String::from_utf8_lossy(line);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.trim_end().to_owned(),
    }
}

/// The error for a file whose last row is not whole.
fn torn(path: &Path, target: &File, length: u64) -> OperatorError {
    let mut end = vec![0; (8 * SHOWN).min(length as usize)];
    let begin = length - end.len() as u64;
    let read = target.read_exact_at(&mut end, begin);
    let line = end.strip_suffix(b"\n").unwrap_or(&end).rsplit(|byte| *byte == b'\n').next();
    let shown = read.map_or(String::new(), |()| first_line(line.unwrap_or_default()));
    OperatorError::new(format!(
        "cannot continue `{path}`: its last row is incomplete: `{shown}`: remove it, for instance with `sed \
         -i '$d' {path}`, or, if it is complete, add a line break with `echo >> {path}`",
        path = path.display()
    ))
}

/// Whether a file ends with a line break.
pub(super) fn ends_with_line_break(file: &File) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, file.metadata()?.len().saturating_sub(1))?;
    Ok(last == *b"\n")
}

/// Whether every quote in a file is closed.
pub(super) fn closes_quotes(mut file: &File) -> io::Result<bool> {
    io::Seek::rewind(&mut file)?;
    let (mut quotes, mut chunk) = (0, vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(quotes % 2 == 0),
            Ok(read) => quotes += memchr::memchr_iter(b'"', &chunk[..read]).count(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::api::{BoundSink, Sink};
    use crate::kind::SinkKind;
    use crate::sinks::csv::Csv;
    use crate::sinks::cut_back;
    use crate::sinks::jsonl::Jsonl;
    use crate::sinks::parquet::Parquet;
    use crate::sinks::test::{answers, bind};
    use crate::testing::{batch, only};
    use proptest::prelude::*;
    use serde_json::json;
    use std::path::Path;

    fn sink(kind: &dyn SinkKind, folder: &Path, name: &str) -> BoundSink {
        bind(kind, folder, &format!("path: {name}\nmode: append")).unwrap()
    }

    fn write(sink: &mut dyn Sink, key: &str) {
        sink.write(&batch(&answers(), &[json!({"key": key, "n": 1})])).unwrap();
        sink.commit(1).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn each_run_goes_on_behind_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        for kind in [&Csv as &dyn SinkKind, &Jsonl] {
            let bound = sink(kind, folder.path(), "new/a");
            for key in ["one", "two \"and\n\" more"] {
                let mut sink = (bound.make)().unwrap();
                write(sink.as_mut(), key);
                assert_eq!(names(&folder.path().join("new")), [".a.appending", "a"]);
                sink.close().unwrap();
            }
            assert_eq!(names(&folder.path().join("new")), ["a"]);
            let text = std::fs::read_to_string(folder.path().join("new/a")).unwrap();
            let expected = match kind.kind() {
                "csv" => "key,n\none,1\n\"two \"\"and\n\"\" more\",1\n",
                _ => "{\"key\":\"one\",\"n\":1}\n{\"key\":\"two \\\"and\\n\\\" more\",\"n\":1}\n",
            };
            assert_eq!(text, expected);
            std::fs::remove_file(folder.path().join("new/a")).unwrap();
        }
    }

    #[test]
    fn what_a_run_wrote_that_did_not_end_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let (bound, path) = (sink(&Csv, folder.path(), "a.csv"), folder.path().join("a.csv"));
        let mut whole = (bound.make)().unwrap();
        write(whole.as_mut(), "whole");
        whole.close().unwrap();
        let mut killed = (bound.make)().unwrap();
        write(killed.as_mut(), "again");
        drop(killed);
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut f| std::io::Write::write_all(&mut f, b"\"aga"))
            .unwrap();
        let mut next = (bound.make)().unwrap();
        write(next.as_mut(), "again");
        next.close().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "key,n\nwhole,1\nagain,1\n");
        // A file that replaced it has nothing of the run.
        drop((bound.make)().unwrap());
        std::fs::write(folder.path().join("other"), "key,n\nmine,1\nmine,2\nmine,3\nmine,4\n").unwrap();
        std::fs::rename(folder.path().join("other"), &path).unwrap();
        drop((bound.make)().unwrap());
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("mine,4\n"));
    }

    /// The mark of a run that left its file, or continued in another mode, or whose file was replaced, does not affect
    /// later runs.
    #[test]
    fn a_mark_does_not_outlive_what_it_is_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let appends = sink(&Csv, folder.path(), "a.csv");
        let replaces = bind(&Csv, folder.path(), "path: a.csv").unwrap();
        let (append, replace) = (appends.durable.as_ref().unwrap(), replaces.durable.as_ref().unwrap());
        let text = || std::fs::read_to_string(&path).unwrap();
        let suspended = |key: &str| {
            let mut sink = append(None).unwrap();
            write(sink.as_mut(), key);
            let token = sink.token().unwrap().unwrap();
            sink.flush().unwrap()().unwrap();
            write(sink.as_mut(), "behind");
            sink.suspend().unwrap();
            token
        };
        let appended = |key: &str| {
            let mut sink = append(None).unwrap();
            write(sink.as_mut(), key);
            sink.close().unwrap();
        };
        // The run continues with another file.
        let token = suspended("left");
        cut_back(&path, &token).unwrap();
        assert_eq!(names(folder.path()), ["a.csv"]);
        appended("next");
        assert_eq!(text(), "key,n\nleft,1\nnext,1\n");
        // It continues as one that would replace the file at its start.
        let token = suspended("other mode");
        let mut sink = replace(Some(&token)).unwrap();
        sink.close().unwrap();
        drop(sink);
        appended("last");
        assert_eq!(text(), "key,n\nleft,1\nnext,1\nother mode,1\nlast,1\n");
        // Another run replaces the file of a killed one, and is closed or killed itself.
        for is_closed in [true, false] {
            drop(append(None).unwrap());
            assert_eq!(names(folder.path()), [".a.csv.appending", "a.csv"]);
            let mut sink = replace(None).unwrap();
            (0..20).for_each(|row| write(sink.as_mut(), &format!("replaced {row}")));
            if is_closed {
                sink.close().unwrap();
            }
            drop(sink);
            let replaced = text();
            assert_eq!(names(folder.path()), ["a.csv"]);
            appended("end");
            assert_eq!(text(), replaced + "end,1\n");
        }
    }

    /// Otherwise the next writer would cut off the rows just written.
    #[test]
    fn who_gets_the_lock_of_a_closed_file_finds_no_mark() {
        let folder = tempfile::tempdir().unwrap();
        let (bound, path) = (sink(&Jsonl, folder.path(), "a"), folder.path().join("a"));
        for _ in 0..40 {
            let mut sink = (bound.make)().unwrap();
            write(sink.as_mut(), "row");
            let other = std::fs::File::open(&path).unwrap();
            let mark = super::mark(&path);
            let next = std::thread::spawn(move || {
                while other.try_lock().is_err() {}
                mark.exists()
            });
            sink.close().unwrap();
            assert!(!next.join().unwrap(), "the lock was given back before the mark was gone");
        }
    }

    #[test]
    fn a_foreign_file_that_does_not_fit_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cases: [(&dyn SinkKind, &str, &[&str]); 5] = [
            (&Csv, "n,key\n1,a\n", &["first line is `n,key`", "writes `key,n`"]),
            (&Csv, "key,n\na,1\nb,", &["last row is incomplete: `b,`", "sed -i '$d'"]),
            (&Csv, "key,n\na,1\n\"b\n", &["last row is incomplete: `\"b`"]),
            (&Csv, "k", &["first line is `k`"]),
            (&Jsonl, "{\"key\":\"a\"}\n{\"ke", &["last row is incomplete: `{\"ke`", "echo >> "]),
        ];
        for (kind, content, parts) in cases {
            let path = folder.path().join("a");
            std::fs::write(&path, content).unwrap();
            let error = (sink(kind, folder.path(), "a").make)().err().unwrap().message;
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            assert_eq!(names(folder.path()), ["a"]);
        }
    }

    #[test]
    fn parquet_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = only(bind(&Parquet, folder.path(), "path: a.parquet\nmode: append").err().unwrap());
        assert_eq!(error.code, "E0606");
        assert!(error.message.contains("nothing can be appended"), "{error}");
        assert!(error.help.as_deref().is_some_and(|help| help.contains("its own file")), "{error}");
        let error = bind(&Csv, folder.path(), "path: a.csv\nmode: append\noverwrite: false").err().unwrap();
        assert!(only(error).help.unwrap().contains("overwrite"));
        assert!(bind(&Csv, folder.path(), "path: a.csv\nmode: add").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Runs with a state that are killed anywhere and continued from any recorded token, or from none.
        #[test]
        fn rows_of_killed_runs_are_there_once(
            runs in prop::collection::vec(prop::collection::vec((1usize..4, any::<bool>(), any::<bool>()), 1..8), 1..4),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let bound = sink(&Csv, folder.path(), "a.csv");
            let durable = bound.durable.as_ref().unwrap();
            let (mut expected, mut next) = (Vec::new(), 0);
            for run in runs {
                let (first, mut recorded, mut token) = (next, next, None::<Vec<u8>>);
                let mut sink = durable(None).unwrap();
                for (rows, is_recorded, is_killed) in run {
                    for _ in 0..rows {
                        write(sink.as_mut(), &format!("k{next}"));
                        next += 1;
                    }
                    if is_recorded {
                        token = sink.token().unwrap();
                        sink.flush().unwrap()().unwrap();
                        recorded = next;
                    }
                    if is_killed {
                        drop(sink);
                        sink = durable(token.as_deref()).unwrap();
                        next = if token.is_some() { recorded } else { first };
                    }
                }
                sink.close().unwrap();
                expected.extend((first..next).map(|n| format!("k{n},1\n")));
            }
            let text = std::fs::read_to_string(folder.path().join("a.csv")).unwrap();
            prop_assert_eq!(text, format!("key,n\n{}", expected.concat()));
            prop_assert_eq!(names(folder.path()), ["a.csv"]);
        }
    }
}
