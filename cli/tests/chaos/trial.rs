//! One run that is disturbed until it is complete: its processes, the faults, and the results.
use super::connections::{Connection, CutKind, End, alive, connections, cut, inodes};
use super::now;
use super::place::{WORKERS, outputs, place};
use super::watch::Watch;
use crate::command::{Place, command};
use crate::processes::{children, gone, kill};
use crate::states::same;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::File;
use std::process::Child;
use std::time::{Duration, Instant};
use tidemill_random::Random;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// `kill -9` of the process of a worker.
    KillWorker,
    /// `kill -9` of the processes of several workers, one after the other.
    KillWorkers,
    /// `kill -9` of the coordinating process; then the command is repeated.
    KillCoordinator,
    /// `kill -9` of all processes at once; then the command is repeated.
    KillAll,
    /// One connection between two workers ends.
    CutOne,
    /// All connections of a worker to the others end at once.
    CutWorker,
    /// The connection between a worker and the coordinating process ends.
    CutOrders,
    /// A worker is suspended for a while (SIGSTOP).
    Stop,
    /// Ctrl-C, every other time just after the process of a worker was killed; then the command is repeated.
    Interrupt,
}

impl Fault {
    pub(super) const ALL: [Self; 9] = [
        Self::KillWorker,
        Self::KillWorkers,
        Self::CutOne,
        Self::KillCoordinator,
        Self::CutWorker,
        Self::KillAll,
        Self::CutOrders,
        Self::Stop,
        Self::Interrupt,
    ];

    pub(super) fn is_kill(self) -> bool {
        matches!(self, Self::KillWorker | Self::KillWorkers | Self::KillCoordinator | Self::KillAll)
    }

    pub(super) fn is_cut(self) -> bool {
        matches!(self, Self::CutOne | Self::CutWorker | Self::CutOrders)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::KillWorker => "a worker's process killed",
            Self::KillWorkers => "two or three workers' processes killed at once",
            Self::KillCoordinator => "the coordinating process killed, the command given again",
            Self::KillAll => "all processes killed at once, the command given again",
            Self::CutOne => "a connection between workers cut",
            Self::CutWorker => "all connections of a worker to others cut at once",
            Self::CutOrders => "a worker's connection to the coordinating process cut",
            Self::Stop => "a worker's process stopped for up to 0.6 s (SIGSTOP)",
            Self::Interrupt => "Ctrl-C, half of them while a worker comes back, the command given again",
        }
    }
}

/// Results of the faults.
#[derive(Default)]
pub(super) struct Findings {
    /// Number of times that each really happened.
    pub(super) happened: BTreeMap<Fault, usize>,
    /// From each to the first new row after the pause, milliseconds.
    pub(super) times: BTreeMap<Fault, Vec<f64>>,
    /// Faults after all rows were there and before the run was over.
    pub(super) at_end: usize,
    /// Connections that were cut.
    pub(super) connections: usize,
    /// Messages of runs that gave up (exit code 69); they were continued by repeating the command.
    pub(super) gave_up: Vec<String>,
}

impl Findings {
    pub(super) fn count(&self, which: fn(Fault) -> bool) -> usize {
        self.happened.iter().filter(|(fault, _)| which(**fault)).map(|(_, count)| count).sum()
    }
}

/// Timeout of a wait, above any on the slowest machine; shorter than a test's limit, so that the log is printed.
const HANG: Duration = Duration::from_secs(45);
/// Most faults at the end of each run.
const AT_END: usize = 2;
/// New rows that prove progress.
const GOES_ON: u64 = 5;

pub(super) struct Trial<'a> {
    place: Place,
    random: &'a mut Random,
    findings: &'a mut Findings,
    /// Between checkpoints.
    interval: &'static str,
    child: Child,
    starts: usize,
    watch: Watch,
    /// All processes and sockets seen so far.
    processes: Vec<u32>,
    sockets: Vec<u64>,
    /// The last fault, which is measured until the next, and whether the run continued after it.
    open: Option<(Fault, Instant)>,
    recovered: bool,
    complete: bool,
}

/// Sends a signal; false when the process is gone.
fn tell(process: u32, signal: Signal) -> bool {
    let process = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(process, signal).is_ok()
}

fn start(place: &Place, interval: &str, starts: usize) -> Child {
    let [workflow, plan, state] = ["workflow.yaml", "plan.yaml", "state"].map(|file| place.argument(file));
    let arguments = ["run", &workflow, "--plan", &plan, "--processes", "--state", &state, "--quiet"];
    let log = File::create(place.path(&format!("log-{starts}"))).unwrap();
    command(&arguments)
        .args(["--checkpoint-interval", interval])
        .env("TMPDIR", place.path("temporary"))
        .stdout(std::process::Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl<'a> Trial<'a> {
    pub(super) fn new(rows: usize, random: &'a mut Random, findings: &'a mut Findings) -> Self {
        let place = place(rows);
        let interval = ["50ms", "200ms", "1s"][random.below(3)];
        let watch = Watch::of(place.path("out/pairs.jsonl"));
        let child = start(&place, interval, 0);
        let (processes, sockets) = (Vec::new(), Vec::new());
        Self {
            place,
            random,
            findings,
            interval,
            child,
            starts: 1,
            watch,
            processes,
            sockets,
            open: None,
            recovered: true,
            complete: false,
        }
    }

    /// Applies these faults until it is complete, and compares.
    pub(super) fn run(mut self, faults: &[Fault], expected: &[(&'static str, Vec<u8>)]) {
        for fault in faults {
            if !self.goes_on() {
                break;
            }
            self.pause(60, 400);
            self.strike(*fault);
            // Once more while it recovers.
            if self.random.chance(0.2) {
                self.pause(0, 80);
                let kills = self.random.chance(0.5);
                self.strike(if kills { Fault::KillWorker } else { Fault::CutOne });
            }
        }
        let all = expected.iter().find(|(file, _)| file.ends_with("pairs.jsonl"));
        let all = all.map_or(u64::MAX, |(_, bytes)| bytes.len() as u64);
        let (begin, mut at_end) = (now(), 0);
        while !self.complete {
            self.ended();
            // All rows are there: the last checkpoint is written, outputs are closed.
            if !self.complete && at_end < AT_END && self.watch.longest() >= all {
                self.pause(0, 40);
                let before = self.findings.happened.values().sum::<usize>();
                let of_worker = self.random.chance(0.8);
                self.strike(if of_worker { Fault::KillWorker } else { Fault::KillCoordinator });
                self.findings.at_end += self.findings.happened.values().sum::<usize>() - before;
                at_end += 1;
            }
            assert!(begin.elapsed() < HANG, "the run does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        self.measured();
        self.compare(expected);
    }

    fn pause(&mut self, least: usize, most: usize) {
        std::thread::sleep(Duration::from_millis((least + self.random.below(most - least)) as u64));
    }

    fn log(&self) -> String {
        let logs = (0..self.starts).map(|n| self.place.read(&format!("log-{n}")));
        format!("interval {}\n{}", self.interval, logs.collect::<Vec<_>>().join("-- again\n"))
    }

    /// Whether the command has ended; it is repeated unless the run is complete.
    fn ended(&mut self) -> bool {
        let Some(status) = self.child.try_wait().unwrap() else { return false };
        match status.code() {
            Some(0) => self.complete = true,
            // Killed here, or gave up without a checkpoint after too many deaths of its workers.
            None => self.again(),
            Some(69) => {
                let said = self.place.read(&format!("log-{}", self.starts - 1));
                let error = said.lines().rev().find(|line| line.starts_with("error")).unwrap_or_default();
                assert!(!error.is_empty(), "no word of why it gave up: {}", self.log());
                self.findings.gave_up.push(error.to_owned());
                self.again();
            }
            other => panic!("{other:?}: {}", self.log()),
        }
        true
    }

    fn again(&mut self) {
        self.child = start(&self.place, self.interval, self.starts);
        self.starts += 1;
    }

    fn workers(&mut self) -> Vec<u32> {
        let found = children(self.child.id());
        self.processes.extend(&found);
        found
    }

    /// Waits until all workers run and rows become visible; false when the run is complete.
    fn goes_on(&mut self) -> bool {
        let begin = now();
        let (mut seen, mut workers) = (self.watch.count(), Vec::new());
        loop {
            self.ended();
            if self.complete {
                return false;
            }
            let found = self.workers();
            if found.len() != WORKERS || found != workers {
                (seen, workers) = (self.watch.count(), found);
            } else if self.watch.count() >= seen + GOES_ON {
                let mut all = workers;
                all.push(self.child.id());
                self.processes.push(self.child.id());
                self.sockets.extend(inodes(&all));
                self.recovered = true;
                return true;
            }
            assert!(begin.elapsed() < HANG, "no new rows after {:?}: {}", self.open, self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the measurement of the previous fault, unless this one comes during the recovery.
    fn measured(&mut self) {
        let recovered = std::mem::take(&mut self.recovered);
        let Some((fault, begin)) = self.open.take().filter(|_| recovered) else { return };
        if let Some(time) = self.watch.until_new(begin, now()) {
            self.findings.times.entry(fault).or_default().push(time);
        }
    }

    fn strike(&mut self, fault: Fault) {
        let workers = self.workers();
        if workers.is_empty() || self.ended() {
            return;
        }
        let worker = workers[self.random.below(workers.len())];
        let coordinator = self.child.id();
        let among = |processes: &[u32]| connections(processes);
        self.measured();
        let begin = now();
        let happened = match fault {
            Fault::KillWorker => kill(worker) && gone(worker),
            Fault::KillWorkers => {
                let first = self.random.below(workers.len());
                let others = 1 + self.random.below(2);
                let chosen = (0..workers.len().min(1 + others)).map(|n| workers[(first + n) % workers.len()]);
                let killed = chosen.filter(|worker| kill(*worker)).count();
                killed > 1
            }
            Fault::KillCoordinator => self.kill_coordinator(),
            Fault::KillAll => {
                // In any order.
                let first = self.random.below(workers.len());
                workers[first..].iter().for_each(|worker| _ = kill(*worker));
                let happened = self.kill_coordinator();
                workers[..first].iter().for_each(|worker| _ = kill(*worker));
                assert!(workers.iter().all(|worker| gone(*worker)), "a worker outlives its run");
                happened
            }
            Fault::CutOne => {
                let found = among(&workers);
                let chosen = (!found.is_empty()).then(|| found[self.random.below(found.len())].clone());
                self.cut(chosen.as_slice()) > 0
            }
            Fault::CutWorker => {
                let found = among(&workers).into_iter().filter(|connection| connection.touches(worker));
                self.cut(&found.collect::<Vec<_>>()) > 0
            }
            Fault::CutOrders => {
                let found = among(&[worker, coordinator]).into_iter();
                let between =
                    |connection: &Connection| connection.touches(worker) && connection.touches(coordinator);
                self.cut(&found.filter(between).collect::<Vec<_>>()) > 0
            }
            Fault::Stop => {
                let stopped = tell(worker, Signal::STOP);
                self.pause(50, 600);
                // It may have been killed meanwhile.
                let _ = tell(worker, Signal::CONT);
                stopped
            }
            Fault::Interrupt => {
                if self.random.chance(0.5) {
                    kill(worker);
                    self.pause(0, 60);
                }
                self.interrupt()
            }
        };
        if happened {
            *self.findings.happened.entry(fault).or_default() += 1;
            self.open = Some((fault, begin));
        }
    }

    /// False when it had ended by itself.
    fn kill_coordinator(&mut self) -> bool {
        // Not reaped, so the number is still its own.
        let was_there = kill(self.child.id());
        let status = self.child.wait().unwrap();
        match status.code() {
            Some(0) => self.complete = true,
            _ => self.again(),
        }
        was_there && status.code().is_none()
    }

    /// Waits for its end, which must come; false when it had ended by itself.
    fn interrupt(&mut self) -> bool {
        let was_there = tell(self.child.id(), Signal::INT);
        let (begin, ended) = (now(), |child: &mut Child| child.try_wait().unwrap());
        let status = loop {
            if let Some(status) = ended(&mut self.child) {
                break status;
            }
            assert!(begin.elapsed() < HANG, "Ctrl-C ends nothing: {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        };
        match status.code() {
            Some(0) => self.complete = true,
            // Or it gave up, because the killed worker was lost while the run started.
            Some(69 | 130) => self.again(),
            other => panic!("{other:?}: {}", self.log()),
        }
        was_there && status.code() == Some(130)
    }

    fn cut(&mut self, found: &[Connection]) -> usize {
        let mut cuts = 0;
        for Connection { ends, .. } in found {
            let end: End = ends[self.random.below(ends.len())];
            let way = if self.random.chance(0.5) { CutKind::Closed } else { CutKind::Reset };
            cuts += usize::from(cut(&end, way));
        }
        self.findings.connections += cuts;
        cuts
    }

    /// Outputs equal those of an undisturbed run, and nothing else is left.
    fn compare(&self, expected: &[(&'static str, Vec<u8>)]) {
        same(&outputs(&self.place), expected);
        let left = |folder| self.place.files(folder);
        assert_eq!(left("out"), ["counted.csv", "counted.parquet", "dead.jsonl", "pairs.jsonl"]);
        assert_eq!(left("state/objects"), Vec::<String>::new());
        assert_eq!(left("temporary"), Vec::<String>::new());
        assert!(self.processes.iter().all(|process| gone(*process)), "a process outlives its run");
        assert_eq!(alive(&self.sockets), Vec::<u64>::new(), "sockets outlive their run");
        let shared = std::fs::read_dir("/dev/shm").map(|entries| entries.flatten().collect::<Vec<_>>());
        let names = shared.unwrap_or_default().into_iter().map(|entry| entry.file_name());
        let ours: Vec<_> = names.filter(|name| name.to_string_lossy().contains("tidemill")).collect();
        assert!(ours.is_empty(), "{ours:?} in shared memory");
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
