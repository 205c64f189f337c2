//! Latency counts to the moment at which readers of a sink can see a record, as in the engine
//! (`runtime/engine/tests/engine/latency.rs` has this case too).
use crate::plans::chain;
use proptest::prelude::*;
use tidemill_optimizer::problem::LatencyLimit;
use tidemill_simulator::{Arrivals, Distribution, SinkOutcome};
use tidemill_spec::publication::Publication;

/// A record per millisecond, epochs of 10 ms, a checkpoint every 50 ms; each record takes 0.1 ms.
fn sink(publication: Publication) -> SinkOutcome {
    let mut case = chain(1000.0, &[Distribution::Mean(1e-4)]);
    case.problem.limits.tick_seconds = 0.01;
    case.problem.limits.latency = vec![LatencyLimit { percentile: 99.0, seconds: 0.03, sink: None }];
    let mut simulation = case.simulate(&Arrivals::constant(), |options| {
        (options.seconds, options.checkpoint_every) = (0.3, 5);
        options.sinks[0].publication = publication;
    });
    simulation.sinks.remove(0)
}

#[test]
fn records_wait_for_the_checkpoint_the_epoch_or_the_end() {
    let checkpoint = sink(Publication::EachCheckpoint);
    assert_eq!((checkpoint.latency.count, checkpoint.arrival.count), (300, 300));
    assert!((checkpoint.latency.max - 0.0491).abs() < 1e-6, "{:?}", checkpoint.latency);
    assert!((checkpoint.latency.mean - 0.0246).abs() < 1e-6, "{:?}", checkpoint.latency);
    assert!((checkpoint.arrival.max - 0.0001).abs() < 1e-6, "{:?}", checkpoint.arrival);
    assert!(!checkpoint.limits[0].is_kept(), "the level is judged by what readers see");
    let epoch = sink(Publication::EachEpoch);
    assert!((epoch.latency.max - 0.0091).abs() < 1e-6, "{:?}", epoch.latency);
    assert!(epoch.limits[0].is_kept());
    let end = sink(Publication::AtEnd);
    assert_eq!((end.latency.count, end.arrival.count, end.records), (0, 300, 300));
    assert!(!end.limits[0].is_kept() && end.limits[0].over == 1.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// The planners' bound: no record waits longer than from one checkpoint to the next, plus the slowest record's
    /// time.
    #[test]
    fn no_record_waits_longer_than_the_bound(
        rate in 5.0f64..200.0,
        service in 1e-4f64..4e-3,
        tick in 0.005f64..0.1,
        every in 1u32..30,
        by_checkpoint: bool,
    ) {
        let mut case = chain(rate, &[Distribution::Mean(service)]);
        case.problem.limits.tick_seconds = tick;
        let publication = if by_checkpoint { Publication::EachCheckpoint } else { Publication::EachEpoch };
        let simulation = case.simulate(&Arrivals::poisson(), |options| {
            (options.seconds, options.checkpoint_every) = (20.0, every);
            options.lead_ticks = 2 * every;
            options.sinks[0].publication = publication;
        });
        let sink = &simulation.sinks[0];
        let longest = tick * if by_checkpoint { f64::from(every) } else { 1.0 };
        prop_assert_eq!(sink.latency.count, sink.arrival.count);
        prop_assert!(sink.latency.max <= longest + sink.arrival.max + 1e-6, "{:?}", sink);
        prop_assert!(sink.latency.mean >= sink.arrival.mean);
    }
}
