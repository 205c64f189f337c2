//! `tidemill test`: does a workflow give the rows that its tests expect?
use crate::arguments::{OutputForm, TestArguments};
use crate::exit::{Exit, explain};
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_app::workflow_tests::comparison::{Difference, Row, RowsMismatch};
use tidemill_app::workflow_tests::{CountMismatch, Mismatch, Outcome, TestFile, run, update};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::workflow_test::FILE_END;

/// Longest value in a message, in characters.
const SHOWN: usize = 60;

/// Counts of tests.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    /// Tests and files that are wrong.
    wrong: usize,
    updated: usize,
}

/// Runs all tests, in the order of their files.
pub(crate) fn test(arguments: &TestArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    interrupt.is_watched();
    let files = files(&arguments.places)?;
    let mut session = Session { arguments, terminal, interrupt: &interrupt, tally: Tally::default() };
    let mut documents = Vec::new();
    for path in &files {
        documents.push(session.file(path)?);
        if interrupt.is_wanted() {
            return Ok(Exit::Interrupted);
        }
    }
    let Tally { passed, failed, wrong, updated } = session.tally;
    if passed + failed + wrong + updated == 0 {
        let only = arguments.only.as_deref().unwrap_or_default();
        let text = format!("no test has `{only}` in its name");
        return Err(Failure::new(Kind::Usage, text).with_help("leave out `--only` to run all tests").into());
    }
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Json => {
            let document = json!({
                "version": 1, "ok": failed + wrong == 0, "passed": passed, "failed": failed, "wrong": wrong,
                "updated": updated, "files": documents,
            });
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
        OutputForm::Table => {
            let more = |count: usize, what: &str| match count {
                0 => String::new(),
                count => format!(", {count} {what}"),
            };
            let (failed, wrong) = (more(failed, "failed"), more(wrong, "not run"));
            writeln!(out, "{passed} passed{failed}{wrong}{}", more(updated, "updated"))?;
        }
    }
    Ok(match (wrong, failed) {
        (1.., _) => Exit::Configuration,
        (0, 1..) => Exit::No,
        (0, 0) => Exit::Success,
    })
}

struct Session<'a> {
    arguments: &'a TestArguments,
    terminal: &'a Terminal,
    interrupt: &'a Interrupt,
    tally: Tally,
}

impl Session<'_> {
    fn is_table(&self) -> bool {
        self.arguments.output == OutputForm::Table
    }

    /// Runs the tests of a file; returns its part of the answer.
    fn file(&mut self, path: &Path) -> anyhow::Result<Value> {
        let name = path.display().to_string();
        let file = match TestFile::load(path) {
            Ok(file) => file,
            Err(found) => {
                self.tally.wrong += 1;
                let document = json!({"file": name, "findings": &found, "tests": []});
                self.tell(&found.into());
                return Ok(document);
            }
        };
        let (mut listed, mut outcomes) = (Vec::new(), BTreeMap::new());
        for (place, test) in file.tests.tests.iter().enumerate() {
            let wanted = self.arguments.only.as_deref().unwrap_or_default();
            if !test.name.contains(wanted) {
                continue;
            }
            if self.interrupt.is_wanted() {
                break;
            }
            let begun = instant();
            let result = run(&file, test, &|stopper| self.interrupt.ends(stopper));
            let seconds = begun.elapsed().as_secs_f64();
            if self.interrupt.is_wanted() {
                break;
            }
            let what = format!("{name}: {}", test.name);
            match result {
                Ok(outcome) => {
                    listed.push(json!({
                        "name": test.name.value, "ok": outcome.failures.is_empty(), "seconds": seconds,
                        "rows": outcome.rows, "failures": outcome.failures,
                    }));
                    self.outcome(&what, seconds, &outcome)?;
                    outcomes.insert(place, outcome);
                }
                Err(error) => {
                    self.tally.wrong += 1;
                    listed.push(json!({
                        "name": test.name.value, "ok": false, "seconds": seconds, "rows": 0, "failures": [],
                        "findings": findings(&error),
                    }));
                    if self.is_table() {
                        writeln!(crate::answer::out(), "WRONG {what}")?;
                    }
                    self.tell(&error);
                }
            }
        }
        if self.arguments.update {
            self.update(&file, &outcomes)?;
        }
        Ok(json!({"file": name, "findings": [], "tests": listed}))
    }

    /// Reports an error; in JSON it is in the answer.
    fn tell(&self, error: &anyhow::Error) {
        if self.is_table() {
            explain(error, self.terminal);
        }
    }

    fn outcome(&mut self, what: &str, seconds: f64, outcome: &Outcome) -> io::Result<()> {
        let is_passed = outcome.failures.is_empty();
        let only_rows = outcome.failures.iter().all(|failure| matches!(failure, Mismatch::Rows(_)));
        let is_updated = self.arguments.update && !is_passed && only_rows;
        let word = match (is_passed, is_updated) {
            (true, _) => "ok   ",
            (false, true) => "NEW  ",
            (false, false) => "FAIL ",
        };
        match (is_passed, is_updated) {
            (true, _) => self.tally.passed += 1,
            (false, true) => self.tally.updated += 1,
            (false, false) => self.tally.failed += 1,
        }
        if !self.is_table() || is_passed && self.terminal.is_quiet() {
            return Ok(());
        }
        let mut out = crate::answer::out();
        let rows = if outcome.rows == 1 { "row" } else { "rows" };
        writeln!(out, "{word} {what} ({} {rows}, {seconds:.2} s)", outcome.rows)?;
        outcome.failures.iter().try_for_each(|failure| told(failure, &mut out))
    }

    fn update(&self, file: &TestFile, outcomes: &BTreeMap<usize, Outcome>) -> anyhow::Result<()> {
        let count = update::write(file, outcomes)?;
        if count > 0 {
            let rows = if count == 1 { "one list of rows" } else { &format!("{count} lists of rows") };
            self.terminal.note(&format!("{}: {rows} replaced", file.path.display()));
        }
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a user waits is real time")]
fn instant() -> Instant {
    Instant::now()
}

/// The findings of an error, as JSON.
fn findings(error: &anyhow::Error) -> Value {
    let (found, failure) = (error.downcast_ref::<Diagnostics>(), error.downcast_ref::<Failure>());
    match (found, failure.and_then(Failure::placed)) {
        (Some(found), _) => json!(found),
        (None, Some(finding)) => json!([finding]),
        (None, None) => json!([{"severity": "error", "message": format!("{error:#}")}]),
    }
}

fn told(failure: &Mismatch, out: &mut dyn Write) -> io::Result<()> {
    match failure {
        Mismatch::Rows(rows) => told_rows(rows, out),
        Mismatch::DeadLetters(count) => told_count(count, "dead letters", out),
        Mismatch::Drops(count) => told_count(count, "drops", out),
        Mismatch::Run { message } => writeln!(out, "  the run failed: {message}"),
    }
}

fn told_count(count: &CountMismatch, what: &str, out: &mut dyn Write) -> io::Result<()> {
    let CountMismatch { id, reason, expected, found, details } = count;
    writeln!(out, "  {id}: {found} {what} `{reason}`, expected {expected}")?;
    details.iter().try_for_each(|detail| writeln!(out, "    {detail}"))
}

fn told_rows(rows: &RowsMismatch, out: &mut dyn Write) -> io::Result<()> {
    let RowsMismatch { id, expected, found, differences, more } = rows;
    writeln!(out, "  {id}: expected {expected} rows, found {found}; these differ:")?;
    for Difference { row, expected, found, columns } in differences {
        let number = row.map(|row| format!(" {row}")).unwrap_or_default();
        match (expected, found) {
            (Some(expected), Some(found)) => {
                writeln!(out, "    row{number} differs in {}", columns.join(", "))?;
                beside(expected, found, columns, out)?;
            }
            (Some(expected), None) => writeln!(out, "    row{number} is missing: {}", shown(expected))?,
            (None, Some(found)) => writeln!(out, "    row{number} is not expected: {}", shown(found))?,
            (None, None) => {}
        }
    }
    if *more > 0 {
        writeln!(out, "    and {more} more")?;
    }
    Ok(())
}

/// Prints two rows below one another, column by column.
fn beside(expected: &Row, found: &Row, columns: &[String], out: &mut dyn Write) -> io::Result<()> {
    let mut lines = ["               ", "      expected ", "      found    "].map(str::to_owned);
    for (name, wanted) in expected {
        let mark = if columns.contains(name) { "*" } else { "" };
        let cells = [format!("{mark}{name}"), value(wanted), value(found.get(name).unwrap_or(&Value::Null))];
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        for (line, cell) in lines.iter_mut().zip(&cells) {
            line.push_str(&format!("{cell:width$}  "));
        }
    }
    lines.iter().try_for_each(|line| writeln!(out, "{}", line.trim_end()))
}

fn shown(row: &Map<String, Value>) -> String {
    let cells: Vec<String> = row.iter().map(|(name, cell)| format!("{name}: {}", value(cell))).collect();
    format!("{{{}}}", cells.join(", "))
}

fn value(value: &Value) -> String {
    tidemill_operators::values::shortened(&value.to_string(), SHOWN)
}

/// The files of these places: named files, and those in folders by their name.
fn files(places: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for place in places {
        if !place.is_dir() {
            files.push(place.clone());
            continue;
        }
        let before = files.len();
        search(place, &mut files).map_err(|error| {
            Failure::new(Kind::Missing, format!("cannot read the folder `{}`: {error}", place.display()))
        })?;
        if files.len() == before {
            let text = format!("there is no file *{FILE_END} in `{}` or below", place.display());
            let help = "write one beside the workflow: `workflow: workflow.yaml` and `tests: [...]` (docs/testing.md)";
            return Err(Failure::new(Kind::Missing, text).with_help(help));
        }
    }
    Ok(files)
}

/// Adds the files with tests of a folder, by name, then those of its folders. Hidden folders and links to folders are left out.
fn search(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut folders = Vec::new();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = match folder == Path::new(".") {
            true => PathBuf::from(entry.file_name()),
            false => entry.path(),
        };
        if entry.file_type()?.is_dir() {
            folders.extend((!name.starts_with('.')).then_some(path));
        } else if name.ends_with(FILE_END) && name.len() > FILE_END.len() {
            files.push(path);
        }
    }
    folders.iter().try_for_each(|folder| search(folder, files))
}
