use super::*;
use crate::policies::tests::{Lab, check};
use crate::strategy::Strategy;
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

/// Who yields by windows, with their periods, and who yields to whom.
fn given(made: &BTreeMap<String, Chosen>) -> Vec<(Vec<u64>, Vec<String>)> {
    let windows = |one: &Strategy| {
        one.windows.iter().flat_map(Windows::each).map(|windows| windows.period_us).collect()
    };
    made.values().map(|one| (windows(&one.strategy), one.strategy.yields.clone())).collect()
}

#[test]
fn a_group_yields_to_those_before_it_on_its_hosts_and_paths() {
    // A has a path of its own; B goes before C on the other one.
    let mut lab = Lab::racks(2, 2).spines(2).group("A", 8).group("B", 4).group("C", 4);
    lab.groups[0].priority = Priority::High;
    lab.groups[2].priority = Priority::Bulk;
    let of_a = trace(0, 220_000, &[(0, 60_000)], 10, 0, 1);
    let of_b = trace(0, 30_000, &[(0, 12_000)], 10, 0, 1);
    lab.traces = vec![("A".into(), of_a), ("B".into(), of_b)];
    let made = choose(&lab.cluster(), &[]);
    let to = |names: &[&str]| (Vec::new(), names.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(given(&made), [to(&[]), to(&[]), to(&["B"])]);
    assert!(made["C"].why.contains("waits on each host while B sends"), "{}", made["C"].why);
    assert!(made["A"].why.contains("no group that goes first would be quicker"), "{}", made["A"].why);
    let pfa = pfa::strategies(&lab.cluster(), &[]);
    assert!(made.iter().all(|(name, one)| one.strategy.channels == pfa[name].channels));

    // On one path, both yield to A, and C to both.
    lab.hosts.iter_mut().for_each(|host| host.paths.truncate(1));
    let made = choose(&lab.cluster(), &[]);
    assert_eq!(given(&made), [to(&[]), to(&["A"]), to(&["A", "B"])]);

    // One that sends all the time leaves nothing to yield to.
    lab.traces[0].1 = trace(0, 220_000, &[(0, 215_000)], 10, 0, 1);
    let made = choose(&lab.cluster(), &[]);
    assert_eq!(given(&made), [to(&[]), to(&[]), to(&["B"])]);
    assert!(
        made["B"].why.contains("sends at any time beside A: the group sends nearly all the time"),
        "{made:?}"
    );
}

/// High and normal groups on the first host of each rack, a bulk one on the second hosts: one path for all.
fn apart() -> Lab {
    let mut lab = Lab::racks(2, 2).group("A", 0).group("B", 0).group("C", 0);
    for (group, hosts, priority) in
        [(0, [0, 2], Priority::High), (1, [0, 2], Priority::Normal), (2, [1, 3], Priority::Bulk)]
    {
        lab.groups[group].ranks =
            (0..).zip(hosts).map(|(rank, host)| (rank, format!("host{host}"))).collect();
        lab.groups[group].priority = priority;
    }
    lab
}

#[test]
fn a_group_on_other_hosts_sends_in_the_gaps_of_all_that_go_first() {
    let mut lab = apart();
    lab.traces = vec![
        ("A".into(), trace(0, 220_000, &[(0, 60_000)], 10, 0, 1)),
        ("B".into(), trace(0, 90_000, &[(0, 12_000)], 10, 0, 1)),
    ];
    let made = choose(&lab.cluster(), &[]);
    assert_eq!(given(&made)[2], (vec![220_000, 90_000], Vec::new()));
    assert_eq!(given(&made)[1], (Vec::new(), vec!["A".to_owned()]));
    let windows = made["C"].strategy.windows.as_ref().unwrap();
    for at in (0..2_000_000).step_by(500) {
        let is_gap = |period: u64, length: u64| (length + 1_000..period - 1_000).contains(&(at % period));
        assert_eq!(windows.closed_for(at) == 0, is_gap(220_000, 60_000) && is_gap(90_000, 12_000), "{at}");
    }
    check(&lab, &made.iter().map(|(name, one)| (name.clone(), one.strategy.clone())).collect()).unwrap();

    // Two whose gaps are never at once: the first in turn counts.
    lab.traces = vec![
        ("A".into(), trace(0, 100_000, &[(0, 60_000)], 10, 0, 1)),
        ("B".into(), trace(50_000, 100_000, &[(0, 55_000)], 10, 0, 1)),
    ];
    let made = choose(&lab.cluster(), &[]);
    assert_eq!(given(&made)[2], (vec![100_000], Vec::new()));
    assert!(
        made["C"].why.contains("beside B: the groups before it leave no common gap"),
        "{}",
        made["C"].why
    );

    lab.traces.clear();
    let made = choose(&lab.cluster(), &[]);
    assert_eq!(given(&made)[2], (Vec::new(), Vec::new()));
    assert!(made["C"].why.contains("too few operations"), "{}", made["C"].why);
}

#[test]
fn a_few_stalls_change_no_period_and_a_drift_leaves_no_windows() {
    let mut stalled = trace(0, 300_000, &[(0, 100_000)], 16, 2_000, 1);
    for (at, late) in [(5, 60_000), (11, 90_000)] {
        stalled[at].end_us += late;
    }
    let found = windows(&stalled).unwrap();
    assert!(found.period_us.abs_diff(300_000) < 1_000, "{found:?}");
    let open: u64 = found.open_us.iter().map(|(from, to)| to - from).sum();
    assert!(open > 150_000, "{found:?}");

    // Each period begins a little earlier or later than the one before says: after a second, nobody knows when.
    let mut random = Random::of_seed(7);
    let mut at = 0;
    let drifting: Vec<Span> = (0..40)
        .map(|_| {
            at += 12_000 + random.below(1_500) as u64;
            Span { start_us: at, end_us: at + 7_000 }
        })
        .collect();
    assert_eq!(windows(&drifting), Err(NoWindows::Drifts));
}

#[test]
fn windows_that_hardly_moved_are_no_others() {
    let with = |first: u64| {
        let windows = windows(&trace(first, 100_000, &[(0, 40_000)], 10, 0, 1)).ok();
        Strategy { windows, ..Strategy::rank_order(1, vec![0]) }
    };
    assert!(!differ(&with(0), &with(1_000), 5_000_000));
    assert!(differ(&with(0), &with(30_000), 5_000_000));
    let yields = Strategy { yields: vec!["7/a".into()], ..Strategy::rank_order(1, vec![0]) };
    let never = Strategy::rank_order(2, vec![0]);
    assert!(differ(&yields, &never, 0) && differ(&with(0), &never, 0) && !differ(&never, &never, 0));
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
