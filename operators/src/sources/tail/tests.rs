use super::*;
use crate::api::{DeadLetter, Source, SourcePosition, SourceRead};
use crate::feeds::FeedState;
use crate::record::{EventTime, int64, text};
use crate::sources::test::bind;
use crate::testing::only;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

const LINES: &str = "path: a.log\nformat: lines\ncolumns: {line: text}";

/// A folder with a file that is followed, and its reader.
struct Place {
    folder: tempfile::TempDir,
    source: BoundSource,
    reader: Box<dyn Source>,
    dead: Vec<DeadLetter>,
    /// The newest watermark that was stated.
    stated: EventTime,
}

impl Place {
    fn new(yaml: &str, content: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if let Some(content) = content {
            std::fs::write(folder.path().join("a.log"), content).unwrap();
        }
        let source = bind(&Tail, folder.path(), yaml).unwrap();
        let reader = (source.make)().unwrap();
        Self { folder, source, reader, dead: Vec::new(), stated: EventTime::MIN }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn append(&self, text: &str) -> File {
        let mut file = OpenOptions::new().create(true).append(true).open(self.path("a.log")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    /// Reads until so many lines have come.
    fn lines(&mut self, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.len() < count {
            match self.reader.read(2, usize::MAX).unwrap() {
                SourceRead::Rows { payload, dead_letters, .. } => {
                    let column = text(payload.column(0)).unwrap();
                    lines.extend(column.iter().map(|line| line.unwrap_or("null").to_owned()));
                    self.dead.extend(dead_letters);
                }
                SourceRead::Idle { watermark } => self.stated = self.stated.max(watermark),
                SourceRead::End => panic!("it never ends"),
            }
        }
        lines
    }

    /// Reads once, when nothing is there.
    fn is_silent(&mut self) -> bool {
        matches!(self.reader.read(2, usize::MAX).unwrap(), SourceRead::Idle { .. })
    }

    /// Another reader, as a process that continues has it.
    fn continued(&mut self, position: &SourcePosition) {
        self.reader = (self.source.make)().unwrap();
        self.reader.seek(position).unwrap();
    }

    fn state(&self) -> (FeedState, String) {
        let status = self.source.feeds.as_ref().unwrap().status().remove(0);
        assert_eq!(status.received, status.emitted);
        (status.state, status.detail)
    }
}

#[test]
fn a_line_is_read_when_it_is_whole() {
    let mut place = Place::new(LINES, Some("one\ntwo\nthr"));
    assert_eq!(place.lines(2), ["one", "two"]);
    assert!(place.is_silent());
    let mut writer = place.append("ee");
    assert!(place.is_silent());
    writer.write_all(b"!\n\nfour\n").unwrap();
    assert_eq!(place.lines(2), ["three!", "four"]);
    assert_eq!(place.state(), (FeedState::Live, String::new()));
}

#[test]
fn a_file_that_is_not_there_is_waited_for() {
    let mut place = Place::new(LINES, None);
    assert!(place.is_silent());
    assert_eq!(place.state(), (FeedState::Connecting, "the file does not exist yet".into()));
    assert_eq!(place.reader.position(), SourcePosition::default());
    place.append("one\n");
    assert_eq!(place.lines(1), ["one"]);
}

#[test]
fn a_rotated_file_is_read_to_its_end_and_then_the_new_one() {
    let mut place = Place::new(LINES, Some("1\n2\n"));
    assert_eq!(place.lines(2), ["1", "2"]);
    let mut writer = place.append("3\nhal");
    std::fs::rename(place.path("a.log"), place.path("a.log.1")).unwrap();
    assert_eq!(place.lines(1), ["3"]);
    // Whoever wrote the old one still does while the new one is empty.
    place.append("");
    assert!(place.is_silent());
    writer.write_all(b"f\nlast").unwrap();
    assert_eq!(place.lines(1), ["half"]);
    place.append("new\n");
    assert_eq!(place.lines(2), ["last", "new"], "the last line has no line break");
    assert_eq!(place.source.feeds.as_ref().unwrap().status()[0].connects, 2);
}

#[test]
fn a_truncated_file_is_read_from_its_beginning() {
    let mut place = Place::new(LINES, Some("a long first line\n2\n"));
    assert_eq!(place.lines(2), ["a long first line", "2"]);
    File::create(place.path("a.log")).unwrap().write_all(b"3\n").unwrap();
    assert_eq!(place.lines(1), ["3"]);
    // Also if it is as long as before when it is looked at.
    File::create(place.path("a.log")).unwrap().write_all(b"other\nlines\n").unwrap();
    assert_eq!(place.lines(2), ["other", "lines"]);
}

#[test]
fn a_process_that_continues_finds_the_place() {
    let mut place = Place::new(LINES, Some("1\n2\n3\n4\n"));
    let begin = place.reader.position();
    assert_eq!(place.lines(2), ["1", "2"]);
    let position = place.reader.position();
    assert_eq!(place.lines(2), ["3", "4"]);
    place.continued(&position);
    assert_eq!(place.reader.position(), position);
    assert_eq!(place.lines(2), ["3", "4"]);
    place.continued(&begin);
    assert_eq!(place.lines(2), ["1", "2"]);
    // Rotated while the run was away.
    std::fs::rename(place.path("a.log"), place.path("a.log.1")).unwrap();
    place.append("5\n");
    place.continued(&position);
    assert_eq!(place.reader.position(), position);
    assert_eq!(place.lines(3), ["3", "4", "5"]);
    let wrong = place.reader.seek(&SourcePosition("7".into())).err().unwrap();
    assert_eq!(wrong.to_string(), "`7` is no position in a file that grows");
}

/// The number of a deleted file is used again: the first bytes tell them apart.
#[test]
fn if_the_file_is_gone_the_present_one_is_read_from_its_beginning() {
    let mut place = Place::new(LINES, Some("1\n2\n"));
    assert_eq!(place.lines(2), ["1", "2"]);
    let position = place.reader.position();
    std::fs::remove_file(place.path("a.log")).unwrap();
    place.append("3\n4\n5\n");
    place.continued(&position);
    assert_ne!(place.reader.position(), position, "the run sees that it is another place");
    assert_eq!(place.lines(3), ["3", "4", "5"]);
}

#[test]
fn each_file_of_csv_names_its_columns() {
    let yaml = "path: a.log\nformat: csv\ncolumns: {s: text, n: int64}";
    let mut place = Place::new(yaml, Some("s,"));
    assert!(place.is_silent(), "the names are not whole");
    place.append("n\na,1\nb,\"");
    assert_eq!(place.lines(1), ["a"]);
    assert!(place.is_silent(), "the quote is open");
    place.append("2\"\nc,x\n");
    assert_eq!(place.lines(1), ["b"]);
    std::fs::rename(place.path("a.log"), place.path("b.log")).unwrap();
    place.append("n,s\n3,d\n");
    assert_eq!(place.lines(1), ["d"]);
    let details: Vec<&str> = place.dead.iter().map(|letter| letter.detail.as_str()).collect();
    assert_eq!(details, ["a.log, line 4: column `n`: `x` is not int64"]);
}

#[test]
fn a_line_that_is_too_long_is_one_dead_letter_however_it_comes() {
    let mut place = Place::new(&format!("{LINES}\nmax_line: 10B"), Some("one\n0123456789012345"));
    assert_eq!(place.lines(1), ["one"]);
    assert!(place.is_silent());
    place.append("6789");
    assert!(place.is_silent());
    place.append("\ntwo\n");
    assert_eq!(place.lines(1), ["two"]);
    let reasons: Vec<&str> = place.dead.iter().map(|letter| letter.reason.as_ref()).collect();
    assert_eq!(reasons, ["line_too_long"]);
}

#[test]
fn event_times_follow_the_clock_only_if_that_is_asked_for() {
    let line = "{\"s\": \"a\", \"at\": 1000}\n";
    let yaml = "path: a.log\ncolumns: {s: text, at: int64}\nevent_time: at";
    let mut place = Place::new(yaml, Some(line));
    assert_eq!(place.lines(1), ["a"]);
    assert!(place.is_silent());
    assert_eq!(place.stated, EventTime::MIN);
    let mut place = Place::new(&format!("{yaml}\nidle: 100ms"), Some(line));
    assert_eq!(place.lines(1), ["a"]);
    while place.stated == EventTime::MIN {
        let SourceRead::Idle { watermark } = place.reader.read(1, 1).unwrap() else { panic!() };
        place.stated = watermark;
    }
    assert!(place.stated > 1_700_000_000_000_000);
    // The newest time is known in the next file.
    assert!(place.reader.position().0.ends_with(":newest=1000000"), "{:?}", place.reader.position());
}

#[test]
fn jsonl_is_the_default_and_its_first_record_does_not_wait_for_the_second() {
    let yaml = "path: a.log\ncolumns: {n: int64, at: int64}\nevent_time: at";
    let mut place = Place::new(yaml, Some("{\"n\": 7, \"at\": 1000}\n"));
    let rows = loop {
        if let SourceRead::Rows { payload, .. } = place.reader.read(9, usize::MAX).unwrap() {
            break payload;
        }
    };
    assert_eq!(int64(rows.column(0)).unwrap().value(0), 7);
}

#[test]
fn wrong_options_are_refused_with_what_to_write() {
    for (yaml, message) in [
        (
            "path: a\nformat: lines\ncolumns: {n: int64}",
            "with `format: lines` there is one column, of type text",
        ),
        ("path: a\nformat: lines\ncolumns: {a: text, b: text}", "there is one column"),
        ("path: a\nformat: lines\ncolumns: {a: text}\nevent_time: a", "a whole line is no event time"),
        ("path: a\ncolumns: {a: text}\nidle: 1s", "`idle` has no effect without `event_time`"),
        (
            "path: a\ncolumns: {a: text}\nout_of_order: 1s",
            "`out_of_order` has no effect without `event_time`",
        ),
        ("path: .\ncolumns: {a: text}", "is a folder"),
        ("path: /dev/null\ncolumns: {a: text}", "cannot be followed: it is a stream, which is read once"),
    ] {
        let error = only(bind(&Tail, Path::new("."), yaml).err().expect(yaml));
        assert!(error.message.contains(message), "{yaml}: {error}");
        assert!(error.help.is_some());
    }
}
