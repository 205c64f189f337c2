//! Hosts that are lost near the end of a run, and slots that restart while a checkpoint is written.
use crate::cut::own_address;
use crate::hosts::{Picky, RUN, on_workers};
use crate::parts::*;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_engine::remote::{Address, Security};
use tidemill_engine::{
    Checkpoint, CheckpointWriter, Durability, HostLauncher, HostOptions, Hosts, Listen, Past, Program, Run,
    RunOptions, StagePast,
};
use tidemill_operators::api::*;
use tidemill_spec::publication::Publication;

type Hook = Arc<dyn Fn(u64, bool) + Send + Sync>;

#[derive(Clone)]
struct Kept {
    past: Arc<Mutex<Option<Past>>>,
    hook: Hook,
}

impl CheckpointWriter for Kept {
    fn write(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        (self.hook)(checkpoint.epoch, checkpoint.is_complete);
        let mut kept = self.past.lock().expect("not poisoned");
        let mut past = kept.take().unwrap_or_default();
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
        *kept = Some(Past { epoch, elapsed, sources, sinks, letters, ..past });
        Ok(())
    }

    fn past(&mut self) -> Result<Past, String> {
        self.past.lock().expect("not poisoned").clone().ok_or_else(|| "there is none".to_owned())
    }
}

/// Forwards bytes until it is cut; new connections wait for `delay` ms.
#[derive(Default)]
struct Proxy {
    streams: Mutex<Vec<TcpStream>>,
    delay: AtomicU64,
    /// Drops bytes from the dialling side; the number of dropped bytes is counted.
    is_deaf: AtomicBool,
    unheard: AtomicU64,
}

impl Proxy {
    fn in_front_of(self: &Arc<Self>, onward: String) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("has one");
        let proxy = Arc::clone(self);
        std::thread::spawn(move || {
            for incoming in listener.incoming().flatten() {
                let (proxy, onward) = (Arc::clone(&proxy), onward.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(proxy.delay.load(Ordering::SeqCst)));
                    let Ok(onward) = TcpStream::connect(onward.as_str()) else { return };
                    let clones = [&incoming, &onward].map(|s| s.try_clone().expect("open"));
                    proxy.streams.lock().expect("not poisoned").extend(clones);
                    let pairs = [(&incoming, &onward), (&onward, &incoming)]
                        .map(|(a, b)| (a.try_clone().expect("open"), b.try_clone().expect("open")));
                    for (at, (mut from, mut to)) in pairs.into_iter().enumerate() {
                        let proxy = Arc::clone(&proxy);
                        std::thread::spawn(move || {
                            let mut bytes = [0u8; 65536];
                            while let Ok(read) = from.read(&mut bytes) {
                                if at == 0 && read > 0 && proxy.is_deaf.load(Ordering::SeqCst) {
                                    proxy.unheard.fetch_add(read as u64, Ordering::SeqCst);
                                    continue;
                                }
                                if read == 0 || to.write_all(&bytes[..read]).is_err() {
                                    break;
                                }
                            }
                            let _ = from.shutdown(std::net::Shutdown::Both);
                            let _ = to.shutdown(std::net::Shutdown::Both);
                        });
                    }
                });
            }
        });
        Address::tcp(address.to_string())
    }

    fn cut(&self) {
        for stream in self.streams.lock().expect("not poisoned").drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

struct Machines {
    program: Program,
    threads: HostThreads,
    launched: Arc<Mutex<BTreeMap<String, u64>>>,
    /// Its first connection to the coordinator goes through here.
    victim: &'static str,
    control: Arc<Proxy>,
    /// Connections of other hosts to this one go through here.
    listener: &'static str,
    data: Arc<Proxy>,
    /// Start time of a restarted process.
    delay: Duration,
    relaunched: Arc<dyn Fn() + Send + Sync>,
}

impl HostLauncher for Machines {
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String> {
        let number = {
            let mut launched = self.launched.lock().expect("not poisoned");
            let number = launched.entry(worker.to_owned()).or_default();
            *number += 1;
            *number
        };
        let again = number > 1;
        let mut options = HostOptions::local(worker, RUN, coordinator.clone());
        if worker == self.victim && !again {
            options.coordinator = self.control.in_front_of(coordinator.place().to_owned()).into();
        }
        if worker == self.listener {
            let free = TcpListener::bind((own_address(), 0))
                .and_then(|listener| listener.local_addr())
                .expect("a port");
            options.listen = Some(Address::tcp(free.to_string()));
            options.announce = Some(self.data.in_front_of(free.to_string()));
        }
        if again {
            (self.relaunched)();
        }
        let delay = if again { self.delay } else { Duration::ZERO };
        self.threads.start_after(delay, &self.program, options);
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn fate(&mut self, _: &str) -> Option<String> {
        Some("was killed by the test".to_owned())
    }

    fn end(&mut self) {
        for (worker, ended) in self.threads.end() {
            println!("{worker}: {ended:?}");
        }
    }
}

fn options(machines: Machines, interval: u64, hook: Hook) -> RunOptions {
    let hosts = Hosts {
        launcher: Box::new(machines),
        run: RUN,
        plan_version: 0,
        listen: Listen::At(Address::tcp("127.0.0.1:0"), Security::none()),
    };
    let writer = Kept { past: Arc::default(), hook };
    let durability =
        Durability { writer: Box::new(writer), past: None, interval: Duration::from_millis(interval) };
    RunOptions { hosts: Some(hosts), durability: Some(durability), ..RunOptions::default() }
}

fn machines(program: &Program, victim: &'static str) -> Machines {
    Machines {
        program: program.clone(),
        threads: HostThreads::default(),
        launched: Arc::default(),
        victim,
        control: Arc::default(),
        listener: "",
        data: Arc::default(),
        delay: Duration::from_secs(1),
        relaunched: Arc::new(|| ()),
    }
}

/// Appears only when it is closed, as a Parquet file.
struct Whole {
    rows: Vec<String>,
    published: Arc<Mutex<Option<Vec<String>>>>,
}

impl Sink for Whole {
    fn write(&mut self, batch: &arrow_array::RecordBatch) -> Result<(), OperatorError> {
        self.rows.extend(keys(batch));
        Ok(())
    }
    fn commit(&mut self, _: u64) -> Result<(), OperatorError> {
        Ok(())
    }
    fn rollback(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
    fn close(&mut self) -> Result<(), OperatorError> {
        *self.published.lock().expect("not poisoned") = Some(self.rows.clone());
        Ok(())
    }
    fn suspend(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(Some(self.rows.len().to_string().into_bytes()))
    }
    fn exactly_once(&self) -> bool {
        true
    }
    fn publication(&self) -> Publication {
        Publication::AtEnd
    }
}

/// A worker's process dies while the last checkpoint is written: its file is missing, although the run reports success.
#[test]
fn a_worker_lost_at_the_last_checkpoint_is_not_forgotten() {
    let published = Arc::new(Mutex::new(None));
    let mut b = Builder::new(&[1.0]);
    let (mut out, _) = sink("out");
    let of = Arc::clone(&published);
    let make: MakeDurableSink = Arc::new(move |_| {
        Ok(Box::new(Whole { rows: Vec::new(), published: Arc::clone(&of) }) as Box<dyn Sink>)
    });
    out.durable = Some(Arc::clone(&make));
    out.make = Arc::new(move || make(None));
    b.source(rows_source("src", numbered(1000), None, Some(0), 40), "s");
    b.sink(out, "b").edge("src", "out", 0);
    let program = on_workers(b.program);
    let machines = machines(&program, "b");
    let (control, cut) = (Arc::clone(&machines.control), Arc::new(AtomicBool::new(false)));
    let was_cut = Arc::clone(&cut);
    let hook: Hook = Arc::new(move |epoch, is_complete| {
        if epoch == u64::MAX && !is_complete && !was_cut.swap(true, Ordering::SeqCst) {
            control.cut();
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let run = Run::start(program.clone(), options(machines, 20, hook)).expect("starts");
    let result = run.wait_for(Duration::from_secs(30)).expect("it ends");
    assert!(cut.load(Ordering::SeqCst), "nothing happened");
    let complete = result.as_ref().map(|report| report.complete);
    println!("the run says: {complete:?}");
    let published = published.lock().expect("not poisoned").is_some();
    assert!(published || complete != Ok(true), "the run is complete and its file is not there");
}

/// The sender finishes while a receiver that was lost after its end is restarted.
#[test]
#[ignore = "long: make test-long"]
fn a_worker_lost_after_its_slots_finished_does_not_hang_the_run() {
    let gate = Gate::closed();
    let mut b = Builder::new(&[1.0]);
    let (quick, quick_rows) = sink("quick");
    let (slow, slow_rows) = sink("slow");
    b.source(rows_source("src", numbered(1000), None, Some(0), 40), "s");
    let held = Arc::clone(&gate);
    b.operator("p", pass("p", |_| ()), "b", &[]).edge("src", "p", 0);
    b.operator("q", pass("q", move |_| held.pass()), "c", &[]).edge("src", "q", 0);
    b.sink(quick, "b").edge("p", "quick", 0);
    b.sink(slow, "c").edge("q", "slow", 0);
    let program = on_workers(b.program);
    let mut machines = machines(&program, "b");
    let open = Arc::clone(&gate);
    machines.relaunched = Arc::new(move || open.open());
    let (control, launched) = (Arc::clone(&machines.control), Arc::clone(&machines.launched));
    let run = Run::start(program.clone(), options(machines, 20, Arc::new(|_, _| ()))).expect("starts");
    for _ in 0..1000 {
        if lines(&quick_rows).len() == 1000 && gate.holds() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(lines(&quick_rows).len(), 1000);
    // Its slot ends.
    std::thread::sleep(Duration::from_millis(500));
    control.cut();
    let result = run.wait_for(Duration::from_secs(30));
    assert_eq!(launched.lock().expect("not poisoned")["b"], 2, "nothing was lost");
    println!("slow: {}", lines(&slow_rows).len());
    assert!(
        result.is_some(),
        "the run hangs: {:#?}",
        run.report().stages.iter().map(|s| (&s.stage, s.records_in, s.records_out)).collect::<Vec<_>>()
    );
}

/// A slot is restarted from the previous checkpoint while the next one is being written.
#[test]
fn a_restart_while_a_checkpoint_is_written_loses_nothing() {
    const ROWS: usize = 6000;
    let (armed, panicked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(ROWS), Some(2000.0), Some(0), 40), "s");
    let (is_armed, has_panicked) = (Arc::clone(&armed), Arc::clone(&panicked));
    let once = pass("p", move |_| {
        if is_armed.swap(false, Ordering::SeqCst) {
            has_panicked.store(true, Ordering::SeqCst);
            panic!("once");
        }
    });
    b.operator("p", once, "c", &[]).edge("src", "p", 0);
    b.restart_on_panic("p");
    b.operator("w", window("w", 2_000_000), "c", &[]).edge("p", "w", 0);
    b.sink(out, "s").edge("w", "out", 0);
    let program = on_workers(b.program);
    let mut machines = machines(&program, "");
    machines.listener = "s";
    let (data, number) = (Arc::clone(&machines.data), AtomicU64::new(0));
    let (arm, is_over) = (Arc::clone(&armed), Arc::clone(&panicked));
    let hook: Hook = Arc::new(move |epoch, _| {
        if epoch > 0 && number.fetch_add(1, Ordering::SeqCst) == 4 {
            // The channel is not restored at once, as over a network.
            data.delay.store(300, Ordering::SeqCst);
            arm.store(true, Ordering::SeqCst);
            while !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The slot is ordered to restart.
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let run = Run::start(program.clone(), options(machines, 200, hook)).expect("starts");
    let report = run.wait_for(Duration::from_secs(30)).expect("it ends").expect("well");
    assert!(panicked.load(Ordering::SeqCst));
    assert_eq!(report.restarts, 1);
    let sum = |window: i64| (window * 2000..(window + 1) * 2000).sum::<i64>();
    let expected: Vec<String> =
        (0..3).map(|window| format!("w{window:06}={}", 2000 * 1_000_000_000 + sum(window))).collect();
    assert_eq!(lines(&collected), expected);
}

/// All was durable downstream of a receiver that was then lost and restarts: its sender stays until it has caught up. A
/// slot that ended meanwhile would have to restart for it.
#[test]
#[ignore = "long: make test-long"]
fn a_slot_does_not_end_before_a_receiver_that_has_begun_again() {
    let (slow_gate, again_gate) = (Gate::closed(), Gate::closed());
    let is_again = Arc::new(AtomicBool::new(false));
    let mut b = Builder::new(&[1.0]);
    let has_ended = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&has_ended);
    let (quick, quick_rows) =
        sink_with("quick", false, move |epoch| ending.store(epoch == u64::MAX, Ordering::SeqCst));
    let (slow, slow_rows) = sink("slow");
    b.source(rows_source("src", numbered(1000), None, Some(0), 40), "s");
    let (again, held_again) = (Arc::clone(&is_again), Arc::clone(&again_gate));
    let hold_again = pass("p", move |_| {
        if again.load(Ordering::SeqCst) {
            held_again.pass();
        }
    });
    let held = Arc::clone(&slow_gate);
    b.operator("p", hold_again, "b", &[]).edge("src", "p", 0);
    b.operator("q", pass("q", move |_| held.pass()), "c", &[]).edge("src", "q", 0);
    b.sink(quick, "b").edge("p", "quick", 0);
    b.sink(slow, "c").edge("q", "slow", 0);
    let program = on_workers(b.program);
    let mut machines = machines(&program, "b");
    machines.delay = Duration::ZERO;
    let relaunched = Arc::clone(&is_again);
    machines.relaunched = Arc::new(move || relaunched.store(true, Ordering::SeqCst));
    let (control, launched) = (Arc::clone(&machines.control), Arc::clone(&machines.launched));
    let run = Run::start(program.clone(), options(machines, 20, Arc::new(|_, _| ()))).expect("starts");
    let wait = |is_so: &dyn Fn() -> bool| {
        assert!((0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_so()
        }));
    };
    wait(&|| has_ended.load(Ordering::SeqCst) && slow_gate.holds());
    // Its slot ends.
    std::thread::sleep(Duration::from_millis(500));
    control.cut();
    // It is connected, and has not taken all missing data.
    wait(&|| again_gate.holds());
    slow_gate.open();
    wait(&|| lines(&slow_rows).len() == 1000);
    // Time to end, for a slot that would.
    std::thread::sleep(Duration::from_millis(500));
    again_gate.open();
    let report = run.wait_for(Duration::from_secs(30)).expect("it ends").expect("well");
    assert_eq!(launched.lock().expect("not poisoned")["b"], 2, "nothing was lost");
    assert_eq!((report.complete, report.restarts), (true, 1), "only what was lost began again");
    assert_eq!((lines(&quick_rows).len(), lines(&slow_rows).len()), (1000, 1000));
}

/// A worker is lost after all its output is durable downstream, and before its coordinator has received its dead letters:
/// the next one does not end before it has sent them again.
#[test]
fn letters_that_nobody_heard_come_again_although_all_behind_them_is_durable() {
    const ROWS: usize = 1000;
    let gate = Gate::closed();
    let has_ended = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&has_ended);
    let mut b = Builder::new(&[1.0]);
    let (out, rows) = sink_with("out", false, move |epoch| ending.store(epoch == u64::MAX, Ordering::SeqCst));
    b.source(rows_source("src", numbered(ROWS), None, Some(0), 40), "s");
    let held = Arc::clone(&gate);
    b.operator("p", pass("p", move |_| held.pass()), "a", &[]).edge("src", "p", 0);
    let mut picky = pass("f", |_| {});
    picky.make = Arc::new(|| Ok(Instance::Stateless(Box::new(Picky))));
    b.operator("f", picky, "a", &[]).edge("p", "f", 0);
    b.sink(out, "b").edge("f", "out", 0);
    let program = on_workers(b.program);
    let machines = machines(&program, "a");
    let (control, launched) = (Arc::clone(&machines.control), Arc::clone(&machines.launched));
    // No checkpoint meanwhile.
    let run = Run::start(program.clone(), options(machines, 600_000, Arc::new(|_, _| ()))).expect("starts");
    let wait = |is_so: &dyn Fn() -> bool| {
        assert!((0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_so()
        }));
    };
    wait(&|| gate.holds());
    control.is_deaf.store(true, Ordering::SeqCst);
    gate.open();
    // Its letters use a separate connection.
    wait(&|| has_ended.load(Ordering::SeqCst) && control.unheard.load(Ordering::SeqCst) > 0);
    control.cut();
    let report = run.wait_for(Duration::from_secs(60)).expect("it ends").expect("well");
    assert_eq!(launched.lock().expect("not poisoned")["a"], 2, "nothing was lost");
    assert_eq!(lines(&rows).len(), ROWS * 9 / 10);
    assert_eq!((report.complete, report.dead_letters), (true, ROWS as u64 / 10));
}

/// A host is lost while a checkpoint is written, when a window before its sink has ended: both restart from one checkpoint,
/// or the window would lack the data between that and the previous one.
#[test]
#[ignore = "long: make test-long"]
fn what_begins_again_while_a_checkpoint_is_written_begins_with_the_same_one() {
    const ROWS: usize = 2000;
    let has_ended = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&has_ended);
    let mut b = Builder::new(&[1.0]);
    let (out, collected) =
        sink_with("out", false, move |epoch| ending.store(epoch == u64::MAX, Ordering::SeqCst));
    b.source(rows_source("src", numbered(ROWS), Some(2000.0), Some(0), 40), "a");
    b.operator("w", window("w", 700_000), "b", &[]).edge("src", "w", 0);
    b.sink(out, "a").edge("w", "out", 0);
    let program = on_workers(b.program);
    let machines = machines(&program, "a");
    let (control, launched) = (Arc::clone(&machines.control), Arc::clone(&machines.launched));
    let (number, was_cut) = (AtomicU64::new(0), Arc::new(AtomicBool::new(false)));
    let cut = Arc::clone(&was_cut);
    let hook: Hook = Arc::new(move |epoch, _| {
        // Some checkpoints are done, and many are to come.
        if epoch > 0 && epoch != u64::MAX && number.fetch_add(1, Ordering::SeqCst) == 4 {
            while !has_ended.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The slot of the window ends.
            std::thread::sleep(Duration::from_millis(300));
            cut.store(true, Ordering::SeqCst);
            control.cut();
            // The needed parts are started again.
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let run = Run::start(program.clone(), options(machines, 50, hook)).expect("starts");
    let report = run.wait_for(Duration::from_secs(60)).expect("it ends").expect("well");
    assert!(was_cut.load(Ordering::SeqCst) && report.complete);
    assert_eq!(launched.lock().expect("not poisoned")["a"], 2, "nothing was lost");
    let of = |rows: std::ops::Range<i64>| rows.clone().sum::<i64>() + (rows.end - rows.start) * 1_000_000_000;
    let expected: Vec<String> = [0..700, 700..1400, 1400..2000]
        .into_iter()
        .enumerate()
        .map(|(window, rows)| format!("w{window:06}={}", of(rows)))
        .collect();
    assert_eq!(lines(&collected), expected);
}
