//! Panics, failures and aborts.
use crate::parts::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{Run, RunError, RunOptions};
use tidemill_operators::api::{BoundOperator, OperatorError, Source, SourcePosition, SourceRead};

/// Panics whenever one of these values is in the batch.
fn fragile(as_model: bool, poison: &'static [i64]) -> BoundOperator {
    let act = move |batch: &arrow_array::RecordBatch| {
        if let Some(value) = values(batch).iter().find(|value| poison.contains(value)) {
            panic!("value {value} is poison");
        }
    };
    if as_model { model("fragile", act) } else { pass("fragile", act) }
}

fn run(operator: BoundOperator, restart: bool) -> (Result<tidemill_engine::RunReport, RunError>, Collected) {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(500), None, Some(0), 40), "a");
    b.operator("fragile", operator, "b", &[]).edge("src", "fragile", 0);
    b.sink(out, "c").edge("fragile", "out", 0);
    if restart {
        b.restart_on_panic("fragile");
    }
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let result = run.wait_for(Duration::from_secs(50)).expect("does not hang");
    (result, collected)
}

#[test]
fn a_panic_stops_the_run_with_the_operators_name() {
    for as_model in [false, true] {
        let (result, collected) = run(fragile(as_model, &[123]), false);
        let error = result.expect_err("stops");
        assert_eq!(error.to_string(), "operator 'fragile' panicked: value 123 is poison");
        assert!(collected.lock().expect("not poisoned").len() < 500);
    }
}

#[test]
fn a_restart_sends_only_the_guilty_records_to_dead_letters() {
    for as_model in [false, true] {
        let (result, collected) = run(fragile(as_model, &[77, 78, 300]), true);
        let report = result.expect("goes on");
        let expected: Vec<String> =
            (0..500).filter(|i| ![77, 78, 300].contains(i)).map(|i| format!("k{i:06}={i}")).collect();
        assert_eq!(sorted(&collected), expected);
        assert_eq!(report.dead_letters, 3, "{:?}", report.dead_letter_samples);
        assert!(report.dead_letter_samples.iter().all(|letter| letter.reason == "panic"));
    }
}

#[test]
fn a_panic_that_does_not_come_again_loses_nothing() {
    for as_model in [false, true] {
        let times = Arc::new(AtomicUsize::new(0));
        let act = move |batch: &arrow_array::RecordBatch| {
            if values(batch).contains(&200) && times.fetch_add(1, Ordering::Relaxed) == 0 {
                panic!("once");
            }
        };
        let operator = if as_model { model("fragile", act) } else { pass("fragile", act) };
        let (result, collected) = run(operator, true);
        assert_eq!(result.expect("goes on").dead_letters, 0);
        assert_eq!(collected.lock().expect("not poisoned").len(), 500);
    }
}

#[test]
fn an_abort_abandons_inference_and_keeps_what_was_committed() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(100_000), Some(1000.0), Some(0), 40), "a");
    let (clock, gate) = (Arc::new(ManualClock::new()), Gate::closed());
    let held = Arc::clone(&gate);
    let stuck = model("m", move |batch| {
        if values(batch).contains(&600) {
            held.pass();
        }
    });
    b.operator("m", stuck, "b", &[]).edge("src", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    let options = RunOptions { clock: clock.clone(), ..RunOptions::default() };
    let run = Run::start(b.program, options).expect("starts");
    passes(&clock, MILLISECOND, || gate.holds() && run.progress().arrived >= 500);
    run.stopper().abort();
    // It does not wait for the model.
    let report = ended(&run, 20);
    assert!(gate.holds());
    assert!(!report.complete);
    let lines = collected.lock().expect("not poisoned");
    // Whole epochs, of 10 ms at 1000/s, and a prefix without gaps. A source that is far ahead has them committed before the
    // checkpoint.
    assert!(lines.len() >= 400 && lines.len() % 10 == 0, "{} lines", lines.len());
    assert_eq!(report.sinks[0].records, lines.len() as u64);
    assert!(lines.iter().enumerate().all(|(i, line)| *line == format!("k{i:06}={i}")));
}

#[test]
fn a_stop_finishes_what_was_emitted() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(100_000), Some(1000.0), Some(0), 40), "a");
    let clock = Arc::new(ManualClock::new());
    b.operator("m", model("m", takes(&clock, MILLISECOND)), "b", &[]).edge("src", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    let options = RunOptions { clock: clock.clone(), ..RunOptions::default() };
    let run = Run::start(b.program, options).expect("starts");
    passes(&clock, MILLISECOND, || run.progress().arrived >= 100);
    run.stopper().stop();
    let report = drive(&run, &clock);
    assert!(report.complete);
    let emitted = report.stages[0].records_out;
    assert_eq!(collected.lock().expect("not poisoned").len() as u64, emitted);
}

#[test]
fn records_and_duration_end_a_run() {
    for (records, duration, expected) in [(Some(70), None, 70), (None, Some(Duration::from_millis(200)), 200)]
    {
        let mut b = Builder::new(&[1.0]);
        let (out, collected) = sink("out");
        b.source(rows_source("src", numbered(100_000), Some(1000.0), Some(0), 40), "a");
        b.sink(out, "a").edge("src", "out", 0);
        let clock = Arc::new(ManualClock::new());
        let options = RunOptions { records, duration, clock: clock.clone(), ..RunOptions::default() };
        drive(&Run::start(b.program, options).expect("starts"), &clock);
        assert_eq!(collected.lock().expect("not poisoned").len(), expected);
    }
}

#[test]
fn an_unsound_plan_is_refused_before_anything_runs() {
    let mut b = Builder::new(&[1.0]);
    b.source(rows_source("src", numbered(1), None, None, 40), "a");
    let Err(error) = Run::start(b.program, RunOptions::default()) else { panic!("must be refused") };
    assert!(error.to_string().contains("nothing receives"), "{error}");
}

/// Returns the rows of another source, then an error instead of an end.
struct Torn(Box<dyn Source>);

impl Source for Torn {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        match self.0.read(rows, bytes)? {
            SourceRead::End => Err(OperatorError::new("the file was cut off")),
            read => Ok(read),
        }
    }

    fn position(&self) -> SourcePosition {
        self.0.position()
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.0.seek(position)
    }
}

/// Also in the middle of an epoch.
#[test]
fn a_source_that_breaks_fails_the_run_behind_the_rows_that_could_be_read() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    let mut source = rows_source("src", numbered(137), None, Some(0), 40);
    let make = Arc::clone(&source.make);
    source.make = Arc::new(move || Ok(Box::new(Torn(make()?))));
    b.source(source, "a");
    b.sink(out, "b").edge("src", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let error = run.wait_for(Duration::from_secs(50)).expect("does not hang").expect_err("fails");
    assert!(error.to_string().contains("the file was cut off"), "{error}");
    assert_eq!(collected.lock().expect("not poisoned").len(), 137);
}
