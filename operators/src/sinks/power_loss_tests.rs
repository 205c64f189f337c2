//! Checks that promises survive a power loss at any moment. The folder of a sink is recorded while it writes, is killed,
//! continues and is closed. For each moment all possible remains, or a sample, are checked and continued.
use super::survival_tests::{CSV, JSONL, PARQUET, Subject};
use super::test::{answers, bind};
use crate::api::{BoundSink, Sink};
use crate::testing::batch;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tidemill_disk::Watch;

/// Outcomes checked per moment.
const MOST: usize = 32;

/// Expected content.
#[derive(Debug, Clone)]
enum Thought {
    /// With this token (`None`: nothing was recorded) it continues after this number of rows.
    Recorded { token: Option<Vec<u8>>, rows: usize },
    /// It is closed, and readers find this number of rows.
    Closed { token: Vec<u8>, recorded: usize, rows: usize },
}

fn key(number: usize) -> String {
    format!("k{number}\"\n,")
}

fn keys(rows: usize) -> Vec<String> {
    (0..rows).map(key).collect()
}

fn bound(subject: &Subject, folder: &Path, options: &str) -> BoundSink {
    bind(subject.kind, folder, &format!("path: out/{}\n{options}", subject.name)).unwrap()
}

fn write(sink: &mut dyn Sink, key: &str) {
    sink.write(&batch(&answers(), &[json!({"key": key, "n": 1})])).unwrap();
    sink.commit(1).unwrap();
}

/// A run over two processes: the first one is killed after its second checkpoint, with unrecorded rows.
fn life(subject: &Subject, folder: &Path, watch: &Watch) -> Vec<Thought> {
    let bound = bound(subject, folder, "");
    let open = |token: Option<&[u8]>| bound.durable.as_ref().unwrap()(token).unwrap();
    let mut thoughts = vec![Thought::Recorded { token: None, rows: 0 }];
    let (mut sink, mut rows, mut recorded, mut last) = (open(None), 0, 0, Vec::new());
    for checkpoint in 0..4 {
        for _ in 0..3 {
            write(sink.as_mut(), &key(rows));
            rows += 1;
        }
        let (token, flush) = (sink.token().unwrap().unwrap(), sink.flush().unwrap());
        let told = rows;
        // Becomes visible while the checkpoint is written.
        write(sink.as_mut(), &key(rows));
        rows += 1;
        flush().unwrap();
        (last, recorded) = (token, told);
        thoughts.push(Thought::Recorded { token: Some(last.clone()), rows: recorded });
        watch.think(thoughts.len() - 1);
        if checkpoint == 1 {
            write(sink.as_mut(), &key(rows));
            drop(sink);
            sink = open(Some(&last));
            rows = recorded;
        }
    }
    sink.close().unwrap();
    thoughts.push(Thought::Closed { token: last, recorded, rows });
    watch.think(thoughts.len() - 1);
    thoughts
}

/// Returns the error in the remains of a power loss.
fn check(subject: &Subject, folder: &Path, thought: &Thought) -> Result<(), String> {
    let path = folder.join("out").join(subject.name);
    let (token, recorded) = match thought {
        Thought::Recorded { token, rows } => (token.as_deref(), *rows),
        Thought::Closed { token, recorded, rows } => {
            if !path.exists() {
                return Err("the file is gone".to_owned());
            }
            let found = (subject.keys)(&path);
            if found != keys(*rows) {
                return Err(format!("{} rows instead of {rows}", found.len()));
            }
            (Some(&token[..]), *recorded)
        }
    };
    let bound = bound(subject, folder, "");
    let mut sink = bound.durable.as_ref().unwrap()(token).map_err(|error| error.message)?;
    write(sink.as_mut(), &key(recorded));
    sink.close().map_err(|error| error.message)?;
    let found = (subject.keys)(&path);
    match found == keys(recorded + 1) {
        true => Ok(()),
        false => Err(format!("continued behind {recorded} rows, {} are there", found.len() - 1)),
    }
}

/// Checks all possible remains of a power loss; returns their number.
fn check_all(subject: &Subject, watch: &Watch, thoughts: &[Thought], most: usize) -> Result<usize, String> {
    let losses = watch.losses(most);
    for loss in &losses {
        let place = tempfile::tempdir().unwrap();
        loss.image.write_to(place.path()).unwrap();
        let thought = &thoughts[loss.thought];
        let checked = catch_unwind(AssertUnwindSafe(|| check(subject, place.path(), thought)));
        let checked = checked.unwrap_or_else(|_| Err("it cannot be read".to_owned()));
        checked.map_err(|error| {
            format!(
                "{}, before operation {}: {error}: {thought:?}: {:?}",
                subject.name,
                loss.operation,
                loss.image.listing()
            )
        })?;
    }
    Ok(losses.len())
}

#[test]
fn rows_that_a_checkpoint_knows_survive_a_loss_of_power() {
    for subject in [&JSONL, &CSV, &PARQUET] {
        let folder = tempfile::tempdir().unwrap();
        let watch = Watch::begin(folder.path()).unwrap();
        let thoughts = life(subject, folder.path(), &watch);
        let looked_at = check_all(subject, &watch, &thoughts, MOST).unwrap();
        println!("{}: {looked_at} losses of power", subject.name);
        assert!(looked_at > 50, "{looked_at}");
    }
}

/// A journal that is rebuilt from the finished file has all rows, or does not exist: the next run would take zeros for its
/// rows.
#[test]
fn a_journal_that_is_made_again_survives_a_loss_of_power() {
    let folder = tempfile::tempdir().unwrap();
    let bound = bound(&PARQUET, folder.path(), "");
    let open = |token: Option<&[u8]>| bound.durable.as_ref().unwrap()(token).unwrap();
    let mut sink = open(None);
    (0..200).for_each(|row| write(sink.as_mut(), &key(row)));
    let token = sink.token().unwrap().unwrap();
    sink.close().unwrap();
    drop(sink);
    let watch = Watch::begin(folder.path()).unwrap();
    let thoughts = [Thought::Recorded { token: Some(token.clone()), rows: 200 }];
    let mut sink = open(Some(&token));
    watch.think(0);
    write(sink.as_mut(), &key(200));
    watch.think(0);
    let looked_at = check_all(&PARQUET, &watch, &thoughts, MOST).unwrap();
    assert!(looked_at > 20, "{looked_at}");
}

#[test]
fn a_forgotten_sync_of_a_sink_would_be_noticed() {
    for subject in [&JSONL, &CSV, &PARQUET] {
        for forget in [Watch::forget_files, Watch::forget_folders] {
            let folder = tempfile::tempdir().unwrap();
            let watch = Watch::begin(folder.path()).unwrap();
            forget(&watch);
            let thoughts = life(subject, folder.path(), &watch);
            let error = check_all(subject, &watch, &thoughts, MOST).expect_err("nobody waited for the disk");
            println!("{error}");
        }
    }
}

/// Without a state, and without checkpoints: a file that exists when a run has ended stays, whatever happens then.
#[test]
fn a_file_that_was_closed_survives_a_loss_of_power() {
    for subject in [&JSONL, &CSV, &PARQUET] {
        let folder = tempfile::tempdir().unwrap();
        let watch = Watch::begin(folder.path()).unwrap();
        let mut closed = 0;
        for run in 1..3 {
            let mut sink = (bound(subject, folder.path(), "").make)().unwrap();
            (0..run).for_each(|row| write(sink.as_mut(), &key(row)));
            sink.close().unwrap();
            closed = run;
            watch.think(closed);
        }
        for loss in watch.losses(MOST).iter().filter(|loss| loss.thought == closed) {
            let place = tempfile::tempdir().unwrap();
            loss.image.write_to(place.path()).unwrap();
            let path = place.path().join("out").join(subject.name);
            assert!(path.exists(), "{}: {:?}", subject.name, loss.image.listing());
            assert_eq!((subject.keys)(&path), keys(closed), "{}", subject.name);
        }
    }
}

/// `mode: append`: the rows of closed runs are there once; those of an unclosed one are gone after the next run.
#[test]
fn appended_rows_of_closed_runs_survive_a_loss_of_power() {
    for subject in [&JSONL, &CSV] {
        let folder = tempfile::tempdir().unwrap();
        let watch = Watch::begin(folder.path()).unwrap();
        let options = "mode: append";
        // Rows of closed runs, and whether one is just being closed.
        let mut thoughts = vec![(0, 0)];
        let (mut closed, mut next) = (0, 0);
        for run in 0..3 {
            let mut sink = (bound(subject, folder.path(), options).make)().unwrap();
            for _ in 0..2 {
                write(sink.as_mut(), &key(next));
                next += 1;
            }
            if run == 1 {
                // Killed: the next one writes its rows again.
                drop(sink);
                next = closed;
                continue;
            }
            thoughts.push((closed, next));
            watch.think(thoughts.len() - 1);
            sink.close().unwrap();
            closed = next;
            thoughts.push((closed, closed));
            watch.think(thoughts.len() - 1);
        }
        let losses = watch.losses(MOST);
        assert!(losses.len() > 50, "{}", losses.len());
        for loss in &losses {
            let place = tempfile::tempdir().unwrap();
            loss.image.write_to(place.path()).unwrap();
            let (before, after) = thoughts[loss.thought];
            let told = || format!("{} {before} or {after}: {:?}", subject.name, loss.image.listing());
            // A file with inode numbers of another disk: the marks must name the file in its place.
            let path = place.path().join("out").join(subject.name);
            renumber(&path);
            let opened = (bound(subject, place.path(), options).make)();
            let mut sink = opened.unwrap_or_else(|error| panic!("{error}: {}", told()));
            sink.close().unwrap();
            let found = (subject.keys)(&path);
            assert!(found == keys(before) || found == keys(after), "{} rows, {}", found.len(), told());
        }
    }
}

/// The mark of a file names it by its device and inode number, which a copy does not have.
fn renumber(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    let mark = path.with_file_name(format!(".{}.appending", path.file_name().unwrap().to_string_lossy()));
    let (Ok(found), Ok(text)) = (path.metadata(), std::fs::read(&mark)) else { return };
    let Ok(mut begun) = serde_json::from_slice::<serde_json::Value>(&text) else { return };
    begun["device"] = found.dev().into();
    begun["inode"] = found.ino().into();
    std::fs::write(&mark, begun.to_string()).unwrap();
}
