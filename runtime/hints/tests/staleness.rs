//! Hints in virtual time: when they help, by how often the network changes, and with noise.
#[path = "study/mod.rs"]
mod study;

use std::time::Duration;

#[test]
fn the_chosen_policy_is_never_much_worse_than_the_better_one() {
    let long = Duration::from_secs(13);
    for (seed, longest) in [(1, Duration::MAX), (2, long)] {
        for period in study::periods().filter(|period| *period <= longest) {
            let row = study::run(seed, period, 0.5, Duration::from_secs(20));
            assert!(row.least() >= 0.95, "seed {seed}: {row:?}");
            let slow = period >= Duration::from_millis(400);
            assert_eq!(row.by_truth, if slow { row.loads } else { row.topology });
            if slow {
                assert!(row.loads > 1.1 * row.topology, "loads matter: {row:?}");
                assert!(row.chose_loads > 0.8, "{row:?}");
            }
            if period >= Duration::from_millis(100) && period <= Duration::from_secs(26) {
                let ratio = row.estimated.as_secs_f64() / row.period.as_secs_f64();
                assert!((0.4..3.0).contains(&ratio), "{row:?}");
            }
        }
    }
}

#[test]
fn loads_with_noise_are_better_than_no_hints() {
    let speedup = |noise: f64| {
        let runs = (1..=3).map(|seed| study::run_noise(seed, noise, Duration::from_secs(20)));
        let (without, with_loads) = runs.fold((0.0, 0.0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
        with_loads / without
    };
    let found: Vec<f64> = [0.0, 0.3, 0.5, 0.9].map(speedup).to_vec();
    assert!(found[0] > 1.5, "{found:?}");
    assert!(found[..3].iter().all(|speedup| *speedup >= 1.0), "{found:?}");
    assert!(found[0] > found[3], "noise costs something: {found:?}");
}
