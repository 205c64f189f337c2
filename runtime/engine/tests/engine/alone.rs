//! Tests that measure the whole process; each needs its own process, hence `alone_` in the names. The operating system
//! reports memory and processor time, so these run, and wait, in real time.
use crate::parts::*;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_engine::{Run, RunOptions};
use tidemill_machine::{Process, process_time};
use tidemill_operators::api::*;
use tidemill_operators::record::payload_schema;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Generates 16 KiB records at full speed.
struct Generator {
    next: usize,
    rows: usize,
}

impl Source for Generator {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let n = rows.min(bytes / (16 << 10)).max(1).min(self.rows - self.next);
        if n == 0 {
            return Ok(SourceRead::End);
        }
        let keys: StringArray = (0..n).map(|i| Some(format!("{:016384}", self.next + i))).collect();
        let values: Int64Array = (0..n).map(|i| (self.next + i) as i64).collect();
        self.next += n;
        let payload = RecordBatch::try_new(payload_schema(&stream()), vec![Arc::new(keys), Arc::new(values)])
            .expect("two columns");
        Ok(SourceRead::Rows { payload, times: None, dead_letters: vec![], offsets: None })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(self.next.to_string())
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.next = position.0.parse().map_err(|_| OperatorError::new("not a position"))?;
        Ok(())
    }
}

/// A source of `rows` records of 16 KiB that takes no memory itself.
fn generator(id: &str, rows: usize) -> BoundSource {
    let mut source = rows_source(id, vec![], None, None, 1);
    source.make = Arc::new(move || Ok(Box::new(Generator { next: 0, rows })));
    source
}

#[test]
fn alone_memory_is_bounded_behind_a_fast_source() {
    const BUDGET: u64 = 8 << 20;
    const ROWS: usize = 12_000;
    let mut b = Builder::new(&[1.0]);
    b.byte_budget = BUDGET;
    b.source(generator("src", ROWS), "a");
    let slow = |id: &str| {
        model(id, |batch| std::thread::sleep(Duration::from_micros(250 * batch.num_rows() as u64)))
    };
    b.operator("slow", slow("slow"), "b", &[]).edge("src", "slow", 0);
    b.sink(nowhere("out"), "c").edge("slow", "out", 0);
    let idle = resident() as f64;
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let mut samples = Vec::new();
    let report = loop {
        if let Some(result) = run.wait_for(Duration::from_millis(10)) {
            break result.expect("succeeds");
        }
        samples.push(resident() as f64);
    };
    assert_eq!(report.sinks[0].records, ROWS as u64);
    let third = samples.len() / 3;
    let (middle, last) = (median(samples[third..2 * third].to_vec()), median(samples[2 * third..].to_vec()));
    let bound = idle + 3.0 * BUDGET as f64 + (64 << 20) as f64;
    let mib = |bytes: f64| bytes / (1 << 20) as f64;
    println!(
        "idle {:.0}, middle {:.0}, last {:.0}, bound {:.0} MiB",
        mib(idle),
        mib(middle),
        mib(last),
        mib(bound)
    );
    assert!(samples.len() > 100, "{} samples", samples.len());
    // Less than a tenth of the data has stayed in memory; smaller differences depend on the fill of the queues.
    let through = (ROWS / 3 * (16 << 10)) as f64;
    assert!(last <= middle + through / 10.0, "grows from {:.1} to {:.1} MiB", mib(middle), mib(last));
    assert!(last <= bound, "{:.1} MiB, at most {:.1} expected", mib(last), mib(bound));
}

/// The `join` of workflows, on `key`, of partners at most 100 ms apart.
fn real_join() -> BoundOperator {
    use tidemill_operators::kind::{InputPort, OperatorContext};
    use tidemill_spec::span::{SourceFile, Span};
    let port = |from: &str| InputPort { from: from.into(), stream: stream(), span: Span::nowhere() };
    let id = "j".into();
    let base = std::path::Path::new(".");
    let context = OperatorContext::new(&id, base);
    let text = "key: key\nwithin: 100ms\nsame_names: keep_first";
    let options = tidemill_spec::yaml::parse(&SourceFile::new("workflow.yaml", text)).expect("yaml");
    let registry = tidemill_operators::registry::Registry::builtin();
    let join = registry.operator("join").expect("it is built in");
    join.bind(&context, &[port("dense"), port("sparse")], &options).expect("the options are right")
}

#[test]
#[ignore = "long: make test-long"]
fn alone_a_join_of_unequal_sources_keeps_what_is_within_its_bound() {
    const DENSE: i64 = 300_000;
    const STATE: u64 = 1 << 20;
    let rows = |n: i64, step: i64| -> Vec<Row> {
        (0..n).map(|i| Row { key: format!("k{:06}", i * 7919 % 1000), value: i, time: i * step }).collect()
    };
    let mut b = Builder::new(&[1.0]);
    b.source(rows_source("dense", rows(DENSE, 1000), None, Some(0), 256), "a");
    b.source(rows_source("sparse", rows(DENSE / 10, 10_000), None, Some(0), 256), "b");
    b.operator("j", real_join(), "c", &[]).edge("dense", "j", 0).edge("sparse", "j", 1);
    b.sink(nowhere("out"), "c").edge("j", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let mut samples = Vec::new();
    let report = loop {
        if let Some(result) = run.wait_for(Duration::from_millis(1)) {
            break result.expect("succeeds");
        }
        let report = run.report();
        let join = report.stages.iter().find(|stage| stage.stage == "j").expect("a stage");
        samples.push(join.state_bytes);
    };
    let join = report.stages.iter().find(|stage| stage.stage == "j").expect("a stage");
    assert_eq!((join.records_in, join.state_bytes), (DENSE as u64 * 11 / 10, 0));
    let most = samples.iter().max().copied().unwrap_or(0);
    println!("{most} bytes of state at most, in {} samples", samples.len());
    assert!(samples.iter().filter(|bytes| **bytes > 0).count() > 20, "{} samples", samples.len());
    assert!(most <= STATE, "{most} bytes of state, at most {STATE} expected");
}

#[test]
fn alone_an_idle_run_costs_less_than_one_percent_of_a_core() {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    // One record an hour: everything waits, no thread may poll.
    b.source(rows_source("a", numbered(10), Some(1.0 / 3600.0), None, 40), "a");
    b.source(rows_source("b", numbered(10), Some(1.0 / 3600.0), None, 40), "b");
    b.operator("m", model("m", |_| {}), "c", &[]).edge("a", "m", 0);
    b.operator("j", join("j", 0), "d", &[]).edge("m", "j", 0).edge("b", "j", 1);
    b.sink(out, "e").edge("j", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    std::thread::sleep(Duration::from_millis(300));
    let before = process_time();
    assert!(run.wait_for(Duration::from_secs(2)).is_none());
    let used = process_time() - before;
    run.stopper().abort();
    run.wait().expect("aborts well");
    println!("{used:?} of processor time in 2 s");
    assert!(used <= Duration::from_millis(20), "{used:?} of processor time in 2 s");
}

/// A source that records the number of threads whenever a reader of it is made.
fn watched(source: BoundSource, most: &Arc<AtomicUsize>) -> BoundSource {
    let (make, most) = (Arc::clone(&source.make), Arc::clone(most));
    let watched: MakeSource = Arc::new(move || {
        most.fetch_max(Process::this().threads(), Ordering::Relaxed);
        make()
    });
    BoundSource { make: watched, ..source }
}

#[test]
fn alone_a_thousand_sources_share_a_few_threads() {
    const SOURCES: usize = 1000;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    let most = Arc::new(AtomicUsize::new(0));
    for n in 0..SOURCES {
        let id = format!("s{n}");
        // More reads than may be ahead, so that each source is parked and resumed.
        b.source(watched(rows_source(&id, numbered(40), None, None, 4), &most), "a").edge(&id, "out", 0);
    }
    b.sink(out, "a");
    let before = Process::this().threads();
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    ended(&run, 100);
    let added = most.load(Ordering::Relaxed) - before;
    // The run, its host, its slot, and two readers per processor.
    assert!((1..=2 * processors + 3).contains(&added), "{added} threads for {SOURCES} sources");
    assert_eq!(collected.lock().expect("not poisoned").len(), 40 * SOURCES);
}

#[test]
fn alone_sources_that_wait_do_not_hold_up_files() {
    use crossbeam_channel::{Receiver, bounded};
    /// Ends on a signal.
    struct Waiting(Receiver<()>);
    impl Source for Waiting {
        fn read(&mut self, _rows: usize, _bytes: usize) -> Result<SourceRead, OperatorError> {
            let _ = self.0.recv();
            Ok(SourceRead::End)
        }
        fn position(&self) -> SourcePosition {
            SourcePosition::default()
        }
        fn seek(&mut self, _position: &SourcePosition) -> Result<(), OperatorError> {
            Ok(())
        }
        fn replayable(&self) -> bool {
            false
        }
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut b = Builder::new(&[1.0]);
    let (release, waits) = bounded::<()>(0);
    for n in 0..3 * processors {
        let id = format!("w{n}");
        let mut source = rows_source(&id, vec![], None, None, 1);
        let waits = waits.clone();
        source.stream = Some(format!("stream {}", source.id));
        source.make = Arc::new(move || Ok(Box::new(Waiting(waits.clone()))));
        b.source(source, "a").edge(&id, "out", 0);
    }
    let (arrived, rows) = bounded(1000);
    b.source(rows_source("file", numbered(10), None, None, 1), "a");
    let seen = pass("seen", move |batch| arrived.send(batch.num_rows()).expect("somebody counts"));
    b.operator("seen", seen, "a", &[]).edge("file", "seen", 0).edge("seen", "out", 0);
    b.sink(sink("out").0, "a");
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let mut missing = 10;
    while missing > 0 {
        missing -= rows.recv_timeout(Duration::from_secs(50)).expect("the file is read while others wait");
    }
    drop(release);
    ended(&run, 50);
}

#[test]
fn alone_a_stage_takes_less_than_a_hundred_kibibytes() {
    const STAGES: usize = 1000;
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("s", numbered(300), None, None, 40), "a");
    let mut last = "s".to_owned();
    for n in 0..STAGES {
        let id = format!("m{n}");
        b.operator(&id, pass(&id, |_| {}), "a", &[]).edge(&last, &id, 0);
        last = id;
    }
    b.sink(out, "a").edge(&last, "out", 0);
    let before = resident();
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    ended(&run, 100);
    let each = resident().saturating_sub(before) as f64 / STAGES as f64;
    println!("{each:.0} bytes a stage");
    assert!(each <= (100 << 10) as f64, "{each:.0} bytes a stage");
    assert_eq!(collected.lock().expect("not poisoned").len(), 300);
}
