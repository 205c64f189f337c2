//! The comparison of the example `shared_cluster`, with fewer iterations.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[allow(dead_code, reason = "its table and arguments")]
#[path = "../examples/shared_cluster.rs"]
mod shared_cluster;

/// Jobs at random places: rings that cross a rack once are quicker than those in random order, and chosen spines than drawn ones, three
/// times in all. Compact jobs fit a rack: all tie.
#[test]
fn orders_and_spines_are_worth_what_was_published() {
    let options = shared_cluster::Options { jobs: 25, iterations: 20, between: 0.04, seed: 0 };
    let settings = shared_cluster::settings();
    let [random, locality, flows] = shared_cluster::means(&options, 2, settings[0].0).unwrap();
    assert!(random > 1.1 * locality && locality > 1.1 * flows, "{random} {locality} {flows}");
    assert!(random > 3.0 * flows, "{random} {flows}");
    let [random, locality, flows] = shared_cluster::means(&options, 1, settings[4].0).unwrap();
    assert!((random - locality).abs() < 1e-9 && (locality - flows).abs() < 1e-9);
}
