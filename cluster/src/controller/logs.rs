//! Keeps the newest log lines of runs and of the controller about them, in memory and in the run's folder, where the next process of the
//! controller reads them. Both are bounded; lines are dropped before a run is delayed.
use super::Shared;
use super::sharing::SharedLogs;
use crate::agent::tasks::PREFIX;
use crate::api::LogLine;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_postgres::Lead;

/// Lines of a run that are kept.
const MOST_LINES: usize = 2_000;
/// Bytes of lines of a run that are kept.
const MOST_BYTES: usize = 1 << 20;
/// Size of a file in bytes. A run has two; the older is dropped when the newer is full.
const FILE_BYTES: u64 = 1 << 20;
/// Number of runs with lines in memory. Others are read on request.
const MOST_RUNS: usize = 64;
/// Longest line in bytes: longer ones were not written here.
const LONGEST: usize = 64 << 10;

const NEWER: &str = "log.jsonl";
const OLDER: &str = "log.old.jsonl";

/// See the module.
pub(crate) struct Logs {
    /// Parent of the folders of all runs.
    folder: PathBuf,
    all: Mutex<All>,
    /// Shared storage, if there are several controllers.
    shared: Option<SharedLogs>,
}

#[derive(Default)]
struct All {
    runs: BTreeMap<String, OfRun>,
    /// Use counter, to find the run that is unused for longest.
    uses: u64,
}

#[derive(Default)]
struct OfRun {
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// Number of the last line.
    last: u64,
    file: Option<File>,
    /// Bytes of the newer file.
    written: u64,
    used: u64,
}

/// Approximate memory of a line.
fn bytes_of(line: &LogLine) -> usize {
    line.line.len() + 160
}

impl OfRun {
    /// The lines that are in the folder of a run.
    fn read(folder: &Path) -> Self {
        let mut of = Self::default();
        for name in [OLDER, NEWER] {
            let Ok(file) = File::open(folder.join(name)) else { continue };
            of.written = file.metadata().map_or(0, |metadata| metadata.len());
            // The last line may be incomplete after a kill.
            let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
            let lines = lines.filter(|line| line.len() <= LONGEST);
            lines.filter_map(|line| serde_json::from_slice(&line).ok()).for_each(|line| of.keep(line));
        }
        of
    }

    fn keep(&mut self, line: LogLine) {
        self.last = self.last.max(line.number);
        self.bytes += bytes_of(&line);
        self.lines.push_back(line);
        while self.lines.len() > MOST_LINES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= bytes_of(&oldest).min(self.bytes);
        }
    }

    fn write(&mut self, folder: &Path, lines: &[u8]) -> std::io::Result<()> {
        if self.file.is_some() && self.written >= FILE_BYTES {
            self.file = None;
            fs::rename(folder.join(NEWER), folder.join(OLDER))?;
        }
        if self.file.is_none() {
            let file = OpenOptions::new().create(true).append(true).open(folder.join(NEWER))?;
            self.written = file.metadata()?.len();
            // The previous process may have left an incomplete line.
            self.file.insert(file).write_all(b"\n")?;
        }
        if let Some(file) = &mut self.file {
            file.write_all(lines)?;
            self.written += lines.len() as u64;
        }
        Ok(())
    }
}

impl Logs {
    /// Stores logs in the folder, and in the shared storage if there is one.
    pub(super) fn new(folder: &Path, lead: Option<&Arc<Lead>>) -> Self {
        Self { folder: folder.to_owned(), all: Mutex::default(), shared: lead.map(SharedLogs::new) }
    }

    /// Reads the lines of a run that an earlier process stored.
    fn read(&self, run: &str) -> OfRun {
        match &self.shared {
            Some(shared) => {
                let mut of = OfRun::default();
                shared.read(run).into_iter().for_each(|line| of.keep(line));
                of
            }
            None => OfRun::read(&self.folder.join(run)),
        }
    }

    /// Writes new lines where the next controller finds them. Occasional calls suffice.
    pub(super) fn share(&self) {
        if let Some(shared) = &self.shared {
            shared.write();
        }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of<'a>(&self, all: &'a mut All, run: &str) -> &'a mut OfRun {
        all.uses += 1;
        let uses = all.uses;
        if !all.runs.contains_key(run) && all.runs.len() >= MOST_RUNS {
            let unused = all.runs.iter().min_by_key(|(_, of)| of.used).map(|(name, _)| name.clone());
            unused.map(|name| all.runs.remove(&name));
        }
        let of = all.runs.entry(run.to_owned()).or_insert_with(|| self.read(run));
        of.used = uses;
        of
    }

    /// Stores lines of runs.
    pub(super) fn add(&self, lines: Vec<LogLine>) {
        let mut all = self.lock();
        let mut written: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for line in lines {
            let of = self.of(&mut all, &line.run);
            let line = LogLine { number: of.last + 1, ..line };
            let text = written.entry(line.run.clone()).or_default();
            if serde_json::to_writer(&mut *text, &line).is_ok() {
                text.push(b'\n');
            }
            of.keep(line);
        }
        if let Some(shared) = &self.shared {
            written.into_iter().for_each(|(run, text)| shared.add(run, text));
            return;
        }
        for (run, text) in written {
            // A removed run has no folder, and gets none again.
            let folder = self.folder.join(&run);
            if let Err(error) = self.of(&mut all, &run).write(&folder, &text) {
                tracing::debug!("cannot write lines of run {run} to the disk: {error}");
            }
        }
    }

    /// Lines of a run after a number.
    pub(super) fn behind(&self, run: &str, after: u64) -> Vec<LogLine> {
        let mut all = self.lock();
        let lines = self.of(&mut all, run).lines.iter();
        lines.filter(|line| line.number > after).cloned().collect()
    }

    /// Drops the lines of a removed run; its files go with its folder.
    pub(super) fn forget(&self, run: &str) {
        self.lock().runs.remove(run);
        if let Some(shared) = &self.shared {
            shared.forget(run);
        }
    }
}

impl LogLine {
    /// A line without run and stage.
    pub(crate) fn saying(line: &str) -> Self {
        Self {
            number: 0,
            run: String::new(),
            role: None,
            worker: None,
            workflow: None,
            stages: Vec::new(),
            time: None,
            level: None,
            line: line.to_owned(),
        }
    }
}

impl Shared {
    /// Stores log lines of existing runs.
    pub(crate) fn log(&self, worker: Option<&str>, mut lines: Vec<LogLine>) {
        if lines.is_empty() {
            return;
        }
        let known: BTreeSet<String> = self.facts.look(|document| {
            let is_job =
                |name: &str| name.strip_prefix(PREFIX).is_some_and(|job| document.jobs.contains_key(job));
            let known =
                lines.iter().filter(|line| document.runs.contains_key(&line.run) || is_job(&line.run));
            known.map(|line| line.run.clone()).collect()
        });
        lines.retain(|line| known.contains(&line.run));
        for line in lines.iter_mut().filter(|_| worker.is_some()) {
            line.worker = worker.map(str::to_owned);
        }
        self.logs.add(lines);
    }

    /// Log lines of a run after a number, with their stages.
    pub(crate) fn logs(&self, run: &str, after: u64) -> Vec<LogLine> {
        let mut lines = self.logs.behind(run, after);
        self.facts.look(|document| {
            let Some(run) = document.runs.get(run) else { return };
            for line in &mut lines {
                line.workflow = Some(run.workflow.clone());
                if let Some(role) = line.role.as_ref().filter(|_| line.stages.is_empty()) {
                    let stages = run.plan.stages.iter().filter(|stage| stage.worker == *role);
                    line.stages = stages.map(|stage| stage.id.clone()).collect();
                }
            }
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(run: &str, text: &str) -> LogLine {
        LogLine { run: run.to_owned(), ..LogLine::saying(text) }
    }

    #[test]
    fn lines_are_there_for_the_next_process_and_are_counted_on() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("night")).unwrap();
        let logs = Logs::new(folder.path(), None);
        logs.add(vec![line("night", "one"), line("night", "two")]);
        drop(logs);
        // Killed while it wrote.
        let mut file = OpenOptions::new().append(true).open(folder.path().join("night").join(NEWER)).unwrap();
        file.write_all(b"{\"number\": 3, \"li").unwrap();
        let logs = Logs::new(folder.path(), None);
        let texts = |after: u64| -> Vec<(u64, String)> {
            logs.behind("night", after).into_iter().map(|line| (line.number, line.line)).collect()
        };
        assert_eq!(texts(0), [(1, "one".to_owned()), (2, "two".to_owned())]);
        logs.add(vec![line("night", "three")]);
        assert_eq!(texts(2), [(3, "three".to_owned())]);
        // A run without a folder is one that was removed.
        logs.add(vec![line("gone", "late")]);
        assert!(!folder.path().join("gone").exists());
    }

    #[test]
    fn neither_memory_nor_disk_grows_with_what_is_said() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("night")).unwrap();
        let logs = Logs::new(folder.path(), None);
        let long = "x".repeat(4_000);
        for _ in 0..1_200 {
            logs.add(vec![line("night", &long)]);
        }
        let (lines, bytes) = {
            let mut all = logs.lock();
            let of = logs.of(&mut all, "night");
            (of.lines.len(), of.bytes)
        };
        assert!(bytes <= MOST_BYTES && lines > 200, "{lines} lines, {bytes} bytes");
        let on_disk = |name: &str| fs::metadata(folder.path().join("night").join(name)).unwrap().len();
        assert!(on_disk(NEWER) + on_disk(OLDER) <= 2 * FILE_BYTES + 10_000);
        logs.add((0..3 * MOST_LINES).map(|n| line("night", &n.to_string())).collect());
        assert_eq!(logs.behind("night", 0).len(), MOST_LINES);
        for n in 0..3 * MOST_RUNS {
            logs.add(vec![line(&format!("run-{n}"), "one")]);
        }
        assert_eq!(logs.lock().runs.len(), MOST_RUNS);
        assert_eq!(logs.behind("night", 0).len(), MOST_LINES, "it is read again");
    }
}
