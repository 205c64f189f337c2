//! Selection of traced records, and bounded memory without a receiver.
use super::*;
use tidemill_spec::plan::{Plan, PlanWorkflow};

fn tracer(share: f64) -> Tracer {
    let plan = Plan::new(PlanWorkflow { name: "flow".into(), digest: None });
    let program = Program {
        plan,
        sources: BTreeMap::new(),
        operators: BTreeMap::new(),
        sinks: BTreeMap::new(),
        on_panic: BTreeMap::new(),
        when_cut: BTreeMap::new(),
    };
    Tracer::new(TraceOptions::new(share, 7), 1.0, &program, &Graph::default())
}

#[test]
fn the_share_is_kept_and_every_source_has_its_own_records() {
    for share in [0.0, 0.01, 0.25, 1.0] {
        let tracer = tracer(share);
        let traced = |source| {
            (0..100_000u64).filter(move |sequence| tracer.is_traced(source, *sequence)).collect::<Vec<_>>()
        };
        let (one, other) = (traced(0), self::tracer(share));
        let part = one.len() as f64 / 1e5;
        assert!((part - share).abs() < 0.004, "{part} of {share}");
        let also: Vec<u64> = (0..100_000).filter(|sequence| other.is_traced(1, *sequence)).collect();
        assert!(one != also || share == 0.0 || share == 1.0, "not the same places of every source");
    }
}

fn span_of(tracer: &Tracer) -> Span {
    let trace = tracer.trace(Origin { source: 0, sequence: 1 });
    Span {
        trace,
        id: Tracer::id(&trace, Happening::Compute, "some"),
        parent: None,
        what: Happening::Compute,
        operator: "some".into(),
        from: None,
        stage: "some".into(),
        worker: "edge".into(),
        begin: 1,
        end: 2,
        batch: 1,
        sequence: 1,
    }
}

#[test]
fn what_nobody_takes_is_bounded_and_counted() {
    let tracer = tracer(1.0);
    let span = span_of(&tracer);
    for _ in 0..MOST + 5 {
        tracer.add(span.clone());
    }
    assert_eq!((tracer.lock().len(), tracer.dropped()), (MOST, 5));
    tracer.lose(2);
    assert_eq!((tracer.take_dropped(), tracer.dropped()), (7, 0));
    assert_eq!((tracer.take(100).len(), tracer.lock().len()), (100, MOST - 100));
    assert!(span.is_small() && !Span { stage: "s".repeat(LONGEST + 1), ..span }.is_small());
}

/// A thread has taken spans and not sent them yet: the last message of a host waits for it.
#[test]
fn what_another_thread_has_taken_is_told_before_the_last_word() {
    use std::sync::mpsc::channel;
    let tracer = Arc::new(tracer(1.0));
    tracer.add(span_of(&tracer));
    let ((taken, is_taken), (go_on, may_go_on), (said, last_word)) = (channel(), channel(), channel());
    let of_thread = Arc::clone(&tracer);
    let telling = std::thread::spawn(move || {
        of_thread.give_on(|spans| {
            taken.send(spans.len()).expect("is heard");
            may_go_on.recv().expect("is told");
        });
    });
    assert_eq!(is_taken.recv().expect("is taken"), 1);
    let closing = std::thread::spawn(move || {
        tracer.give_on(|_| {});
        said.send(()).expect("is heard");
    });
    let early = last_word.recv_timeout(std::time::Duration::from_millis(300));
    assert!(early.is_err(), "the last word came before what was taken was told");
    go_on.send(()).expect("is heard");
    last_word.recv().expect("comes now");
    telling.join().expect("no panic");
    closing.join().expect("no panic");
}

#[test]
fn names_differ_by_record_operator_and_what_happened() {
    let tracer = tracer(1.0);
    let one = tracer.trace(Origin { source: 0, sequence: 1 });
    let other = tracer.trace(Origin { source: 1, sequence: 0 });
    assert_ne!(one, other);
    assert_eq!(trace_name(&one).len(), 32);
    let id = Tracer::id(&one, Happening::Queue, "a");
    assert_ne!(id, Tracer::id(&one, Happening::Compute, "a"));
    assert_ne!(id, Tracer::id(&one, Happening::Queue, "b"));
    assert_ne!(id, Tracer::id(&other, Happening::Queue, "a"));
}
