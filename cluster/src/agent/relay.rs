//! Output of the processes of runs, by line, until the controller has it. Bounded: excess lines are counted and dropped.
use crate::api::LogLine;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lines that wait for a heartbeat.
const MOST_LINES: usize = 500;
/// Bytes of them.
const MOST_BYTES: usize = 256 << 10;
/// Bytes of a line; the rest of a longer one is left out.
const LONGEST: u64 = 4 << 10;

/// See the module.
#[derive(Clone, Default)]
pub(super) struct Relay(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    lines: VecDeque<LogLine>,
    bytes: usize,
    left_out: u64,
}

impl Waiting {
    fn shrink(&mut self) {
        while self.lines.len() > MOST_LINES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.line.len().min(self.bytes);
            self.left_out += 1;
        }
    }
}

impl Relay {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line of the process that has the stages of a worker of the plan of a run.
    pub(super) fn say(&self, run: &str, role: &str, line: &str) {
        let LineParts { time, level, stage, text } = said(line);
        let time = time.map_or_else(tidemill_app::machine::now, |time| as_events(&time));
        let line = LogLine {
            run: run.to_owned(),
            role: Some(role.to_owned()),
            time: Some(time),
            level,
            stages: stage.into_iter().collect(),
            ..LogLine::saying(&text)
        };
        let mut waiting = self.lock();
        waiting.bytes += line.line.len();
        waiting.lines.push_back(line);
        waiting.shrink();
    }

    /// Says all lines that come, until nothing more does.
    pub(super) fn all(&self, from: impl Read, run: &str, role: &str) {
        each_line(from, |line| self.say(run, role, line));
    }

    /// Takes the lines since the last call.
    pub(super) fn take(&self) -> Vec<LogLine> {
        let mut waiting = self.lock();
        let Waiting { lines, left_out, .. } = std::mem::take(&mut *waiting);
        let mut lines: Vec<LogLine> = lines.into();
        if let Some(first) = lines.first().filter(|_| left_out > 0) {
            let text =
                format!("{left_out} lines before this one are left out, because there were too many at once");
            let LogLine { run, role, time, .. } = first.clone();
            lines.insert(0, LogLine { run, role, time, ..LogLine::saying(&text) });
        }
        lines
    }

    /// Lines that the controller did not take.
    pub(super) fn again(&self, lines: Vec<LogLine>) {
        let mut waiting = self.lock();
        for line in lines.into_iter().rev() {
            waiting.bytes += line.line.len();
            waiting.lines.push_front(line);
        }
        waiting.shrink();
    }
}

/// A time as events have it: `2026-01-31T10:00:00.5Z` is `2026-01-31 10:00:00 UTC`.
fn as_events(time: &str) -> String {
    let seconds = time.trim_end_matches('Z').split('.').next().unwrap_or_default();
    format!("{} UTC", seconds.replacen('T', " ", 1))
}

/// The parts of a line.
#[derive(Debug, Default, PartialEq, Eq)]
struct LineParts {
    time: Option<String>,
    level: Option<String>,
    stage: Option<String>,
    text: String,
}

/// Levels of a line.
const LEVELS: [&str; 5] = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];
/// Fields by which a line names its stage.
const NAMES: [&str; 2] = ["stage", "operator"];

/// Parses a line of this program's log, in both of its forms: `2026-01-31T10:00:00.5Z  WARN place: text stage="speech"`, or one object of
/// JSON (`--log-format json`). Any other line is text as a whole.
fn said(line: &str) -> LineParts {
    of_json(line)
        .or_else(|| of_text(line))
        .unwrap_or_else(|| LineParts { text: line.to_owned(), ..LineParts::default() })
}

fn of_json(line: &str) -> Option<LineParts> {
    let value: serde_json::Value = serde_json::from_str(line.starts_with('{').then_some(line)?).ok()?;
    let of = |key: &str| value.get(key).and_then(serde_json::Value::as_str);
    let (time, level) = (of("timestamp")?, of("level")?);
    let fields = value.get("fields")?.as_object()?;
    let in_words =
        |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let stage = NAMES.iter().find_map(|name| fields.get(*name)).map(in_words);
    let mut text = format!("{}: ", of("target").unwrap_or_default());
    text += fields.get("message").and_then(serde_json::Value::as_str).unwrap_or_default();
    for (name, value) in fields.iter().filter(|(name, _)| *name != "message") {
        text += &format!(" {name}={}", in_words(value));
    }
    let is_level = LEVELS.contains(&level);
    is_level.then(|| LineParts { time: Some(time.to_owned()), level: Some(level.to_owned()), stage, text })
}

fn of_text(line: &str) -> Option<LineParts> {
    let parts = line.split_once(' ').and_then(|(time, rest)| {
        let (level, text) = rest.trim_start().split_once(' ')?;
        let is_time = time.len() >= 20 && time.ends_with('Z') && time.as_bytes().get(10) == Some(&b'T');
        let is_level = LEVELS.contains(&level);
        (is_time && is_level).then_some((time, level, text.trim_start()))
    });
    let (time, level, text) = parts?;
    let named = NAMES.iter().find_map(|name| {
        let rest = text.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?;
        let name = rest.trim_matches(|c: char| c == '"' || c == ',');
        (!name.is_empty()).then(|| name.to_owned())
    });
    Some(LineParts {
        time: Some(time.to_owned()),
        level: Some(level.to_owned()),
        stage: named,
        text: text.to_owned(),
    })
}

/// Lines without their ends; of one that is too long, the beginning.
fn each_line(from: impl Read, mut take: impl FnMut(&str)) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    let mut is_rest = false;
    loop {
        line.clear();
        match (&mut from).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let is_whole = line.ends_with(b"\n");
        if !is_rest {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            match (text.is_empty(), is_whole || (line.len() as u64) < LONGEST) {
                (true, _) => {}
                (false, true) => take(text),
                (false, false) => take(&format!(
                    "{text} … (the rest of this line is left out: it is longer than {} KiB)",
                    LONGEST >> 10
                )),
            }
        }
        is_rest = !is_whole;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_how_important_and_of_which_stage_it_is() {
        let line = "2026-11-23T20:15:00.123456Z  WARN tidemill_engine::node: the model panicked: no operator=speech rows=8";
        let found = said(line);
        assert_eq!(
            (found.time.as_deref(), found.level.as_deref(), found.stage.as_deref()),
            (Some("2026-11-23T20:15:00.123456Z"), Some("WARN"), Some("speech"))
        );
        assert!(found.text.starts_with("tidemill_engine::node: the model panicked"), "{found:?}");
        assert_eq!(found.time.as_deref().map(as_events).as_deref(), Some("2026-11-23 20:15:00 UTC"));
        let line = r#"{"timestamp":"2026-11-23T20:15:00.1Z","level":"WARN","fields":{"message":"it panicked","operator":"speech","rows":8},"target":"node"}"#;
        let found = said(line);
        assert_eq!((found.level.as_deref(), found.stage.as_deref()), (Some("WARN"), Some("speech")));
        assert_eq!(found.text, "node: it panicked operator=speech rows=8");
        for plain in [
            "thread 'main' panicked at src/main.rs:1:1:",
            "",
            "error: no",
            "2026-11-23T20:15:00.123456Z",
            "{\"a\": 1}",
        ] {
            assert_eq!(said(plain), LineParts { text: plain.to_owned(), ..LineParts::default() });
        }
    }

    #[test]
    fn whatever_a_process_writes_is_lines_of_a_bounded_length() {
        let long = "x".repeat(3 * LONGEST as usize);
        let text = format!("one\r\n\n{long}\ntwo\n\u{fffd}three");
        let mut found = Vec::new();
        each_line(text.as_bytes(), |line| found.push(line.to_owned()));
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(
            (found[0].as_str(), found[2].as_str(), found[3].as_str()),
            ("one", "two", "\u{fffd}three")
        );
        assert!(found[1].len() < LONGEST as usize + 80);
        assert!(found[1].ends_with("x … (the rest of this line is left out: it is longer than 4 KiB)"));
        each_line(&b"\xff\xfe\n"[..], |line| assert_eq!(line, "\u{fffd}\u{fffd}"));
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let relay = Relay::default();
        (0..2 * MOST_LINES).for_each(|n| relay.say("night", "edge", &n.to_string()));
        let taken = relay.take();
        assert_eq!(taken.len(), MOST_LINES + 1);
        assert_eq!(
            taken[0].line,
            format!("{MOST_LINES} lines before this one are left out, because there were too many at once")
        );
        assert_eq!((taken[1].line.as_str(), taken[1].role.as_deref()), ("500", Some("edge")));
        assert!(relay.take().is_empty());
        relay.say("night", "edge", "later");
        relay.again(taken);
        let taken = relay.take();
        assert_eq!(taken.last().map(|line| line.line.as_str()), Some("later"), "the newest stay");
        let long = "x".repeat(LONGEST as usize);
        (0..MOST_LINES).for_each(|_| relay.say("night", "edge", &long));
        let bytes: usize = relay.take().iter().map(|line| line.line.len()).sum();
        assert!((MOST_BYTES / 2..MOST_BYTES + 200).contains(&bytes), "{bytes}");
    }
}
