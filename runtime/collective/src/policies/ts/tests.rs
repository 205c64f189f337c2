use super::*;
use crate::policies::tests::{Lab, check};
use crate::topology::Priority;
use proptest::prelude::*;
use tidemill_random::Random;

/// Iterations of this period, each with these operations (start and length), that vary by this much.
fn trace(
    first_us: u64,
    period_us: u64,
    operations: &[(u64, u64)],
    iterations: u64,
    vary_us: u64,
    seed: u64,
) -> Vec<Span> {
    let mut random = Random::of_seed(seed);
    let mut vary = || random.below(vary_us as usize + 1) as u64;
    let mut trace = Vec::new();
    for iteration in 0..iterations {
        for (start, length) in operations {
            let start_us = first_us + iteration * period_us + start + vary();
            trace.push(Span { start_us, end_us: start_us + length + vary() });
        }
    }
    trace
}

/// Tells whether a window is open at a time.
fn is_open(windows: &Windows, at_us: u64) -> bool {
    let at = at_us % windows.period_us;
    windows.open_us.iter().any(|(from, to)| (*from..*to).contains(&at))
}

#[test]
fn a_window_goes_around_the_end_of_the_period() {
    let windows = windows(&trace(1_040_000, 100_000, &[(0, 20_000)], 8, 0, 1)).unwrap();
    assert_eq!(windows.open_us, [(0, 39_000), (61_000, 100_000)]);
}

#[test]
fn an_iteration_of_several_operations_is_one_period() {
    // Two bursts; the second one consists of two operations without a gap that is worth a window.
    let operations = [(0, 10_000), (50_000, 5_000), (56_000, 5_000)];
    let windows = windows(&trace(0, 200_000, &operations, 8, 0, 1)).unwrap();
    assert_eq!(windows.period_us, 200_000);
    assert_eq!(windows.open_us, [(11_000, 49_000), (62_000, 199_000)]);
}

#[test]
fn there_are_no_windows_without_a_period_or_a_gap() {
    assert_eq!(windows(&[]), Err(NoWindows::Short));
    assert_eq!(windows(&trace(0, 100_000, &[(0, 1_000)], 3, 0, 1)), Err(NoWindows::Short));
    assert_eq!(windows(&trace(0, 100_000, &[(0, 99_000)], 9, 0, 1)), Err(NoWindows::Busy));
    assert_eq!(windows(&trace(0, 100_000, &[(0, 95_000)], 9, 0, 1)), Err(NoWindows::Busy));
    let irregular: Vec<Span> =
        (0..20).map(|n: u64| Span { start_us: n * n * 20_000, end_us: n * n * 20_000 + 5_000 }).collect();
    assert_eq!(windows(&irregular), Err(NoWindows::Irregular));
}

#[test]
fn the_group_of_lowest_priority_sends_in_the_gaps_of_the_traced_one_on_its_path() {
    // A has a path of its own; B goes before C on the other one.
    let mut lab = Lab::racks(2, 2).spines(2).group("A", 8).group("B", 4).group("C", 4);
    lab.groups[0].priority = Priority::High;
    lab.groups[2].priority = Priority::Bulk;
    let of_a = trace(0, 220_000, &[(0, 60_000)], 10, 0, 1);
    let of_b = trace(0, 30_000, &[(0, 12_000)], 10, 0, 1);
    lab.traces = vec![("A".into(), of_a), ("B".into(), of_b)];
    let made = strategies(&lab.cluster(), &[]);
    let with: Vec<Option<u64>> =
        made.values().map(|one| one.windows.as_ref().map(|windows| windows.period_us)).collect();
    assert_eq!(with, [None, None, Some(30_000)]);
    let pfa = pfa::strategies(&lab.cluster(), &[]);
    assert!(made.iter().all(|(name, one)| one.channels == pfa[name].channels));
    check(&lab, &made).unwrap();

    // On one path, both give way to A.
    lab.hosts.iter_mut().for_each(|host| host.paths.truncate(1));
    let made = strategies(&lab.cluster(), &[]);
    let with: Vec<Option<u64>> =
        made.values().map(|one| one.windows.as_ref().map(|windows| windows.period_us)).collect();
    assert_eq!(with, [None, Some(220_000), Some(220_000)]);
}

proptest! {
    /// Windows are shut during all bursts of the trace and of the periods after it, and open in between.
    #[test]
    fn windows_keep_off_bursts(
        first in 0u64..1_000_000_000,
        gaps in proptest::collection::vec((8_000u64..60_000, 4_000u64..50_000), 1..4),
        vary in 0u64..300,
        seed in any::<u64>(),
    ) {
        let mut at = 0;
        let mut operations = Vec::new();
        for (gap, length) in &gaps {
            operations.push((at, *length));
            at += length + gap;
        }
        let traced = trace(first, at, &operations, 12, vary, seed);
        let windows = match windows(&traced) {
            Ok(windows) => windows,
            // Some vary too much to be alike.
            Err(reason) => { prop_assert_eq!(reason, NoWindows::Irregular); return Ok(()); }
        };
        let open: u64 = windows.open_us.iter().map(|(from, to)| to - from).sum();
        prop_assert!(open < windows.period_us);
        for span in &traced {
            for part in 0..=10 {
                let inside = span.start_us + (span.end_us - span.start_us) * part / 10;
                // The period is whole microseconds.
                prop_assert!(!is_open(&windows, inside), "{inside} of {windows:?}");
            }
        }
        let last = traced.len() - operations.len();
        for (number, (gap, _)) in gaps.iter().enumerate().take(gaps.len() - 1) {
            let middle = traced[last + number].end_us + gap / 2;
            prop_assert!(is_open(&windows, middle), "{middle} of {windows:?}");
        }
    }
}
