//! Reports of hosts beside their figures: sampled records, and the state of their clocks.
use crate::hosts::{finished, joined, with_clocks, with_hosts};
use crate::parts::*;
use arrow_array::RecordBatch;
use std::collections::BTreeMap;
use tidemill_engine::clock::ClockError;
use tidemill_engine::{Run, RunOptions, Sample, SampleOptions, SourceLink};

/// A few of the sink's records, with those of both sources.
fn samples() -> SampleOptions {
    let link = |source: &str, columns: Option<(&str, &str)>| SourceLink {
        source: source.to_owned(),
        columns: columns.map(|(a, b)| (a.to_owned(), b.to_owned())),
    };
    SampleOptions {
        most: 6,
        most_wrong: 3,
        recent_bytes: 8 << 20,
        links: BTreeMap::from([(
            "out".to_owned(),
            vec![link("left", Some(("key", "key"))), link("right", Some(("key", "key")))],
        )]),
        newest: None,
    }
}

/// Kept samples of a run: keys, and by source the keys of their origins.
fn kept(samples: &[Sample]) -> Vec<(String, Vec<(String, String)>)> {
    let key = |batch: &RecordBatch| keys(batch).concat();
    let sources = |sample: &Sample| {
        sample.sources.iter().map(|(source, record)| (source.clone(), key(record))).collect()
    };
    samples.iter().map(|sample| (key(&sample.record), sources(sample))).collect()
}

#[test]
fn records_of_sinks_meet_those_of_sources_on_other_hosts() {
    const ROWS: usize = 3000;
    let of = |hosts: bool| {
        let (mut program, collected) = joined(ROWS);
        // The sources are on a worker of their own, apart from the sink.
        for source in ["left", "right"] {
            program.plan.stages.iter_mut().find(|stage| stage.id == source).expect("is there").worker =
                "far".into();
        }
        let (plain, ended_hosts) = match hosts {
            true => with_hosts(&program, |_| true),
            false => Default::default(),
        };
        let run = Run::start(program, RunOptions { samples: Some(samples()), ..plain }).expect("starts");
        wait(&run);
        finished(&ended_hosts);
        assert_eq!(sorted(&collected).len(), ROWS);
        kept(&run.observer().samples("out"))
    };
    let (here, by_hosts) = (of(false), of(true));
    assert_eq!(by_hosts.len(), 6);
    assert_eq!(here, by_hosts);
    for (key, sources) in &by_hosts {
        // The join of these tests keeps no position in the left source, so that one is never found.
        assert!(sources.contains(&("right".to_owned(), key.clone())), "{key}: {sources:?}");
    }
}

/// A clock that is an hour ahead and gains 1000 ppm, another one that is late and loses: the output is equal, and latency
/// is that of the run.
#[test]
fn hosts_with_wrong_clocks_give_the_same_output() {
    const ROWS: usize = 6000;
    const HOUR: i64 = 3_600_000_000_000;
    let (mut program, collected) = joined(ROWS);
    program.sources.values_mut().for_each(|source| source.rate_per_second = Some(1500.0));
    let (options, ended_hosts) = with_clocks(
        &program,
        |_| true,
        |worker| match worker {
            "a" => ClockError { ahead: HOUR, drift: 1e-3 },
            "s" => ClockError { ahead: -HOUR, drift: -300e-6 },
            _ => ClockError::default(),
        },
    );
    let run = Run::start(program, options).expect("starts");
    let report = wait(&run);
    finished(&ended_hosts);
    let expected: Vec<String> = (0..ROWS).map(|i| format!("k{i:06}={}", i * 1_000_001)).collect();
    assert_eq!(sorted(&collected), expected);
    assert!(report.seconds >= 3.99, "{} s", report.seconds);
    let names: Vec<_> = report.hosts.iter().map(|host| host.host.as_str()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    let drift =
        |name: &str| report.hosts.iter().find(|host| host.host == name).expect("it told").clock_drift_ppm;
    // The coordinator's clock is slower than one that gains.
    assert!((drift("a") + 1000.0).abs() < 400.0, "{:?}", report.hosts);
    assert!((drift("s") - 300.0).abs() < 400.0, "{:?}", report.hosts);
    assert!(report.hosts.iter().all(|host| host.clock_plus_minus_ms > 0.0), "{:?}", report.hosts);
    // An hour would be 3600000 ms.
    let latency = &report.sinks[0].latency;
    assert!(latency.max_ms < 600_000.0 && latency.count == ROWS as u64, "{latency:?}");
    let transfers = report.stages.iter().map(|stage| stage.transfer.max_ms).fold(0.0, f64::max);
    assert!(transfers < 600_000.0, "{transfers}");
}

/// Latency between hosts is given with the possible difference of their clocks; latency within one host needs none.
#[test]
fn latency_across_hosts_has_a_plus_minus() {
    let (program, _) = joined(200);
    let (options, _) = with_hosts(&program, |_| true);
    // Sources and the sink are on one worker.
    let report = wait(&Run::start(program, options).expect("starts"));
    assert_eq!(report.sinks[0].latency_plus_minus_ms, None);
    let (mut program, _) = joined(200);
    let sink = program.plan.stages.iter_mut().find(|stage| stage.id == "out").expect("is there");
    sink.worker = "elsewhere".into();
    let (options, _) = with_hosts(&program, |_| true);
    let report = wait(&Run::start(program, options).expect("starts"));
    let own =
        |name: &str| report.hosts.iter().find(|host| host.host == name).expect("it told").clock_plus_minus_ms;
    assert_eq!(report.sinks[0].latency_plus_minus_ms, Some(own("elsewhere") + own("s")));
}
