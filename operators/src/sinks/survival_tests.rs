//! Checks that committed rows survive their process: sinks are dropped in the middle and continued with the last recorded
//! token.
use super::checking::check;
use super::test::{answers, bind};
use super::{csv::Csv, jsonl::Jsonl, parquet::Parquet, stdout::Stdout};
use crate::api::{BoundSink, Sink};
use crate::kind::SinkKind;
use crate::testing::batch;
use arrow_array::cast::AsArray;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A kind of sink and how its files are read.
pub(super) struct Subject {
    pub(super) kind: &'static dyn SinkKind,
    pub(super) name: &'static str,
    /// File with the rows before the end.
    content: &'static str,
    pub(super) keys: fn(&Path) -> Vec<String>,
}

pub(super) const JSONL: Subject = Subject {
    kind: &Jsonl,
    name: "a.jsonl",
    content: "a.jsonl",
    keys: |path| {
        let text = std::fs::read_to_string(path).expect("it is there");
        assert!(text.is_empty() || text.ends_with('\n'));
        let key = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).expect("whole")["key"]
                .as_str()
                .expect("text")
                .to_owned()
        };
        text.lines().map(key).collect()
    },
};

pub(super) const CSV: Subject = Subject {
    kind: &Csv,
    name: "a.csv",
    content: "a.csv",
    keys: |path| {
        let mut reader = csv::Reader::from_path(path).expect("it is there");
        assert_eq!(reader.headers().expect("a header"), vec!["key", "n"]);
        reader.records().map(|row| row.expect("whole")[0].to_owned()).collect()
    },
};

pub(super) const PARQUET: Subject = Subject {
    kind: &Parquet,
    name: "a.parquet",
    content: ".a.parquet.rows",
    keys: |path| {
        let file = File::open(path).expect("it is there");
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(file).expect("whole").build().expect("readable");
        let keys = |batch: arrow_array::RecordBatch| {
            let keys = batch.column_by_name("key").expect("a column").as_string::<i32>().clone();
            keys.iter().map(|key| key.expect("not null").to_owned()).collect::<Vec<_>>()
        };
        reader.flat_map(|batch| keys(batch.expect("readable"))).collect()
    },
};

/// A run of a sink over several processes.
struct Trial<'a> {
    subject: &'a Subject,
    folder: tempfile::TempDir,
    bound: BoundSink,
    sink: Box<dyn Sink>,
    token: Vec<u8>,
    /// Number of keys so far; of the recorded ones, of the committed ones.
    keys: Vec<String>,
    recorded: usize,
    committed: usize,
    next: usize,
    /// Length of the content at the last token.
    length: u64,
}

impl<'a> Trial<'a> {
    fn new(subject: &'a Subject, options: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let bound = bind(subject.kind, folder.path(), &format!("path: out/{}\n{options}", subject.name))
            .expect("valid");
        let sink = bound.durable.as_ref().expect("durable")(None).expect("writable");
        let (token, keys) = (Vec::new(), Vec::new());
        let mut trial =
            Self { subject, folder, bound, sink, token, keys, recorded: 0, committed: 0, next: 0, length: 0 };
        trial.record();
        trial
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("out").join(name)
    }

    fn content(&self) -> PathBuf {
        self.path(self.subject.content)
    }

    fn content_length(&self) -> u64 {
        self.content().metadata().map_or(0, |found| found.len())
    }

    fn write(&mut self, rows: usize) {
        let keys: Vec<String> = (0..rows).map(|i| format!("{}\"\n,", self.next + i)).collect();
        let values: Vec<_> = keys.iter().map(|key| json!({"key": key, "n": 1})).collect();
        self.sink.write(&batch(&answers(), &values)).expect("written");
        self.next += rows;
        self.keys.extend(keys);
    }

    fn commit(&mut self) {
        self.sink.commit(1).expect("committed");
        self.committed = self.keys.len();
    }

    /// Records a checkpoint while `rows` rows become visible.
    fn record_during(&mut self, rows: usize) {
        let token = self.sink.token().expect("written").expect("a file");
        let (recorded, length) = (self.committed, self.content_length());
        let flush = self.sink.flush().expect("a file");
        if rows > 0 {
            self.write(rows);
            self.commit();
        }
        flush().expect("durable");
        (self.token, self.recorded, self.length) = (token, recorded, length);
    }

    fn record(&mut self) {
        self.record_during(0);
    }

    /// Ends the process without cleaning up.
    fn kill(&mut self) {
        struct Gone;
        impl Sink for Gone {
            fn write(&mut self, _: &arrow_array::RecordBatch) -> Result<(), crate::api::OperatorError> {
                unreachable!()
            }
            fn commit(&mut self, _: u64) -> Result<(), crate::api::OperatorError> {
                unreachable!()
            }
            fn rollback(&mut self) -> Result<(), crate::api::OperatorError> {
                unreachable!()
            }
            fn close(&mut self) -> Result<(), crate::api::OperatorError> {
                unreachable!()
            }
            fn exactly_once(&self) -> bool {
                unreachable!()
            }
        }
        self.sink = Box::new(Gone);
    }

    fn try_resume(&self) -> Result<Box<dyn Sink>, String> {
        self.bound.durable.as_ref().expect("durable")(Some(&self.token)).map_err(|error| error.message)
    }

    fn resume(&mut self) {
        self.sink = self.try_resume().expect("it can be continued");
        self.keys.truncate(self.recorded);
        (self.committed, self.length) = (self.recorded, self.content_length());
        if self.subject.content == self.subject.name {
            assert_eq!((self.subject.keys)(&self.content()), self.keys);
        }
    }

    fn step(&mut self, step: u8, n: usize) {
        match step {
            0..4 => self.write(n % 5),
            4 | 5 => self.commit(),
            6 => {
                self.sink.rollback().expect("forgotten");
                self.keys.truncate(self.committed);
            }
            7 => self.record(),
            8 => self.record_during(n % 3),
            9 => {
                // A partial write, and the remains of a sink that could not clean up.
                self.kill();
                let mut content = OpenOptions::new().append(true).open(self.content()).expect("there");
                content.write_all(&vec![[0xff, b'\n', 0, b'{'][n % 4]; n]).expect("written");
                if self.subject.content != self.subject.name {
                    std::fs::write(self.path(&format!(".{}.lock", self.subject.name)), "").expect("written");
                }
                self.resume();
            }
            10 => {
                // The machine loses unsynced data.
                self.kill();
                let kept = self.length + n as u64 * (self.content_length() - self.length) / 40;
                let content = OpenOptions::new().write(true).open(self.content()).expect("there");
                content.set_len(kept).expect("cut");
                self.resume();
            }
            11 => {
                self.sink.suspend().expect("suspended");
                self.kill();
                self.resume();
            }
            12 => {
                // Closed, but not recorded.
                self.sink.close().expect("closed");
                self.kill();
                self.resume();
            }
            _ => {
                // Killed in the middle of `close`.
                let content = std::fs::read(self.content()).expect("there");
                self.sink.close().expect("closed");
                self.kill();
                std::fs::write(self.content(), content).expect("written");
                self.resume();
            }
        }
    }

    fn end(mut self) {
        self.sink.close().expect("closed");
        self.keys.truncate(self.committed);
        assert_eq!((self.subject.keys)(&self.path(self.subject.name)), self.keys);
        let left = std::fs::read_dir(self.folder.path().join("out")).expect("a folder");
        assert_eq!(left.count(), 1, "no temporaries");
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, usize)>> {
    prop::collection::vec((0u8..14, 0usize..40), 1..30)
}

fn survives(subject: &Subject, steps: Vec<(u8, usize)>) {
    let mut trial = Trial::new(subject, "overwrite: false");
    for (step, n) in steps {
        trial.step(step, n);
    }
    trial.end();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 16))]

    #[test]
    fn jsonl_is_never_doubled_and_never_short(steps in steps()) {
        survives(&JSONL, steps);
    }

    #[test]
    fn csv_is_never_doubled_and_never_short(steps in steps()) {
        survives(&CSV, steps);
    }

    #[test]
    fn parquet_is_never_doubled_and_never_short(steps in steps()) {
        survives(&PARQUET, steps);
    }
}

/// A sink with two recorded rows whose process is gone.
fn killed<'a>(subject: &'a Subject) -> Trial<'a> {
    let mut trial = Trial::new(subject, "");
    trial.write(2);
    trial.commit();
    trial.record();
    trial.kill();
    trial
}

#[test]
fn what_is_lost_is_told_with_what_to_do() {
    for subject in [&JSONL, &CSV, &PARQUET] {
        let lost = |damage: &dyn Fn(&Path), found: &str| {
            let trial = killed(subject);
            damage(&trial.content());
            let error = trial.try_resume().err().expect("it is lost");
            for part in [subject.name, "committed", found, "restore the file", "tidemill state reset"] {
                assert!(error.contains(part), "{part}: {error}");
            }
        };
        let is_text = subject.content == subject.name;
        let cut = |path: &Path| {
            OpenOptions::new().write(true).open(path).expect("there").set_len(3).expect("cut");
        };
        lost(&cut, if is_text { "only 3" } else { "has 0 of them" });
        let removed = |path: &Path| std::fs::remove_file(path).expect("there");
        lost(&removed, if is_text { "the file is gone" } else { "has 0 of them" });
        if is_text {
            let folder = |path: &Path| {
                std::fs::remove_file(path).expect("there");
                std::fs::create_dir(path).expect("made");
            };
            lost(&folder, "a folder in its place");
            let pipe = |path: &Path| {
                use rustix::fs::{CWD, FileType, Mode, mknodat};
                std::fs::remove_file(path).expect("there");
                mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("made");
            };
            lost(&pipe, "a pipe or a device");
        }
    }
}

/// Flips any bit of the rows that only the engine reads: the run is refused, or all rows are right.
#[test]
fn mutated_rows_of_a_parquet_file_are_refused_before_they_are_used() {
    let wanted = std::env::var("TIDEMILL_MUTATIONS").ok().and_then(|count| count.parse().ok());
    let mut random = tidemill_random::Random::of_seed(8);
    let mut trial = Trial::new(&PARQUET, "");
    for rows in [3, 4, 2] {
        trial.write(rows);
        trial.commit();
    }
    trial.record();
    // After the recorded part.
    trial.write(2);
    trial.commit();
    trial.kill();
    let whole = std::fs::read(trial.content()).unwrap();
    let mut refused = 0;
    for _ in 0..wanted.unwrap_or(300) {
        let mut bytes = whole.clone();
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes[at..].fill(0),
            _ => bytes[at] ^= 1 << random.below(8),
        }
        std::fs::write(trial.content(), &bytes).unwrap();
        let checked = check(&trial.bound, Some(&trial.token));
        match trial.try_resume() {
            Err(message) => {
                assert!(crate::sinks::has_lost_rows(&message), "{message}");
                assert_eq!(checked.unwrap_err().message, message);
                refused += 1;
            }
            Ok(mut sink) => {
                checked.unwrap();
                sink.close().unwrap();
                assert_eq!((PARQUET.keys)(&trial.path("a.parquet")), trial.keys[..trial.recorded]);
                std::fs::remove_file(trial.path("a.parquet")).unwrap();
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

/// Damage during the run is reported at its end, and no message says that the rows are kept.
#[test]
fn rows_that_are_damaged_before_the_end_are_in_no_file() {
    for cut in [true, false] {
        let mut trial = Trial::new(&PARQUET, "");
        trial.write(3);
        trial.commit();
        let mut bytes = std::fs::read(trial.content()).unwrap();
        let (last, middle) = (bytes.len() - 1, bytes.len() - 9);
        if cut {
            bytes.truncate(last);
        } else {
            bytes[middle] ^= 1;
        }
        std::fs::write(trial.content(), &bytes).unwrap();
        let message = trial.sink.close().unwrap_err().message;
        assert!(message.contains("is damaged") && crate::sinks::has_lost_rows(&message), "{message}");
        assert!(!trial.path("a.parquet").exists());
    }
}

#[test]
fn one_process_at_a_time_continues_a_file() {
    for subject in [&JSONL, &CSV, &PARQUET] {
        let mut trial = killed(subject);
        trial.resume();
        let error = trial.try_resume().err().expect("locked");
        assert!(error.contains(&format!("{}` is being written by", subject.name)), "{error}");
        let anew = trial.bound.durable.as_ref().unwrap()(None).err().unwrap();
        assert!(anew.message.contains("is being written by"), "{anew}");
        trial.write(1);
        trial.commit();
        trial.end();
    }
}

#[test]
fn a_token_of_another_kind_is_refused() {
    for (subject, other) in [(&JSONL, &PARQUET), (&PARQUET, &CSV)] {
        let mut trial = killed(subject);
        trial.token = killed(other).token.clone();
        let error = trial.try_resume().err().unwrap();
        assert!(error.contains("another kind of file") && error.contains(subject.name), "{error}");
    }
}

#[test]
fn what_has_no_length_is_not_continued() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, options) in [
        (&Stdout as &dyn SinkKind, "format: table"),
        (&Jsonl, "path: '-'"),
        (&Csv, "path: '-'"),
        (&Csv, "path: /dev/null"),
    ] {
        let bound = bind(kind, folder.path(), options).unwrap();
        assert!(bound.durable.is_none(), "{options}");
        assert!((bound.make)().unwrap().token().unwrap().is_none(), "{options}");
    }
}

#[test]
fn a_suspended_parquet_file_shows_nothing_and_another_workflow_does_not_continue_it() {
    let mut trial = Trial::new(&PARQUET, "");
    trial.write(3);
    trial.commit();
    trial.record();
    trial.sink.suspend().unwrap();
    let names: Vec<_> = std::fs::read_dir(trial.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, [".a.parquet.rows"]);
    let continued = |columns: &str| {
        let options = format!("path: out/a.parquet\ncolumns: [{columns}]");
        let bound = bind(&Parquet, trial.folder.path(), &options).unwrap();
        bound.durable.unwrap()(Some(&trial.token)).map_err(|error| error.message)
    };
    assert!(continued("n").err().unwrap().contains("the columns of"));
    // From the finished file too.
    continued("key, n").unwrap().close().unwrap();
    assert!(continued("n").err().unwrap().contains("the columns of"));
    // Not from the file of another run.
    let mut other = (trial.bound.make)().unwrap();
    other.close().unwrap();
    assert!(continued("key, n").err().unwrap().contains("has 0 of them"));
}

#[test]
fn a_parquet_file_that_is_closed_again_is_the_same() {
    let mut trial = Trial::new(&PARQUET, "");
    trial.write(4);
    trial.commit();
    trial.record();
    let content = std::fs::read(trial.content()).unwrap();
    trial.sink.close().unwrap();
    let file = std::fs::read(trial.path("a.parquet")).unwrap();
    for has_journal in [true, false] {
        trial.kill();
        if has_journal {
            std::fs::write(trial.content(), &content).unwrap();
        }
        trial.resume();
        trial.sink.close().unwrap();
        assert!(std::fs::read(trial.path("a.parquet")).unwrap() == file);
        assert!(!trial.content().exists());
    }
}
