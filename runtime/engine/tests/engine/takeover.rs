//! Coordinators that come and go while the hosts stay, and hosts that are silent for a while.
use crate::cut::own_address;
use crate::hosts::{Cutter, Picky, RUN, on_workers};
use crate::parts::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_engine::remote::{Address, Security};
use tidemill_engine::{
    Checkpoint, CheckpointWriter, Durability, HostLauncher, HostOptions, Hosts, LetterWriter, Listen, Past,
    Program, Run, RunOptions, RunReport, StagePast, Stopper,
};
use tidemill_operators::api::{DeadLetter, Instance, OperatorError};

/// The newest checkpoint.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    newest: Arc<Mutex<Option<(Past, u64)>>>,
    /// Steps down as soon as the end of the run is written, before any other process knows it.
    at_end: Arc<Mutex<Option<Stopper>>>,
}

impl Kept {
    pub(crate) fn last(&self) -> Option<Past> {
        self.newest.lock().expect("not poisoned").as_ref().map(|(past, _)| past.clone())
    }

    pub(crate) fn number(&self) -> u64 {
        self.newest.lock().expect("not poisoned").as_ref().map_or(0, |(_, number)| *number)
    }
}

impl CheckpointWriter for Kept {
    fn write(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        let mut kept = self.newest.lock().expect("not poisoned");
        let (mut past, number) = kept.take().unwrap_or_default();
        let Checkpoint { epoch, elapsed, stages, sources, sinks, letters, .. } = checkpoint;
        for (stage, change) in stages {
            let of = past.stages.entry(stage).or_default();
            match change.snapshot {
                Some((epoch, state)) => {
                    *of = StagePast { snapshot: (epoch, state.to_vec()), calls: vec![change.calls] };
                }
                None => of.calls.push(change.calls),
            }
        }
        *kept = Some((Past { epoch, elapsed, sources, sinks, letters, ..past }, number + 1));
        let stopper = self.at_end.lock().expect("not poisoned").take_if(|_| epoch == u64::MAX);
        stopper.iter().for_each(Stopper::step_down);
        Ok(())
    }

    fn past(&mut self) -> Result<Past, String> {
        self.last().ok_or_else(|| "there is none".to_owned())
    }
}

/// Letters by epoch; another process continues after the committed ones.
pub(crate) struct TestLetters {
    staged: Vec<(u64, String)>,
    committed: Arc<Mutex<Vec<String>>>,
}

impl TestLetters {
    pub(crate) fn behind(committed: &Arc<Mutex<Vec<String>>>, past: Option<&Past>) -> Self {
        let token = past.and_then(|past| past.letters.token.clone());
        let token = token.map(|token| String::from_utf8(token).expect("a text"));
        let count = token.map_or(0, |token| token.parse().expect("a count"));
        committed.lock().expect("not poisoned").truncate(count);
        Self { staged: Vec::new(), committed: Arc::clone(committed) }
    }
}

impl LetterWriter for TestLetters {
    fn write(&mut self, _: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError> {
        self.staged.push((epoch, format!("{:?}", letter.values)));
        Ok(())
    }
    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        let (done, staged) = std::mem::take(&mut self.staged).into_iter().partition(|(of, _)| *of < epoch);
        self.staged = staged;
        let done: Vec<(u64, String)> = done;
        self.committed.lock().expect("not poisoned").extend(done.into_iter().map(|(_, letter)| letter));
        Ok(())
    }
    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(Some(self.committed.lock().expect("not poisoned").len().to_string().into_bytes()))
    }
    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
}

type Threads = Arc<Mutex<HostThreads>>;

/// Hosts as threads, which outlive the coordinators that started them.
#[derive(Clone)]
struct Machines {
    program: Program,
    threads: Threads,
    launched: Arc<AtomicU64>,
    /// Address of the coordinator for hosts; `None`: its own.
    coordinator: Option<Address>,
    /// Ends when its coordinator is gone.
    impatient: Option<&'static str>,
    grace: Duration,
}

impl HostLauncher for Machines {
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String> {
        let mut threads = self.threads.lock().expect("not poisoned");
        if self.impatient != Some(worker) && threads.is_running(worker) {
            return Ok(());
        }
        let coordinator = self.coordinator.as_ref().unwrap_or(coordinator).clone();
        let mut options = HostOptions::local(worker, RUN, coordinator);
        if self.impatient != Some(worker) {
            options.patience = Duration::from_secs(60);
        }
        self.launched.fetch_add(1, Ordering::Relaxed);
        threads.start(&self.program, options);
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn fate(&mut self, _: &str) -> Option<String> {
        None
    }

    fn grace(&self) -> Duration {
        self.grace
    }

    fn end(&mut self) {
        let ended = self.threads.lock().expect("not poisoned").end();
        for (worker, ended) in ended {
            assert_eq!(ended, Ok(()), "{worker}");
        }
    }
}

const ROWS: usize = 6000;

/// Two sources with a rate, routes, a join and a window over four workers.
struct Job {
    machines: Machines,
    kept: Kept,
    letters: Arc<Mutex<Vec<String>>>,
    collected: Collected,
    listen: Address,
}

impl Job {
    fn new(grace: Duration) -> Self {
        let mut b = Builder::new(&[0.5, 0.5]);
        let (out, collected) = sink("out");
        let mut picky = pass("f", |_| {});
        picky.make = Arc::new(|| Ok(Instance::Stateless(Box::new(Picky))));
        b.source(rows_source("left", numbered(ROWS), Some(2000.0), Some(0), 40), "s");
        b.source(rows_source("right", numbered(ROWS), Some(2000.0), Some(0), 40), "s");
        b.operator("f1", picky.clone(), "a", &[0]).operator("f2", picky, "b", &[1]);
        b.edge("left", "f1", 0).edge("left", "f2", 0);
        b.operator("j", join("j", 0), "c", &[]);
        b.edge("f1", "j", 0).edge("f2", "j", 0).edge("right", "j", 1);
        b.operator("w", window("w", 10_000), "c", &[]).edge("j", "w", 0);
        b.sink(out, "s").edge("w", "out", 0);
        let machines = Machines {
            program: on_workers(b.program),
            threads: Threads::default(),
            launched: Arc::default(),
            coordinator: None,
            impatient: None,
            grace,
        };
        let free = std::net::TcpListener::bind((own_address(), 0)).and_then(|listener| listener.local_addr());
        let listen = Address::tcp(free.expect("a port").to_string());
        Self { machines, kept: Kept::default(), letters: Arc::default(), collected, listen }
    }

    /// Another coordinator.
    fn coordinate(&self) -> Run {
        let past = self.kept.last();
        let hosts = Hosts {
            launcher: Box::new(self.machines.clone()),
            run: RUN,
            plan_version: 0,
            listen: Listen::At(self.listen.clone(), Security::none()),
        };
        let letters = TestLetters::behind(&self.letters, past.as_ref());
        let durability =
            Durability { writer: Box::new(self.kept.clone()), past, interval: Duration::from_millis(20) };
        let options = RunOptions {
            hosts: Some(hosts),
            durability: Some(durability),
            letters: Some(Box::new(letters)),
            ..RunOptions::default()
        };
        Run::start(self.machines.program.clone(), options).expect("starts")
    }

    /// Runs coordinators one after the other, each for three checkpoints; returns how many stepped down, and the report of
    /// the last.
    fn run(&self) -> (u64, RunReport) {
        let mut stepped_down = 0;
        loop {
            let (run, until) = (self.coordinate(), self.kept.number() + 3);
            let result = loop {
                if let Some(result) = run.wait_for(Duration::from_millis(2)) {
                    break result;
                }
                if self.kept.number() >= until && !run.is_closing() {
                    run.stopper().step_down();
                }
            };
            match result {
                Ok(report) => return (stepped_down, report),
                Err(error) if error.to_string().contains("stepped down") => stepped_down += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Checks that the output is undisturbed.
    fn check(&self) {
        let found = lines(&self.collected);
        assert_eq!(found.len(), ROWS / 10);
        let windows: BTreeSet<_> = found.iter().collect();
        assert_eq!(windows.len(), found.len(), "a window came twice");
        let letters = self.letters.lock().expect("not poisoned").clone();
        let different: BTreeSet<_> = letters.iter().collect();
        assert_eq!((letters.len(), different.len()), (ROWS / 10, ROWS / 10), "dead letters");
    }
}

#[test]
fn hosts_go_on_while_coordinators_change() {
    let job = Job::new(Duration::ZERO);
    let undisturbed = {
        let job = Job::new(Duration::ZERO);
        wait(&job.coordinate());
        lines(&job.collected)
    };
    let (stepped_down, report) = job.run();
    assert!(stepped_down >= 3, "{stepped_down} took over");
    assert_eq!(job.machines.launched.load(Ordering::Relaxed), 4, "no host was started again");
    assert_eq!(report.restarts, 0);
    job.check();
    assert_eq!(lines(&job.collected), undisturbed);
}

/// A coordinator is gone when the end of the run is written and no sink is closed: the next one closes them.
#[test]
fn the_next_coordinator_closes_what_has_come_to_its_end() {
    let job = Job::new(Duration::ZERO);
    let first = job.coordinate();
    *job.kept.at_end.lock().expect("not poisoned") = Some(first.stopper());
    let result = (0..3000).find_map(|_| first.wait_for(Duration::from_millis(10)));
    let error = result.expect("it steps down").expect_err("it has not closed them");
    assert!(error.to_string().contains("stepped down"), "{error}");
    assert_eq!(job.kept.last().map(|past| past.epoch), Some(u64::MAX), "all is written");
    let second = job.coordinate();
    let result = (0..3000).find_map(|_| second.wait_for(Duration::from_millis(10)));
    let report = result.expect("the fault: it waited for slots that had ended").expect("nothing fails");
    assert!(report.complete);
    assert_eq!(job.machines.launched.load(Ordering::Relaxed), 4, "no host was started again");
    job.check();
}

/// A host that is lost with its coordinator restarts from the last checkpoint; the others stay.
#[test]
fn a_host_is_lost_with_each_coordinator() {
    let mut job = Job::new(Duration::ZERO);
    job.machines.impatient = Some("b");
    let (stepped_down, _) = job.run();
    assert!(stepped_down >= 3, "{stepped_down} took over");
    let launched = job.machines.launched.load(Ordering::Relaxed);
    assert_eq!(launched, 4 + stepped_down, "only the one");
    job.check();
}

/// The connections between the hosts and their coordinator are cut repeatedly.
#[test]
fn hosts_that_are_silent_for_a_while_come_back() {
    let mut job = Job::new(Duration::from_secs(60));
    let cutter = Arc::new(Cutter::default());
    let (behind, in_front) = cutter.in_front();
    job.listen = behind;
    job.machines.coordinator = Some(in_front);
    let report = wait(&job.coordinate());
    let cuts = cutter.cuts.load(Ordering::Relaxed);
    assert!(cuts >= 4, "{cuts} cuts");
    assert_eq!(job.machines.launched.load(Ordering::Relaxed), 4, "no host was started again");
    assert_eq!(report.restarts, 0);
    job.check();
}

/// Hosts report the starts of their sources' epochs to the coordinator: those in a checkpoint are not kept for the whole
/// run.
#[test]
fn a_coordinator_forgets_epochs_that_no_restart_needs() {
    let job = Job::new(Duration::ZERO);
    let run = job.coordinate();
    let report = loop {
        if let Some(result) = run.wait_for(Duration::from_millis(20)) {
            break result.expect("no error");
        }
    };
    assert!(report.complete && job.kept.number() >= 3, "{} checkpoints", job.kept.number());
    let logs = run.epoch_log();
    assert_eq!(logs.len(), 2, "{:?}", logs.keys());
    for (source, log) in logs {
        let (first, last) = (log.cuts.keys().next(), log.cuts.keys().next_back());
        assert!(first > Some(&0) && last > Some(&100), "{source}: {first:?} to {last:?}");
        assert!(log.end.is_some(), "{source} has ended");
    }
    job.check();
}
