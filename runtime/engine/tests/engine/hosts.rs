//! Runs with one host per worker, connected by TCP: each is a thread here instead of a process.
use crate::parts::*;
use std::sync::{Arc, Mutex};
use tidemill_engine::clock::ClockError;
use tidemill_engine::remote::{Address, Security};
use tidemill_engine::{
    HostLauncher, HostOptions, Hosts, Listen, Program, Run, RunError, RunOptions, Standby, decline_host,
    serve_host,
};

pub(crate) const RUN: u128 = 0x5eed;

pub(crate) type OneEnd = (String, Result<(), RunError>);
pub(crate) type Ended = Arc<Mutex<Vec<OneEnd>>>;

/// Starts hosts as threads.
struct Threads {
    program: Program,
    started: HostThreads,
    /// Result of each host.
    ended: Ended,
    /// Hosts that listen; the others dial.
    listens: fn(&str) -> bool,
    /// Cuts the connections to each.
    cutter: Option<Arc<Cutter>>,
    /// Clock error of each.
    clocks: fn(&str) -> ClockError,
}

impl HostLauncher for Threads {
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String> {
        let mut options = HostOptions::local(worker, RUN, coordinator.clone());
        if !(self.listens)(worker) {
            options.listen = None;
        }
        if let Some(cutter) = &self.cutter {
            let (behind, in_front) = cutter.in_front();
            (options.listen, options.announce) = (Some(behind), Some(in_front));
        }
        options.clock_error = (self.clocks)(worker);
        self.started.start(&self.program, options);
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        self.started.ended()
    }

    fn fate(&mut self, worker: &str) -> Option<String> {
        self.started.fate(worker)
    }

    fn end(&mut self) {
        self.ended.lock().expect("not poisoned").extend(self.started.end());
    }
}

pub(crate) fn with_hosts(program: &Program, listens: fn(&str) -> bool) -> (RunOptions, Ended) {
    with_clocks(program, listens, |_| ClockError::default())
}

pub(crate) fn with_clocks(
    program: &Program,
    listens: fn(&str) -> bool,
    clocks: fn(&str) -> ClockError,
) -> (RunOptions, Ended) {
    let ended = Ended::default();
    let launcher = Threads {
        program: program.clone(),
        started: HostThreads::default(),
        ended: Arc::clone(&ended),
        listens,
        cutter: None,
        clocks,
    };
    let hosts = Hosts {
        launcher: Box::new(launcher),
        run: RUN,
        plan_version: 0,
        listen: Listen::At(Address::tcp("127.0.0.1:0"), Security::none()),
    };
    (RunOptions { hosts: Some(hosts), ..RunOptions::default() }, ended)
}

/// Puts every slot on a worker of its own name.
pub(crate) fn on_workers(mut program: Program) -> Program {
    for stage in &mut program.plan.stages {
        stage.worker.clone_from(&stage.slot_group);
    }
    program
}

/// Two sources and a join, with two stages of each operator in between.
pub(crate) fn joined(rows: usize) -> (Program, Arc<Mutex<Vec<String>>>) {
    let mut b = Builder::new(&[0.3, 0.7]);
    let (out, collected) = sink("out");
    b.source(rows_source("left", numbered(rows), None, Some(0), 256), "s");
    b.source(rows_source("right", numbered(rows), None, Some(0), 256), "s");
    for (operator, input) in [("f", "left"), ("g", "right")] {
        b.operator(&format!("{operator}1"), pass(operator, |_| {}), "a", &[0]);
        b.operator(&format!("{operator}2"), pass(operator, |_| {}), "b", &[1]);
        b.edge(input, &format!("{operator}1"), 0).edge(input, &format!("{operator}2"), 0);
    }
    b.operator("j1", join("j", 0), "c", &[0]).operator("j2", join("j", 0), "a", &[1]);
    for (from, to, port) in [("f1", "j1", 0), ("f2", "j2", 0), ("g1", "j1", 1), ("g2", "j2", 1)] {
        b.edge(from, to, port);
    }
    b.sink(out, "s").edge("j1", "out", 0).edge("j2", "out", 0);
    (on_workers(b.program), collected)
}

pub(crate) fn finished(ended: &Ended) {
    for (worker, ended) in ended.lock().expect("not poisoned").iter() {
        assert_eq!(*ended, Ok(()), "{worker}");
    }
}

fn all_arrive(listens: fn(&str) -> bool) {
    const ROWS: usize = 10_000;
    let (program, collected) = joined(ROWS);
    let (options, ended) = with_hosts(&program, listens);
    let run = Run::start(program, options).expect("starts");
    let observer = run.observer();
    let have_opened = (0..20_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        observer.opening().is_empty()
    });
    assert!(have_opened, "{:?}", observer.opening());
    let report = wait(&run);
    let expected: Vec<String> = (0..ROWS).map(|i| format!("k{i:06}={}", i * 1_000_001)).collect();
    assert_eq!(sorted(&collected), expected);
    // The counts of the hosts are in the one report.
    let stage = |id: &str| report.stages.iter().find(|stage| stage.stage == id).expect("is reported");
    assert_eq!(stage("f1").records_in + stage("f2").records_in, ROWS as u64);
    assert!((stage("g1").records_in as f64 - 3000.0).abs() < 100.0);
    assert_eq!(report.sinks[0].records, ROWS as u64);
    let edge = report.edges.iter().find(|edge| edge.from == "f1").expect("is reported");
    assert!(edge.records == stage("f1").records_out && edge.bytes > 0, "{edge:?}");
    assert!(stage("j1").transfer.count > 0);
    assert_eq!(run.progress().arrived, ROWS as u64);
    finished(&ended);
}

#[test]
fn records_cross_hosts() {
    all_arrive(|_| true);
}

/// A box behind a router that blocks incoming connections.
#[test]
fn a_host_that_nobody_reaches_dials() {
    all_arrive(|worker| worker != "a");
    all_arrive(|worker| worker == "a" || worker == "s");
}

#[test]
fn a_coordinator_and_a_host_with_different_plans_do_not_run() {
    let ((program, _), (other, _)) = (joined(10), joined(10));
    let (mut options, ended) = with_hosts(&program, |_| true);
    let mut changed = other;
    changed.plan.stages.iter_mut().for_each(|stage| stage.byte_budget = tidemill_spec::units::Bytes(1 << 20));
    if let Some(hosts) = &mut options.hosts {
        hosts.launcher = Box::new(Threads {
            program: changed,
            started: HostThreads::default(),
            ended: Arc::clone(&ended),
            listens: |_| true,
            cutter: None,
            clocks: |_| ClockError::default(),
        });
    }
    let run = Run::start(program, options).expect("starts");
    let error = run.wait().expect_err("the plans differ").to_string();
    assert!(error.contains("makes something else of the plan"), "{error}");
}

#[test]
fn a_host_that_cannot_open_its_sink_says_why() {
    let (mut program, _) = joined(10);
    let refused: tidemill_operators::api::MakeSink =
        Arc::new(|| Err(tidemill_operators::api::OperatorError::new("the disk is elsewhere")));
    program.sinks.get_mut("out").expect("is there").make = refused;
    let (options, _) = with_hosts(&program, |_| true);
    let run = Run::start(program, options).expect("starts");
    let observer = run.observer();
    let error = run.wait().expect_err("nothing can be written");
    let opening = observer.opening();
    assert!(opening.contains(&"s".to_owned()), "{opening:?}");
    assert!(matches!(&error, RunError::Operator { operator, .. } if operator == "out"), "{error}");
}

/// Starts hosts as threads; that of worker `a` declines.
struct Declining {
    program: Program,
    threads: Vec<std::thread::JoinHandle<OneEnd>>,
    ended: Ended,
}

fn not_there() -> RunError {
    RunError::NotOpened { worker: "a".to_owned(), text: "its file is not there".to_owned() }
}

impl HostLauncher for Declining {
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String> {
        let options = HostOptions::local(worker, RUN, coordinator.clone());
        let (program, name) = (self.program.clone(), worker.to_owned());
        self.threads.push(std::thread::spawn(move || match name.as_str() {
            "a" => (name, decline_host(&program, &options, &not_there())),
            _ => (name, serve_host(&program, options)),
        }));
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn fate(&mut self, _: &str) -> Option<String> {
        None
    }

    fn end(&mut self) {
        let ended = self.threads.drain(..).map(|thread| thread.join().expect("no panic"));
        self.ended.lock().expect("not poisoned").extend(ended);
    }
}

fn declining(program: &Program) -> (Hosts, Ended) {
    let ended = Ended::default();
    let launcher = Declining { program: program.clone(), threads: Vec::new(), ended: Arc::clone(&ended) };
    let hosts = Hosts {
        launcher: Box::new(launcher),
        run: RUN,
        plan_version: 0,
        listen: Listen::At(Address::tcp("127.0.0.1:0"), Security::none()),
    };
    (hosts, ended)
}

#[test]
fn a_host_that_declines_ends_the_run_with_its_reason() {
    let (program, _) = joined(10);
    let (hosts, ended) = declining(&program);
    let options = RunOptions { hosts: Some(hosts), ..RunOptions::default() };
    let run = Run::start(program, options).expect("starts");
    let error = run.wait().expect_err("it declines");
    assert_eq!(error, not_there());
    assert_eq!(
        error.to_string(),
        "worker 'a' cannot open what it has of the workflow: its file is not there"
    );
    let ended = ended.lock().expect("not poisoned");
    let of_a = ended.iter().find(|(worker, _)| worker == "a").expect("it has ended");
    assert_eq!(of_a.1, Ok(()), "it was heard");
}

#[test]
fn a_host_that_declines_is_no_standby() {
    let (program, _) = joined(10);
    let (hosts, _) = declining(&program);
    let mut standby = Standby::start(&program, hosts).expect("starts");
    let error = standby.wait_for(std::time::Duration::from_secs(40)).expect_err("it declines").to_string();
    assert!(error.contains("its file is not there"), "{error}");
}

#[test]
fn dead_letters_of_all_hosts_come_together() {
    let (mut program, _) = joined(100);
    let picky = pass("f", |_| {});
    for stage in ["f1", "f2"] {
        let make = Arc::clone(&picky.make);
        let mut bound = picky.clone();
        bound.make = Arc::new(move || {
            let _ = make()?;
            Ok(tidemill_operators::api::Instance::Stateless(Box::new(Picky)))
        });
        program.operators.insert(stage.into(), bound);
    }
    let (options, _) = with_hosts(&program, |_| true);
    let run = Run::start(program, options).expect("starts");
    let report = wait(&run);
    assert_eq!(report.dead_letters, 10);
    assert_eq!(report.sinks[0].records, 90);
    let letters = report.stages.iter().filter_map(|stage| stage.dead_letters.get("round")).sum::<u64>();
    assert_eq!(letters, 10);
}

/// Refuses every tenth value.
pub(crate) struct Picky;

impl tidemill_operators::api::Stateless for Picky {
    fn process(
        &mut self,
        batch: &arrow_array::RecordBatch,
        output: &mut tidemill_operators::api::Output,
    ) -> Result<(), tidemill_operators::api::OperatorError> {
        use tidemill_operators::record::METADATA_COLUMNS;
        let values = tidemill_operators::record::int64(batch.column(METADATA_COLUMNS + 1)).expect("numbers");
        let mut rows = Vec::new();
        for row in 0..batch.num_rows() {
            match values.value(row) % 10 {
                0 => output.dead_letters.push(tidemill_operators::api::DeadLetter::of_row(
                    batch,
                    row,
                    "round",
                    "a round number".into(),
                )),
                _ => rows.push(batch.slice(row, 1)),
            }
        }
        rows.into_iter().for_each(|row| output.push(row));
        Ok(())
    }
}

/// Forwards bytes and cuts connections after a number of them.
#[derive(Default)]
pub(crate) struct Cutter {
    pub(crate) cuts: std::sync::atomic::AtomicU64,
    random: Mutex<Option<tidemill_random::Random>>,
}

impl Cutter {
    /// An address to listen at, and the address before it for others to dial.
    pub(crate) fn in_front(self: &Arc<Self>) -> (Address, Address) {
        use std::net::{TcpListener, TcpStream};
        let place = (crate::cut::own_address(), 0);
        let free = TcpListener::bind(place).expect("a port").local_addr().expect("has one");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("has one");
        let cutter = Arc::clone(self);
        std::thread::spawn(move || {
            for incoming in listener.incoming() {
                let Ok(incoming) = incoming else { return };
                let Ok(onward) = TcpStream::connect(free) else { continue };
                let left = Arc::new(std::sync::atomic::AtomicI64::new(cutter.bytes()));
                for (from, to) in [(&incoming, &onward), (&onward, &incoming)] {
                    let pair = (from.try_clone().expect("open"), to.try_clone().expect("open"));
                    let (left, cutter) = (Arc::clone(&left), Arc::clone(&cutter));
                    std::thread::spawn(move || cutter.pass(pair, &left));
                }
            }
        });
        (Address::tcp(free.to_string()), Address::tcp(address.to_string()))
    }

    /// Number of bytes that a connection may carry.
    fn bytes(&self) -> i64 {
        let mut random = self.random.lock().expect("not poisoned");
        let random = random.get_or_insert_with(|| tidemill_random::Random::of_seed(3));
        // An epoch must pass over one connection: a cut one is sent again from its start.
        300 + random.below(300_000) as i64
    }

    fn pass(
        &self,
        (from, to): (std::net::TcpStream, std::net::TcpStream),
        left: &std::sync::atomic::AtomicI64,
    ) {
        use std::io::{Read, Write};
        use std::sync::atomic::Ordering;
        let mut bytes = [0u8; 1024];
        while let Ok(read) = (&from).read(&mut bytes) {
            let before = left.fetch_sub(read as i64, Ordering::Relaxed);
            let passed = read.min(before.max(0) as usize);
            if read == 0 || (&to).write_all(&bytes[..passed]).is_err() {
                break;
            }
            if passed < read {
                if before > 0 {
                    self.cuts.fetch_add(1, Ordering::Relaxed);
                }
                break;
            }
        }
        let _ = from.shutdown(std::net::Shutdown::Both);
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}

/// Connections that are cut repeatedly, anywhere in a frame: nothing is lost, doubled or changed.
#[test]
fn connections_that_are_cut_change_nothing() {
    const ROWS: usize = 80_000;
    let (program, collected) = joined(ROWS);
    let cutter = Arc::new(Cutter::default());
    let (mut options, ended) = with_hosts(&program, |_| true);
    if let Some(hosts) = &mut options.hosts {
        hosts.launcher = Box::new(Threads {
            program: program.clone(),
            started: HostThreads::default(),
            ended: Arc::clone(&ended),
            listens: |_| true,
            cutter: Some(Arc::clone(&cutter)),
            clocks: |_| ClockError::default(),
        });
    }
    let run = Run::start(program, options).expect("starts");
    let report = wait(&run);
    let expected: Vec<String> = (0..ROWS).map(|i| format!("k{i:06}={}", i * 1_000_001)).collect();
    assert_eq!(sorted(&collected), expected);
    assert_eq!(report.sinks[0].records, ROWS as u64);
    let cuts = cutter.cuts.load(std::sync::atomic::Ordering::Relaxed);
    assert!(cuts >= 30, "{cuts} cuts");
    finished(&ended);
}
