use super::*;

fn seen() -> Seen {
    Seen { is_ended: false, given: 100, per_second: 20.0, wanted: Some(20.0), behind: 0.1, window: 5.0 }
}

#[test]
fn a_source_is_what_it_gives() {
    assert_eq!(seen().state(), SourceState::Running);
    assert_eq!(Seen { given: 0, per_second: 0.0, ..seen() }.state(), SourceState::Starting);
    assert_eq!(Seen { behind: 3.0, per_second: 9.0, ..seen() }.state(), SourceState::Behind);
    assert_eq!(Seen { per_second: 0.0, ..seen() }.state(), SourceState::Silent);
    // A record every ten seconds need not come in a window of five.
    assert_eq!(Seen { per_second: 0.0, wanted: Some(0.1), ..seen() }.state(), SourceState::Running);
    assert_eq!(Seen { per_second: 0.0, wanted: None, ..seen() }.state(), SourceState::Silent);
    assert_eq!(Seen { is_ended: true, per_second: 0.0, ..seen() }.state(), SourceState::Ended);
    // Nothing was measured yet.
    assert_eq!(Seen { per_second: 0.0, window: 0.0, ..seen() }.state(), SourceState::Running);
}

#[test]
fn times_are_those_of_the_last_samples() {
    let (latencies, mut recent) = (Latencies::default(), Recent::default());
    latencies.record(900_000_000, 1000);
    recent.advance(&latencies);
    for _ in 0..SAMPLES {
        latencies.record(2_000_000, 10);
        recent.advance(&latencies);
    }
    let times = recent.times();
    assert_eq!((times.count, times.p50_ms, times.p99_ms), (10 * SAMPLES as u64, 2.0, 2.0));
    latencies.record(8_000_000, 40);
    recent.advance(&latencies);
    let times = recent.times();
    assert!(times.p50_ms == 2.0 && (times.p99_ms - 8.0).abs() < 0.01, "{times:?}");
}

fn sample(at: f64, records: u64, seconds: f64) -> Sample {
    Sample {
        at,
        run: at,
        stages: vec![StageCounts {
            taken: records,
            given: records,
            batches: records / 10,
            computing: seconds / 2.0,
            processor: seconds,
            ..StageCounts::default()
        }],
        edges: Vec::new(),
        sinks: BTreeMap::new(),
        slots: vec![seconds],
    }
}

#[test]
fn rates_are_over_all_samples_that_are_kept() {
    let samples: VecDeque<Sample> =
        [sample(1.0, 10, 0.5), sample(2.0, 90, 0.6), sample(5.0, 130, 1.5)].into();
    let change = Change::of(&samples);
    assert_eq!(change.of_stage(0, |counts| counts.taken), Some(30.0));
    assert_eq!((change.of_stage(0, |counts| counts.batches), change.of_stage(1, |_| 7)), (Some(3.0), None));
    assert_eq!((change.computing(0), change.computing(1)), (Some(0.125), None), "whatever its batches hold");
    assert_eq!(change.processor(|sample| sample.slots.first().copied()), Some(0.25));
    assert_eq!(change.per_second(|sample| sample.edges.first().map(|counts| counts.0)), None);
    let samples: VecDeque<Sample> = [sample(1.0, 10, 0.5)].into();
    let change = Change::of(&samples);
    assert_eq!((change.seconds, change.processor(|sample| sample.slots.first().copied())), (0.0, None));
}

/// In 2 s on the clock, half a second of the run.
#[test]
fn rates_of_a_stretched_run_are_of_its_own_time() {
    let samples: VecDeque<Sample> =
        [Sample { run: 4.0, ..sample(1.0, 100, 1.0) }, Sample { run: 4.5, ..sample(3.0, 120, 2.0) }].into();
    let change = Change::of(&samples);
    assert_eq!((change.seconds, change.of_stage(0, |counts| counts.given)), (0.5, Some(40.0)));
    // Batches take the time of the run; processor time is real.
    assert_eq!(change.computing(0), Some(1.0));
    assert_eq!(change.processor(|sample| sample.slots.first().copied()), Some(0.5));
}

#[test]
fn instances_are_of_stages() {
    assert_eq!([stage_of("speech#1"), stage_of("speech"), stage_of("a#b")], ["speech", "speech", "a#b"]);
}
