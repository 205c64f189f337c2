//! Nothing spins, piles up or deadlocks: cycles of slots, waiting sources, small frames, deep queues. Tests named `alone_`
//! read processor time or memory from the operating system, so they run, and wait, in real time.
use crate::parts::*;
use arrow_array::RecordBatch;
use std::sync::Arc;
use std::time::Duration;
use tidemill_engine::{Run, RunOptions};
use tidemill_machine::process_time;
use tidemill_operators::api::*;
use tidemill_operators::record::*;

fn expanding(id: &str, times: usize) -> BoundOperator {
    struct Expand(usize);
    impl Stateless for Expand {
        fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
            for index in 0..self.0 {
                let metadata = Metadata::of(batch);
                let ids: Vec<u8> = (0..batch.num_rows())
                    .flat_map(|row| derive_id(3, &[metadata.id(row)], index as u32))
                    .collect();
                let mut columns = batch.columns().to_vec();
                columns[0] = Arc::new(arrow_array::FixedSizeBinaryArray::new(16, ids.into(), None));
                output.push(RecordBatch::try_new(batch.schema(), columns).expect("same schema"));
            }
            Ok(())
        }
    }
    operator(id, Computation::Stateless, move || Instance::Stateless(Box::new(Expand(times))))
}

// Two slots that send to each other: a full budget must not stop the ingress that frees the other's egress.
fn cycle(is_apart: bool) {
    let mut b = Builder::new(&[1.0]);
    b.is_apart = is_apart;
    b.byte_budget = 1 << 20;
    b.program.plan.checkpoint_every = 50;
    let (out, collected) = sink("out");
    let rows: Vec<Row> = (0..1000)
        .map(|i| Row { key: format!("{i:016384}"), value: i as i64, time: i as i64 * 1000 })
        .collect();
    b.source(rows_source("src", rows, None, Some(0), 8), "a");
    b.operator("x", expanding("x", 20), "b", &[]).edge("src", "x", 0);
    b.sink(out, "a").edge("x", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    ended(&run, 50);
    assert_eq!(collected.lock().expect("not poisoned").len(), 20_000);
}

#[test]
fn a_cycle_of_slots_in_process() {
    cycle(false);
}

#[test]
fn a_cycle_of_slots_of_two_workers() {
    cycle(true);
}

/// A source that is as far ahead of the durable epoch as it may be sleeps.
#[test]
#[ignore = "long: make test-long"]
fn alone_a_slow_source_beside_a_fast_one_does_not_spin() {
    let mut b = Builder::new(&[1.0]);
    b.source(rows_source("slow", numbered(10), Some(1.0 / 3600.0), None, 40), "a");
    b.source(rows_source("fast", numbered(1000), Some(20.0), None, 40), "b");
    b.operator("j", join("j", 0), "c", &[]).edge("slow", "j", 0).edge("fast", "j", 1);
    b.sink(nowhere("out"), "d").edge("j", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    std::thread::sleep(Duration::from_millis(500));
    let before = process_time();
    assert!(run.wait_for(Duration::from_secs(2)).is_none());
    let used = process_time() - before;
    run.stopper().abort();
    run.wait().expect("aborts well");
    assert!(used <= Duration::from_millis(200), "{used:?} of processor time in 2 s");
}

/// The usual case: a file source before a slow model.
#[test]
#[ignore = "long: make test-long"]
fn alone_a_file_source_in_front_of_a_slow_model_does_not_spin() {
    let mut b = Builder::new(&[1.0]);
    b.source(rows_source("src", numbered(100_000), None, None, 256), "a");
    b.operator("m", model("m", |_| std::thread::sleep(Duration::from_millis(20))), "b", &[])
        .edge("src", "m", 0);
    b.sink(nowhere("out"), "b").edge("m", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    std::thread::sleep(Duration::from_millis(1000));
    let before = process_time();
    assert!(run.wait_for(Duration::from_secs(2)).is_none());
    let used = process_time() - before;
    run.stopper().abort();
    run.wait().expect("aborts well");
    assert!(used <= Duration::from_millis(300), "{used:?} of processor time in 2 s");
}

/// A waiting source has one deadline, regardless of how often its slot is scheduled: the memory of the process does not
/// grow.
#[test]
#[ignore = "long: make test-long"]
fn alone_deadlines_do_not_pile_up() {
    let mut b = Builder::new(&[1.0]);
    b.source(rows_source("slow", numbered(10), Some(1.0 / 3600.0), None, 40), "a");
    b.sink(nowhere("out"), "a").edge("slow", "out", 0);
    b.source(rows_source("fast", numbered(1_000_000), None, None, 256), "a");
    let m = model("m", |batch| std::thread::sleep(Duration::from_millis(batch.num_rows() as u64)));
    b.operator("m", m, "a", &[]).edge("fast", "m", 0);
    b.sink(nowhere("other"), "a").edge("m", "other", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    std::thread::sleep(Duration::from_millis(1000));
    let (before, cpu) = (resident(), process_time());
    std::thread::sleep(Duration::from_secs(4));
    let (grown, used) = (resident().saturating_sub(before), process_time() - cpu);
    run.stopper().abort();
    run.wait().expect("aborts well");
    assert!(grown < 16 << 20, "{} MiB more after 4 s, {used:?} of processor time", grown >> 20);
}

/// Frames between workers of one process take memory and no descriptors.
#[test]
fn small_frames_do_not_use_up_the_descriptors() {
    let mut b = Builder::new(&[1.0]);
    b.is_apart = true;
    b.byte_budget = 1 << 12;
    b.program.plan.checkpoint_every = 10;
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(12_000), None, Some(0), 1), "a");
    let gate = Gate::closed();
    let held = Arc::clone(&gate);
    b.operator("m", model("m", move |_| held.pass()), "b", &[]).edge("src", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    // Until the source has stopped: nothing more for a tenth of a second.
    let mut emitted = 0;
    loop {
        assert!(run.wait_for(Duration::from_millis(100)).is_none(), "the model holds the run up");
        let before = std::mem::replace(&mut emitted, run.progress().emitted);
        if gate.holds() && before == emitted {
            break;
        }
    }
    let descriptors = descriptors();
    println!("{descriptors} descriptors with {emitted} frames");
    assert!((1000..12_000).contains(&emitted), "{emitted} frames were sent before credits ended");
    gate.open();
    ended(&run, 15);
    assert_eq!(collected.lock().expect("not poisoned").len(), 12_000);
    assert!(descriptors < 200, "{descriptors} descriptors");
}

/// The work for a deep queue grows with its batches, not with their square.
#[test]
#[ignore = "long: make test-long"]
fn alone_a_deep_queue_of_small_batches_costs_linear_time() {
    let time = |rows: usize| {
        let mut b = Builder::new(&[1.0]);
        b.program.plan.checkpoint_every = 1000;
        b.source(rows_source("src", numbered(rows), None, Some(0), 1), "a");
        b.operator("m", model("m", |_| {}), "a", &[]).edge("src", "m", 0);
        b.sink(nowhere("out"), "a").edge("m", "out", 0);
        let before = process_time();
        ended(&Run::start(b.program, RunOptions::default()).expect("starts"), 50);
        process_time() - before
    };
    let (small, large) = (time(40_000), time(160_000));
    assert!(large < 7 * small, "{small:?} for 40,000 records, {large:?} for 160,000");
}

/// A source that records the memory addresses of its keys.
struct Noting {
    source: Box<dyn Source>,
    places: Places,
}

/// Memory address by key.
type Places = Arc<std::sync::Mutex<std::collections::BTreeMap<String, usize>>>;

fn note(places: &Places, column: &arrow_array::ArrayRef) {
    let keys = text(column).expect("text");
    let all = (0..column.len()).map(|row| (keys.value(row).to_owned(), keys.value(row).as_ptr() as usize));
    places.lock().expect("not poisoned").extend(all);
}

impl Source for Noting {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let read = self.source.read(rows, bytes)?;
        if let SourceRead::Rows { payload, .. } = &read {
            note(&self.places, payload.column(0));
        }
        Ok(read)
    }
    fn position(&self) -> SourcePosition {
        self.source.position()
    }
    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.source.seek(position)
    }
}

/// The memory that a source has read is the memory that operators of its process see, on its thread and on another one.
#[test]
fn records_are_not_copied_between_operators() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    let [read, first, second] = [(); 3].map(|()| Places::default());
    let plain = rows_source("s", numbered(3000), Some(20_000.0), Some(0), 64);
    let (make, noted) = (Arc::clone(&plain.make), Arc::clone(&read));
    let make: MakeSource =
        Arc::new(move || Ok(Box::new(Noting { source: make()?, places: Arc::clone(&noted) })));
    b.source(BoundSource { make, ..plain }, "a");
    let [of_first, of_second] = [Arc::clone(&first), Arc::clone(&second)];
    b.operator("f", pass("f", move |batch| note(&of_first, batch.column(METADATA_COLUMNS))), "a", &[]);
    b.operator("g", pass("g", move |batch| note(&of_second, batch.column(METADATA_COLUMNS))), "b", &[]);
    b.edge("s", "f", 0).edge("f", "g", 0);
    b.sink(out, "b").edge("g", "out", 0);
    wait(&Run::start(b.program, RunOptions::default()).expect("starts"));
    assert_eq!(collected.lock().expect("not poisoned").len(), 3000);
    let [read, first, second] =
        [read, first, second].map(|places| places.lock().expect("not poisoned").clone());
    assert_eq!(read.len(), 3000);
    assert!(read == first, "the first operator sees copies");
    assert!(read == second, "the second operator sees copies");
}
