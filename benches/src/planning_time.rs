//! How long does planning take? The exact planner and the beam search on the published case and on generated workflows of
//! growing size; what the exact planner has proven stands beside its time. Planners use one thread, so processor time is
//! what planning takes on a machine that does nothing else; it is what is measured.
use crate::parts::cpu_microseconds;
use crate::plot::{Curve, Plot};
use crate::result::{Answer, Measurement};
use anyhow::Context;
use clap::Args;
use std::path::Path;
use tidemill_optimizer::generator::{PublishedSetting, Size, published_vqa_problem, workflow_problem};
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::{beam::Beam, exact::Exact};
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::Outcome;

/// The engine of the exact planner, for the names of the results.
const SOLVER: &str = "exact (microlp 0.7)";

/// What `planning-time` may be told.
#[derive(Debug, Clone, Args)]
#[group(id = "planning-time")]
pub(crate) struct Options {
    /// Seeds of generated problems, from 1.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Seconds by the clock after which one search is stopped (what it left unproven is in the result).
    #[arg(long, default_value_t = 20.0)]
    longest: f64,
    /// The largest size of the growth series, in operators.
    #[arg(long, default_value_t = 50)]
    largest: usize,
}

/// Sizes in steps of two: operators, workers. Tiers and types as generated workflows of that size have them.
const GROWTH: [(usize, usize, usize, usize); 6] =
    [(3, 12, 6, 2), (6, 25, 10, 3), (12, 50, 12, 3), (25, 100, 15, 4), (50, 200, 15, 4), (100, 400, 18, 4)];

/// Part of the cost that may be left unproven in the growth series and at 50 operators.
const GAP: f64 = 0.01;

struct Series {
    milliseconds: Vec<f64>,
    /// Percent of the cost that is left unproven.
    gaps: Vec<f64>,
}

fn plan(planner: &dyn Planner, problem: &Problem, gap: f64, options: &Options) -> anyhow::Result<Outcome> {
    let limits = SearchLimits { gap, wall_seconds: Some(options.longest), ..SearchLimits::default() };
    planner.plan(problem, &limits).with_context(|| format!("{} on {}", planner.name(), problem.name))
}

fn series(
    planner: &dyn Planner,
    problems: &[Problem],
    gap: f64,
    options: &Options,
) -> anyhow::Result<Series> {
    let mut series = Series { milliseconds: Vec::new(), gaps: Vec::new() };
    for problem in problems {
        let before = cpu_microseconds();
        let outcome = plan(planner, problem, gap, options)?;
        series.milliseconds.push((cpu_microseconds() - before) / 1e3);
        // A search that found no plan in time has proven nothing that could be used.
        let proven = outcome.gap.or(outcome.bound.filter(|bound| bound.is_infinite()).map(|_| 0.0));
        series.gaps.push(100.0 * proven.unwrap_or(1.0));
    }
    Ok(series)
}

fn generated(size: Size, seeds: u64) -> Vec<Problem> {
    (1..=seeds).map(|seed| workflow_problem(size, seed)).collect()
}

pub(crate) fn run(options: &Options, folder: &Path) -> anyhow::Result<Answer> {
    let mut measurements = Vec::new();
    let beam = Beam::default();
    let mut add = |name: String, problems: &[Problem], gap: f64, goal: f64| -> anyhow::Result<[Series; 2]> {
        let exact = series(&Exact, problems, gap, options)?;
        let baseline = series(&beam, problems, gap, options)?;
        let time = Measurement::new(format!("{name}: {SOLVER}"), "ms CPU", exact.milliseconds.clone());
        measurements.push(if goal > 0.0 { time.goal(goal) } else { time });
        let unproven = format!("{name}: {SOLVER}, left unproven");
        measurements.push(Measurement::new(unproven, "% of the cost", exact.gaps.clone()));
        let of_beam = Measurement::new(format!("{name}: beam"), "ms CPU", baseline.milliseconds.clone());
        measurements.push(of_beam.baseline());
        Ok([exact, baseline])
    };
    for setting in PublishedSetting::ALL {
        let problems: Vec<Problem> = (1..=20)
            .flat_map(|step| {
                let rate = 10.0 * f64::from(step);
                [54.0, 55.0, 56.0, 57.0, 58.0].map(|accuracy| published_vqa_problem(rate, accuracy, setting))
            })
            .collect();
        let name =
            format!("published VQA, {}, 20 rates x 5 accuracies, gap 0", setting.name().replace('_', " "));
        add(name, &problems, 0.0, 100.0)?;
    }
    let large = generated(Size::EXTRA_LARGE, options.seeds);
    add("6 operators x 5 variants, 30 workers, gap 0".into(), &large, 0.0, 2000.0)?;
    let mut plot = Plot {
        title: "Planning time by size of the workflow, gap at most 1 %".into(),
        across: "operators (5 variants each, 4 workers an operator)".into(),
        upwards: "ms CPU".into(),
        curves: ["exact, median", "exact, slowest", "beam, median"].map(Curve::named).to_vec(),
    };
    for (operators, workers, types, tiers) in GROWTH.into_iter().filter(|size| size.0 <= options.largest) {
        let problems = generated(Size { operators, variants: 5, types, tiers, workers }, options.seeds);
        let goal = if operators == 50 { 60_000.0 } else { 0.0 };
        let name = format!("{operators} operators x 5 variants, {workers} workers, gap 1 %");
        let [exact, beam] = add(name, &problems, GAP, goal)?;
        let of = |mut samples: Vec<f64>, share: f64| {
            samples.sort_by(f64::total_cmp);
            samples[((samples.len() - 1) as f64 * share) as usize]
        };
        let values =
            [of(exact.milliseconds.clone(), 0.5), of(exact.milliseconds, 1.0), of(beam.milliseconds, 0.5)];
        for (curve, value) in plot.curves.iter_mut().zip(values) {
            curve.points.push((operators as f64, value));
        }
    }
    plot.write(&folder.join("planning-time.svg"))?;
    Ok(Answer::new(
        "planning-time",
        "How long does planning take, and how much of the cost is proven?",
        measurements,
    ))
}
