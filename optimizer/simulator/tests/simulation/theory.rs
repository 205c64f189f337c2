//! Waiting times against formulas, and against the recursion of Lindley where there is none.
use crate::plans::chain;
use tidemill_optimizer::problem::Route;
use tidemill_random::Random;
use tidemill_simulator::{Arrivals, Distribution};

/// Mean waiting time at one server with Poisson arrivals (Pollaczek 1930, Khinchine 1932), in seconds.
fn pollaczek_khinchine(rate: f64, mean: f64, variance: f64) -> f64 {
    rate * (mean * mean + variance) / (2.0 * (1.0 - rate * mean))
}

/// Mean waiting times of several seeds: their mean and its 99.9 % confidence interval (Student's t, 9 degrees of
/// freedom).
fn waiting(rate: f64, of: &Distribution) -> (f64, f64) {
    let case = chain(rate, std::slice::from_ref(of));
    let runs: Vec<f64> = (1..=10)
        .map(|seed| {
            let simulation = case.simulate(&Arrivals::poisson(), |options| {
                (options.seconds, options.warm_up, options.seed) = (2_000.0, 100.0, seed);
                options.lead_ticks = u32::MAX;
            });
            simulation.stages[0].waiting
        })
        .collect();
    let mean = runs.iter().sum::<f64>() / 10.0;
    let variance = runs.iter().map(|run| (run - mean).powi(2)).sum::<f64>() / 9.0;
    (mean, 4.781 * (variance / 10.0).sqrt())
}

#[test]
fn constant_service_waits_as_in_an_m_d_1_queue() {
    for load in [0.5, 0.8] {
        let (found, within) = waiting(load * 100.0, &Distribution::Mean(0.01));
        let expected = pollaczek_khinchine(load * 100.0, 0.01, 0.0);
        assert!((found - expected).abs() < within, "load {load}: {found} +- {within}, expected {expected}");
        assert!(within < 0.1 * expected, "load {load}: the interval says nothing");
    }
}

#[test]
fn exponential_service_waits_as_in_an_m_m_1_queue() {
    for load in [0.5, 0.8] {
        let (found, within) = waiting(load * 100.0, &Distribution::Exponential(0.01));
        let expected = pollaczek_khinchine(load * 100.0, 0.01, 0.01 * 0.01);
        assert!((found - expected).abs() < within, "load {load}: {found} +- {within}, expected {expected}");
        assert!(within < 0.15 * expected, "load {load}: the interval says nothing");
    }
}

/// The time in an M/M/1 queue is exponentially distributed: its percentiles are known.
#[test]
fn percentiles_are_those_of_an_m_m_1_queue() {
    let (rate, mean) = (50.0, 0.01);
    let case = chain(rate, &[Distribution::Exponential(mean)]);
    let simulation = case.simulate(&Arrivals::poisson(), |options| {
        (options.seconds, options.warm_up, options.lead_ticks) = (20_000.0, 10.0, u32::MAX);
    });
    let latency = simulation.sinks[0].arrival;
    let at = |percentile: f64| -(1.0 - percentile / 100.0).ln() * mean / (1.0 - rate * mean);
    for (percentile, found) in [(50.0, latency.p50), (90.0, latency.p90), (99.0, latency.p99)] {
        let expected = at(percentile);
        assert!((found / expected - 1.0).abs() < 0.02, "p{percentile}: {found}, expected {expected}");
    }
}

/// The output of an M/M/1 queue is a Poisson process (Burke 1956): the second queue waits like the first.
#[test]
fn a_tandem_of_exponential_servers_waits_twice() {
    let case = chain(60.0, &[Distribution::Exponential(0.01), Distribution::Exponential(0.01)]);
    let simulation = case.simulate(&Arrivals::poisson(), |options| {
        (options.seconds, options.warm_up, options.lead_ticks) = (20_000.0, 10.0, u32::MAX);
    });
    let expected = pollaczek_khinchine(60.0, 0.01, 0.01 * 0.01);
    for stage in &simulation.stages {
        assert!((stage.waiting / expected - 1.0).abs() < 0.05, "{} instead of {expected}", stage.waiting);
    }
    // Little's law: waiting records = rate x waiting time.
    let first = &simulation.stages[0];
    assert!((first.queue_mean / (60.0 * first.waiting) - 1.0).abs() < 0.01);
}

#[test]
fn a_link_takes_its_delay_and_the_time_of_the_bytes() {
    let route = Route { price: 0.0, bandwidth: Some(10_000.0), delay: 0.03 };
    let case = chain(5.0, &[Distribution::Mean(0.01), Distribution::Mean(0.02)]).with_route(route);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    let latency = simulation.sinks[0].arrival;
    // 1000 bytes at 10,000 bytes/s take 100 ms.
    for found in [latency.mean, latency.p50, latency.p99] {
        assert!((found - 0.16).abs() < 2e-4, "{found}");
    }
    let link = &simulation.links[0];
    assert_eq!((link.from, link.to, link.records, link.bytes), (0, 1, 300, 300_000.0));
    // A progress message of 80 bytes follows each record.
    assert!((link.utilization.unwrap() - 0.54).abs() < 0.01);
}

/// Poisson arrivals wait for the link as for a server with constant service.
#[test]
fn a_link_is_a_server_with_a_queue() {
    let route = Route { price: 0.0, bandwidth: Some(100_000.0), delay: 0.0 };
    let mut case = chain(70.0, &[Distribution::Mean(1e-6), Distribution::Mean(1e-6)]).with_route(route);
    // Progress messages would take bandwidth, too.
    case.problem.limits.tick_seconds = 1000.0;
    let simulation = case.simulate(&Arrivals::poisson(), |options| {
        (options.seconds, options.lead_ticks) = (10_000.0, u32::MAX);
    });
    let expected = 0.01 + pollaczek_khinchine(70.0, 0.01, 0.0);
    let found = simulation.sinks[0].arrival.mean;
    assert!((found / expected - 1.0).abs() < 0.03, "{found} instead of {expected}");
}

/// Seconds at a quantile of a piecewise linear function of points (part, seconds).
fn between(points: &[(f64, f64)], part: f64) -> f64 {
    let at = points.windows(2).find(|pair| part <= pair[1].0).unwrap();
    at[0].1 + (part - at[0].0) / (at[1].0 - at[0].0) * (at[1].1 - at[0].1)
}

/// Mean, median and 90th percentile of the time in a queue with constant arrivals and these service times, by the
/// recursion of Lindley (1952): the next one waits for the rest of this one's wait and service.
fn lindley(interval: f64, points: &[(f64, f64)]) -> [f64; 3] {
    let (mut random, mut wait) = (Random::of_seed(99), 0.0f64);
    let mut times: Vec<f64> = (0..400_000)
        .map(|_| {
            let service = between(points, random.unit());
            let time = wait + service;
            wait = (time - interval).max(0.0);
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[(part * times.len() as f64) as usize];
    [times.iter().sum::<f64>() / times.len() as f64, at(0.5), at(0.9)]
}

/// Constant arrivals queue where service times vary, as in the profile, and a worker is busy for the mean.
#[test]
fn constant_arrivals_wait_for_calls_that_take_longer_than_others() {
    let quantiles = [4.0, 6.0, 8.0, 10.0, 22.0].map(|time| time * 1e-3);
    let even = [0.0, 0.25, 0.5, 0.75, 1.0].into_iter().zip(quantiles).collect::<Vec<_>>();
    // Named percentiles: constant beyond the last, and below the first so that the mean is kept.
    let named = [(0.5, 9e-3), (0.75, 12e-3), (0.9, 16e-3)];
    let known = vec![(0.0, 4.4e-3), named[0], named[1], named[2], (1.0, 16e-3)];
    for (distribution, points) in [
        (Distribution::of_points(&quantiles, &[], None).unwrap(), even),
        (Distribution::of_percentiles(&named, Some(9.675e-3)).unwrap(), known),
    ] {
        let pairs = points.windows(2);
        let mean: f64 = pairs.map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0).sum();
        assert!((distribution.mean() / mean - 1.0).abs() < 1e-9, "{} instead of {mean}", distribution.mean());
        for load in [0.3, 0.6, 0.85] {
            let case = chain(load / mean, std::slice::from_ref(&distribution));
            let simulation = case.simulate(&Arrivals::constant(), |options| {
                (options.seconds, options.lead_ticks) = (4_000.0, u32::MAX);
            });
            let busy = simulation.workers[0].utilization;
            assert!((busy / load - 1.0).abs() < 0.01, "busy {busy} instead of {load}");
            let arrival = simulation.sinks[0].arrival;
            let expected = lindley(mean / load, &points);
            for (found, expected) in [arrival.mean, arrival.p50, arrival.p90].into_iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 0.03, "load {load}: {found} instead of {expected}");
            }
            if load > 0.8 {
                assert!(arrival.mean > 1.2 * mean, "they wait");
            }
        }
    }
}
