//! The exact planner on the published case, against optima of another solver with another model.
//!
//! `published_vqa_optima.csv` comes from `benches/experiments/oracle_published_vqa.py`: HiGHS, worker by worker.
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::{beam::Beam, exact::Exact};
use tidemill_optimizer::solution::Status;
use tidemill_problems::{PublishedSetting, published_vqa_problem};

struct Point {
    setting: PublishedSetting,
    rate: f64,
    accuracy: f64,
    /// $/h; none: infeasible.
    optimum: Option<f64>,
}

fn points() -> Vec<Point> {
    let lines = include_str!("../published_vqa_optima.csv").lines().skip(1);
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |field: &str| field.parse::<f64>().expect("a number");
            let setting = PublishedSetting::ALL.into_iter().find(|setting| setting.name() == fields[0]);
            Point {
                setting: setting.expect("a known setting"),
                rate: number(fields[1]),
                accuracy: number(fields[2]),
                optimum: (fields[3] != "infeasible").then(|| number(fields[3])),
            }
        })
        .collect()
}

fn exact_meets_the_table(setting: PublishedSetting) {
    let points: Vec<Point> = points().into_iter().filter(|point| point.setting == setting).collect();
    assert!(points.len() > 100, "{} points", points.len());
    for Point { rate, accuracy, optimum, .. } in points {
        let problem = published_vqa_problem(rate, accuracy, setting);
        let limits = SearchLimits { gap: 0.0, wall_seconds: None, ..SearchLimits::default() };
        let outcome = Exact.plan(&problem, &limits).expect("the exact planner takes the published case");
        let at = format!("{}, {rate}/s, {accuracy} %", setting.name());
        match (optimum, outcome.cost) {
            (Some(optimum), Some(cost)) => {
                // The table is rounded to 6 decimals, and HiGHS stops at an absolute gap of 1e-6.
                assert!((cost - optimum).abs() < 2e-6, "{at}: {cost} instead of {optimum}");
                assert_eq!(outcome.status, Status::Optimal, "{at}");
            }
            (None, None) => assert_eq!(outcome.status, Status::Infeasible, "{at}"),
            (optimum, cost) => panic!("{at}: {cost:?} instead of {optimum:?}"),
        }
    }
}

#[test]
#[ignore = "long: make test-long"]
fn exact_meets_the_table_with_one_operator_per_worker() {
    exact_meets_the_table(PublishedSetting::OneOperatorPerWorker);
}

#[test]
fn exact_meets_the_table_with_shared_workers() {
    exact_meets_the_table(PublishedSetting::Shared);
}

#[test]
#[ignore = "long: make test-long"]
fn exact_meets_the_table_with_return_traffic() {
    exact_meets_the_table(PublishedSetting::SharedWithReturnTraffic);
}

/// Figure 5.7 of the original: its algorithm is near the least cost wherever there is a plan.
#[test]
#[ignore = "long: make test-long"]
fn beam_stays_near_the_table() {
    let (mut ratios, mut missed) = (Vec::new(), 0);
    for Point { setting, rate, accuracy, optimum } in points() {
        let problem = published_vqa_problem(rate, accuracy, setting);
        let outcome = Beam::default().plan(&problem, &SearchLimits::default()).expect("beam takes it");
        match (optimum, outcome.cost) {
            (Some(optimum), Some(cost)) => {
                assert!(
                    cost > optimum - 2e-6,
                    "{}, {rate}/s, {accuracy} %: {cost} below {optimum}",
                    setting.name()
                );
                ratios.push(cost / optimum);
            }
            (None, Some(cost)) => panic!("{}, {rate}/s: {cost} where there is no plan", setting.name()),
            (Some(_), None) => missed += 1,
            (None, None) => {}
        }
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let worst = ratios[ratios.len() - 1];
    println!(
        "beam / optimum: median {median:.4}, worst {worst:.4}; {missed} of {} missed",
        ratios.len() + missed
    );
    assert!(median < 1.05, "{median}");
    assert!(missed * 10 < ratios.len(), "{missed} missed");
}
