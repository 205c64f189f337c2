//! Hosts whose connections to others are cut, in runs with a policy for that: an edge continues without the cloud, and its
//! kept data arrives once, in order.
use crate::hosts::RUN;
use crate::parts::{Gate as Brake, *};
use crate::takeover::{Kept, TestLetters};
use std::collections::BTreeMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_engine::remote::{Address, Security};
use tidemill_engine::{
    Alone, Durability, EdgeMetrics, HostLauncher, HostOptions, Hosts, Listen, Program, Run, RunError,
    RunOptions, serve_host,
};
use tidemill_spec::plan::PlanWorker;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::workflow::{CutBuffer, CutStop, WhenCut};

/// Connections pass while it is open; closing it cuts the existing ones.
#[derive(Default)]
pub(crate) struct Gate {
    is_closed: AtomicBool,
    passing: Mutex<Vec<TcpStream>>,
    cuts: AtomicU64,
    /// Connections that were attempted while it was closed.
    refused: AtomicU64,
}

/// An address of this machine that no other test has: a port that was free there a moment ago is still free.
pub(crate) fn own_address() -> std::net::Ipv4Addr {
    static GATES: AtomicU64 = AtomicU64::new(0);
    let [low, high, ..] = std::process::id().to_le_bytes();
    let gate = GATES.fetch_add(1, Ordering::Relaxed) as u8;
    std::net::Ipv4Addr::new(127, 1 + high % 250, low, 1 + gate % 250)
}

impl Gate {
    /// An address to listen at, and the address before it for others to dial.
    fn in_front(self: &Arc<Self>) -> (Address, Address) {
        let free = TcpListener::bind((own_address(), 0)).expect("a port").local_addr().expect("has one");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("has one");
        let gate = Arc::clone(self);
        std::thread::spawn(move || {
            for incoming in listener.incoming() {
                let Ok(incoming) = incoming else { return };
                let Ok(onward) = TcpStream::connect(free) else { continue };
                let mut passing = gate.passing.lock().expect("not poisoned");
                if gate.is_closed.load(Ordering::Relaxed) {
                    gate.refused.fetch_add(1, Ordering::Relaxed);
                    continue; // both are closed
                }
                for (from, to) in [(&incoming, &onward), (&onward, &incoming)] {
                    let (mut from, mut to) = (from.try_clone().expect("open"), to.try_clone().expect("open"));
                    passing.push(from.try_clone().expect("open"));
                    std::thread::spawn(move || {
                        // It ends when one side does.
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        (Address::tcp(free.to_string()), Address::tcp(address.to_string()))
    }

    pub(crate) fn close(&self) {
        let mut passing = self.passing.lock().expect("not poisoned");
        self.is_closed.store(true, Ordering::Relaxed);
        self.cuts.fetch_add(passing.len() as u64 / 2, Ordering::Relaxed);
        for stream in passing.drain(..) {
            let _ = stream.shutdown(Shutdown::Both); // it may have ended
        }
    }

    pub(crate) fn open(&self) {
        self.is_closed.store(false, Ordering::Relaxed);
    }
}

pub(crate) type Ended = Arc<Mutex<Vec<(String, Result<(), RunError>)>>>;

/// Hosts as threads: those of `edge` reach the coordinator and the cloud through gates.
struct Sites {
    program: Program,
    threads: BTreeMap<String, JoinHandle<()>>,
    control: Arc<Gate>,
    launched: Arc<AtomicU64>,
    /// The gate before the coordinator, for the edge.
    coordinator: Address,
    /// The gate before the cloud: its listening and its dialled address.
    cloud: (Address, Address),
    ended: Ended,
}

impl HostLauncher for Sites {
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String> {
        let is_cloud = worker == "cloud";
        let address = if is_cloud { coordinator.clone() } else { self.coordinator.clone() };
        let mut options = HostOptions::local(worker, RUN, address);
        options.patience = Duration::from_secs(60);
        match worker {
            "cloud" => {
                (options.listen, options.announce) = (Some(self.cloud.0.clone()), Some(self.cloud.1.clone()))
            }
            "edge" => options.listen = None, // nobody reaches it
            _ => {}
        }
        self.launched.fetch_add(1, Ordering::Relaxed);
        let (program, ended, name) = (self.program.clone(), Arc::clone(&self.ended), worker.to_owned());
        let host = move || {
            let result = serve_host(&program, options);
            ended.lock().expect("not poisoned").push((name, result));
        };
        self.threads.insert(worker.to_owned(), std::thread::spawn(host));
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        if self.control.is_closed.load(Ordering::Relaxed) {
            return Vec::new(); // nobody hears that either
        }
        let ended = self.threads.iter().filter(|(_, thread)| thread.is_finished());
        ended.map(|(worker, _)| worker.clone()).collect()
    }

    fn fate(&mut self, worker: &str) -> Option<String> {
        self.threads.remove(worker)?.join().expect("no panic");
        Some("ended".to_owned())
    }

    fn grace(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn end(&mut self) {
        for thread in std::mem::take(&mut self.threads).into_values() {
            thread.join().expect("no panic");
        }
    }
}

/// A source and a filter at the edge, each with its own thread, a window and a sink in the cloud; or another program for
/// these two.
pub(crate) struct Job {
    pub(crate) program: Program,
    pub(crate) collected: Collected,
    /// Rows seen by the filter.
    seen: Arc<AtomicU64>,
    /// Number of rows after which the filter waits for the brake, so that earlier events have their time on any machine.
    held_after: Arc<AtomicU64>,
    brake: Arc<Brake>,
    /// Makes the filter slow for each batch, so that it notices events meanwhile.
    is_slow: Arc<AtomicBool>,
    /// Gates of the edge to its coordinator, and to the cloud.
    pub(crate) control: Arc<Gate>,
    pub(crate) data: Arc<Gate>,
    pub(crate) launched: Arc<AtomicU64>,
    ended: Ended,
    pub(crate) kept: Kept,
}

impl Job {
    fn new(rows: Vec<Row>, rate: Option<f64>, when_cut: Option<WhenCut>) -> Self {
        let mut b = Builder::new(&[1.0]);
        let (out, collected) = sink("out");
        let seen = Arc::new(AtomicU64::new(0));
        let (held_after, brake) = (Arc::new(AtomicU64::new(u64::MAX)), Brake::closed());
        let is_slow = Arc::new(AtomicBool::new(false));
        let slow = Arc::clone(&is_slow);
        let (counter, limit, of_filter) = (Arc::clone(&seen), Arc::clone(&held_after), Arc::clone(&brake));
        b.source(rows_source("src", rows, rate, Some(0), 40), "s");
        let count = move |batch: &arrow_array::RecordBatch| {
            let rows = batch.num_rows() as u64;
            if counter.fetch_add(rows, Ordering::Relaxed) + rows >= limit.load(Ordering::Relaxed) {
                of_filter.pass();
            }
            if slow.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        b.operator("f", pass("f", count), "f", &[]).edge("src", "f", 0);
        b.operator("g", pass("g", |_| {}), "g", &[]).edge("f", "g", 0);
        b.sink(out, "g").edge("g", "out", 0);
        let mut program = b.program;
        for stage in &mut program.plan.stages {
            stage.worker = if stage.slot_group == "g" { "cloud" } else { "edge" }.into();
        }
        program.when_cut.extend(when_cut.map(|when_cut| (("g".to_owned(), 0), when_cut)));
        Self { seen, held_after, brake, is_slow, ..Self::of(program, collected) }
    }

    /// Creates a job of another program with the workers `edge` and `cloud`.
    pub(crate) fn of(program: Program, collected: Collected) -> Self {
        Self {
            program,
            collected,
            seen: Arc::default(),
            held_after: Arc::new(AtomicU64::new(u64::MAX)),
            brake: Brake::closed(),
            is_slow: Arc::default(),
            control: Arc::default(),
            data: Arc::default(),
            launched: Arc::default(),
            ended: Ended::default(),
            kept: Kept::default(),
        }
    }

    /// Lets the filter wait after `rows` rows until the brake is opened.
    fn held_after(self, rows: u64) -> Self {
        self.held_after.store(rows, Ordering::Relaxed);
        self
    }

    fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Whether no row passes the filter while another, undisturbed run reads the rows to their end.
    fn stands_still(&self, rows: &[Row]) -> bool {
        let before = self.seen();
        let other = Self::new(rows.to_vec(), None, None);
        let run = other.run();
        wait(&run);
        assert_eq!(other.seen(), rows.len() as u64);
        self.seen() == before
    }

    /// Puts the source on a separate machine beside the edge.
    fn apart(mut self) -> Self {
        for stage in self.program.plan.stages.iter_mut().filter(|stage| stage.slot_group == "s") {
            stage.worker = "camera".into();
        }
        let worker = |id: &str, tier: &str| PlanWorker {
            id: id.into(),
            tier: tier.into(),
            location: None,
            worker_type: "small".into(),
            price: None,
        };
        self.program.plan.workers = [("camera", "edge"), ("edge", "edge"), ("cloud", "cloud")]
            .map(|(id, tier)| worker(id, tier))
            .into();
        self
    }

    pub(crate) fn run(&self) -> Run {
        let (listen, control) = self.control.in_front();
        let sites = Sites {
            program: self.program.clone(),
            threads: BTreeMap::new(),
            control: Arc::clone(&self.control),
            launched: Arc::clone(&self.launched),
            coordinator: control,
            cloud: self.data.in_front(),
            ended: Arc::clone(&self.ended),
        };
        let hosts = Hosts {
            launcher: Box::new(sites),
            run: RUN,
            plan_version: 0,
            listen: Listen::At(listen, Security::none()),
        };
        let durability = Durability {
            writer: Box::new(self.kept.clone()),
            past: None,
            interval: Duration::from_millis(20),
        };
        let options = RunOptions {
            hosts: Some(hosts),
            durability: Some(durability),
            letters: Some(Box::new(TestLetters::behind(&Arc::default(), None))),
            ..RunOptions::default()
        };
        Run::start(self.program.clone(), options).expect("starts")
    }

    pub(crate) fn arrived(&self) -> usize {
        self.collected.lock().expect("not poisoned").len()
    }

    /// All rows, in order, each once.
    fn check(&self, rows: &[Row]) {
        let expected: Vec<String> = rows.iter().map(|row| format!("{}={}", row.key, row.value)).collect();
        let found = lines(&self.collected);
        assert_eq!(found.len(), expected.len());
        assert!(found == expected, "the rows came in another order");
    }

    pub(crate) fn ends(&self) -> Vec<(String, Result<(), RunError>)> {
        self.ended.lock().expect("not poisoned").clone()
    }
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..4500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not within 45 s");
}

fn edge(run: &Run) -> Arc<EdgeMetrics> {
    run.observer().edge("f", "g", 0).expect("is in the plan")
}

fn buffer(size: u64, time: Duration) -> Option<WhenCut> {
    let time = TimeSpan(time.as_nanos() as u64);
    Some(WhenCut::Buffer(CutBuffer { size: Some(Bytes(size).into()), time: Some(time.into()) }))
}

const MINUTES: Duration = Duration::from_secs(600);

/// The edge is disconnected from everything, for much longer than the grace period of a host: it continues by itself and is
/// not restarted.
#[test]
fn an_edge_that_hears_nobody_goes_on_and_what_it_kept_arrives_once() {
    let rows = numbered(6000);
    let job = Job::new(rows.clone(), Some(2000.0), buffer(64 << 20, MINUTES)).held_after(3000);
    let run = job.run();
    until("some rows have arrived", || job.arrived() > 500);
    job.control.close();
    job.data.close();
    until("the edge is missed", || run.observer().opening() == ["edge"]);
    let arrived = job.arrived();
    job.brake.open();
    until("the edge has come to its end", || job.seen() == rows.len() as u64);
    std::thread::sleep(Duration::from_millis(1500)); // three times the grace of a host, at least
    assert!(job.arrived() < rows.len(), "{arrived}, then {} have arrived", job.arrived());
    assert!(job.control.refused.load(Ordering::Relaxed) > 0, "it has not tried to come back");
    assert!(job.control.cuts.load(Ordering::Relaxed) > 0 && job.data.cuts.load(Ordering::Relaxed) > 0);
    job.control.open();
    job.data.open();
    let report = wait(&run);
    job.check(&rows);
    assert_eq!((job.launched.load(Ordering::Relaxed), report.restarts), (2, 0), "nothing was started again");
    assert!(job.ends().iter().all(|(_, ended)| ended.is_ok()), "{:?}", job.ends());
}

/// A source without a rate would wait after two checkpoint intervals. Data beyond the memory limit is written to disk.
#[test]
fn a_source_goes_on_beyond_its_lead_while_an_edge_is_cut() {
    let rows: Vec<Row> = (0..30_000)
        .map(|i| Row { key: format!("k{i:06}{}", "x".repeat(1000)), value: i, time: i * 1000 })
        .collect();
    let job = Job::new(rows.clone(), None, buffer(512 << 20, MINUTES));
    job.data.close();
    let run = job.run();
    until("the edge has come to its end", || job.seen() == rows.len() as u64);
    until("it is told", || edge(&run).buffered.get() > 16 << 20);
    assert_eq!((edge(&run).cut.get(), edge(&run).cuts.load(Ordering::Relaxed), job.arrived()), (1, 1, 0));
    assert!(edge(&run).cut_since.load(Ordering::Relaxed) > 0);
    job.data.open();
    wait(&run);
    job.check(&rows);
    assert_eq!((edge(&run).cut.get(), edge(&run).buffered.get()), (0, 0));
    assert!(edge(&run).cut_nanoseconds.load(Ordering::Relaxed) >= 1_000_000_000);
}

/// The source is on another machine than the sender of the cut edge, and is informed of the cut.
#[test]
#[ignore = "long: make test-long"]
fn machines_of_one_place_go_on_together() {
    let rows = numbered(60_000);
    let job = Job::new(rows.clone(), None, buffer(64 << 20, MINUTES)).apart();
    let ten_minutes = Some(Alone::GoesOn(MINUTES));
    assert_eq!(["camera", "edge"].map(|worker| job.program.alone(worker)), [ten_minutes; 2]);
    assert_eq!(job.program.alone("cloud"), None, "it may be replaced");
    job.data.close();
    let run = job.run();
    until("the edge has come to its end", || job.seen() == rows.len() as u64);
    until("it is cut", || edge(&run).cut.get() == 1);
    assert!(job.arrived() == 0 && job.data.refused.load(Ordering::Relaxed) > 0);
    job.data.open();
    wait(&run);
    job.check(&rows);
    assert_eq!(job.launched.load(Ordering::Relaxed), 3);
}

/// The source waits without `when_cut`, and with a full buffer.
#[test]
#[ignore = "long: make test-long"]
fn a_source_waits_where_nothing_is_kept_or_the_buffer_is_full() {
    for (when_cut, least, most) in [(None, 1, 25_000), (buffer(5 << 20, MINUTES), 15_000, 58_000)] {
        let rows = numbered(60_000);
        let is_kept = when_cut.is_some();
        let job = Job::new(rows.clone(), None, when_cut);
        job.data.close();
        let run = job.run();
        until("the first rows are there", || job.seen() >= least);
        until("it is cut", || {
            job.data.refused.load(Ordering::Relaxed) > 0 && (!is_kept || edge(&run).cut.get() == 1)
        });
        until("the source waits", || job.stands_still(&rows));
        let before = job.seen();
        assert!((least..most).contains(&before), "{before} rows, cut: {is_kept}");
        let kept = edge(&run).buffered.get();
        assert!(!is_kept || kept > 1 << 20, "{kept} bytes are kept, and the source waits");
        assert_eq!(job.arrived(), 0);
        job.data.open();
        wait(&run);
        job.check(&rows);
    }
}

/// The coordinator reaches the edge: an edge that is cut for longer than its limit makes its sources wait, and nothing
/// ends. The buffer has room for everything, so only the time makes them wait.
#[test]
#[ignore = "long: make test-long"]
fn what_is_cut_for_too_long_waits() {
    let rows = numbered(200_000);
    let job = Job::new(rows.clone(), None, buffer(512 << 20, Duration::from_millis(1500)));
    job.is_slow.store(true, Ordering::Relaxed);
    job.data.close();
    let run = job.run();
    until("it is cut", || edge(&run).cut.get() == 1);
    let since = edge(&run).cut_since.load(Ordering::Relaxed);
    until("its time is over", || run.observer().now() - since > 2_500_000_000);
    job.is_slow.store(false, Ordering::Relaxed);
    until("the source waits", || job.stands_still(&rows));
    let seen = job.seen();
    assert!(seen > 0 && seen < rows.len() as u64, "{seen} rows went on");
    assert!(job.arrived() == 0 && run.wait_for(Duration::ZERO).is_none());
    job.data.open();
    wait(&run);
    job.check(&rows);
    assert_eq!(job.launched.load(Ordering::Relaxed), 2);
}

/// Another host that takes over its work must find that it has ended: nothing is written twice.
#[test]
#[ignore = "long: make test-long"]
fn an_edge_that_hears_nobody_for_its_time_ends_by_itself() {
    let rows = numbered(16_000);
    let job = Job::new(rows.clone(), Some(2000.0), buffer(64 << 20, Duration::from_secs(2))).held_after(4000);
    let run = job.run();
    until("a checkpoint is there, and some rows", || job.kept.number() > 2 && job.arrived() > 500);
    job.control.close();
    job.data.close();
    until("the edge is missed", || run.observer().opening() == ["edge"]);
    job.brake.open();
    until("the edge has ended", || !job.ends().is_empty());
    assert!(job.arrived() < rows.len() && job.data.cuts.load(Ordering::Relaxed) > 0);
    let ends = job.ends();
    assert_eq!((ends.len(), ends[0].0.as_str()), (1, "edge"));
    assert!(ends[0].1.as_ref().is_err_and(|error| error.to_string().contains("coordinator")), "{ends:?}");
    assert_eq!(job.launched.load(Ordering::Relaxed), 2);
    job.control.open();
    job.data.open();
    wait(&run);
    job.check(&rows);
    assert_eq!(job.launched.load(Ordering::Relaxed), 3, "it began again with the last checkpoint");
}

fn stops(cut_control: bool) -> String {
    let rows = numbered(40_000);
    let after = TimeSpan(1_500_000_000);
    let job =
        Job::new(rows.clone(), Some(2000.0), Some(WhenCut::Stop(CutStop { after: Some(after.into()) })))
            .held_after(4000);
    let run = job.run();
    until("a checkpoint is there, and some rows", || job.kept.number() > 2 && job.arrived() > 200);
    job.data.close();
    if cut_control {
        job.control.close();
    }
    match cut_control {
        true => until("the edge is missed", || run.observer().opening() == ["edge"]),
        false => {
            until("the way to the cloud is tried again", || job.data.refused.load(Ordering::Relaxed) > 0)
        }
    }
    job.brake.open();
    // The edge is released when it looks for its coordinator again.
    let result = result_within(&run, 45);
    let Err(RunError::Cut(text)) = result else { panic!("{result:?}") };
    let found = lines(&job.collected);
    let begin: Vec<String> =
        rows.iter().take(found.len()).map(|row| format!("{}={}", row.key, row.value)).collect();
    assert!(found.len() < rows.len() && found == begin);
    assert!(job.kept.last().is_some_and(|past| past.epoch > 0));
    text
}

#[test]
fn a_run_whose_edge_is_cut_stops() {
    let text = stops(false);
    assert!(text.contains("edge f->g is cut for 1.5s"), "{text}");
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_whose_worker_is_not_heard_stops() {
    let text = stops(true);
    assert!(text.contains("worker 'edge' was not heard"), "{text}");
}
