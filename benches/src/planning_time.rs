//! Measures planning time: the exact planner and the beam search on the published case and on generated workflows of
//! growing size, under latency limits and where memory binds. The exact planner's proven bound is listed next to its
//! time. Planners use one thread, so the measured processor time is the planning time on an idle machine. A table lists
//! every case with its seed, cost and bound.
use crate::parts::cpu_microseconds;
use crate::plot::{Curve, Plot};
use crate::result::{Answer, Measurement};
use anyhow::Context;
use clap::Args;
use std::fmt::Write;
use std::path::Path;
use tidemill_inference::backend::library::{self, Found};
use tidemill_optimizer::planner::{Highs, Planner, SearchLimits, Solver};
use tidemill_optimizer::planners::{beam::Beam, exact::Exact};
use tidemill_optimizer::problem::{LatencyLimit, Problem};
use tidemill_optimizer::solution::{Outcome, Status};
use tidemill_problems::{
    PublishedSetting, Size, fastest_path_seconds, published_vqa_problem, workflow_problem,
};

/// The exact planner and its solver, as named in the results.
const MICROLP: &str = "exact (microlp 0.7)";
const HIGHS: &str = "exact (HiGHS 1.15)";

/// Options of `planning-time`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Seeds of generated problems, from 1.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Seconds by the clock after which one search is stopped (what it left unproven is in the result).
    #[arg(long, default_value_t = 60.0)]
    longest: f64,
    /// The largest size of the growth series, in operators; beyond 50 with two seeds only.
    #[arg(long, default_value_t = 200)]
    largest: usize,
    /// The largest size at which beam search is measured beside it, in operators: beyond, it takes minutes.
    #[arg(long, default_value_t = 12)]
    largest_beam: usize,
}

/// Sizes doubling in operators and workers. Tiers and types are those of generated workflows of that size.
const GROWTH: [(usize, usize, usize, usize); 7] = [
    (3, 12, 6, 2),
    (6, 25, 10, 3),
    (12, 50, 12, 3),
    (25, 100, 15, 4),
    (50, 200, 15, 4),
    (100, 400, 18, 4),
    (200, 800, 20, 4),
];

/// Seeds per size beyond 50 operators.
const SEEDS_OF_LARGEST: u64 = 2;

/// Unproven share of the cost that is allowed in the growth series and at 50 operators.
const GAP: f64 = 0.01;

/// The gap under latency limits and where memory binds, and the seconds allowed for a plan there.
const GAP_OF_HARD: f64 = 0.001;
const LONGEST_OF_HARD: f64 = 10.0;
/// The seconds allowed with HiGHS.
const LONGEST_OF_HIGHS: f64 = 15.0;

struct Series {
    milliseconds: Vec<f64>,
    /// Unproven percent of the cost.
    gaps: Vec<f64>,
    costs: Vec<Option<f64>>,
}

/// Problems with one setting of the planners.
struct Setting {
    name: String,
    problems: Vec<Problem>,
    gap: f64,
    /// Goal of the project, milliseconds.
    goal: Option<f64>,
    longest: f64,
    has_beam: bool,
    /// Seconds allowed with HiGHS, where it is measured too.
    longest_highs: Option<f64>,
}

fn plan(
    planner: &dyn Planner,
    problem: &Problem,
    setting: &Setting,
    solver: Solver,
) -> anyhow::Result<Outcome> {
    let seconds = match solver {
        Solver::Microlp => setting.longest,
        Solver::Highs(_) => setting.longest_highs.unwrap_or(setting.longest),
    };
    let limits =
        SearchLimits { gap: setting.gap, wall_seconds: Some(seconds), solver, ..SearchLimits::default() };
    planner.plan(problem, &limits).with_context(|| format!("{} on {}", planner.name(), problem.name))
}

fn series(
    planner: &dyn Planner,
    setting: &Setting,
    solver: Solver,
    table: Option<&mut String>,
) -> anyhow::Result<Series> {
    let mut series = Series { milliseconds: Vec::new(), gaps: Vec::new(), costs: Vec::new() };
    let mut rows = String::new();
    for problem in &setting.problems {
        let before = cpu_microseconds();
        let outcome = plan(planner, problem, setting, solver)?;
        let milliseconds = (cpu_microseconds() - before) / 1e3;
        // A search without a plan in time has proven nothing usable.
        let proven = outcome.gap.or(outcome.bound.filter(|bound| bound.is_infinite()).map(|_| 0.0));
        let gap = 100.0 * proven.unwrap_or(1.0);
        let dollars = |value: Option<f64>| value.map_or("none".to_owned(), |value| format!("{value:.4}"));
        let stopped = if outcome.status == Status::TimeLimited { ", stopped" } else { "" };
        let (cost, bound) = (dollars(outcome.cost), dollars(outcome.bound));
        eprintln!(
            "{}, {}: {cost} $/h, bound {bound}, gap {gap:.2} %, {:.2} s{stopped}",
            problem.name,
            planner.name(),
            milliseconds / 1e3
        );
        writeln!(
            rows,
            "| {} | {cost} | {bound} | {gap:.2} % | {:.2} s{stopped} |",
            problem.name,
            milliseconds / 1e3
        )?;
        series.milliseconds.push(milliseconds);
        series.gaps.push(gap);
        series.costs.push(outcome.cost);
    }
    if let Some(table) = table {
        write!(
            table,
            "\n## {}{}\n\n| problem | cost, $/h | bound, $/h | unproven | processor time |\n|---|---|---|---|---|\n{rows}",
            setting.name,
            if solver.highs().is_some() { ", HiGHS" } else { "" }
        )?;
    }
    Ok(series)
}

fn generated(size: Size, seeds: u64) -> Vec<Problem> {
    (1..=seeds).map(|seed| workflow_problem(size, seed)).collect()
}

/// Sets a latency limit of this multiple of the fastest path, at the 95th percentile.
fn with_latency(mut problems: Vec<Problem>, times: f64) -> anyhow::Result<Vec<Problem>> {
    for problem in &mut problems {
        let fastest = fastest_path_seconds(problem).context("an operator cannot be reached")?;
        let limit = LatencyLimit { percentile: 95.0, seconds: times * fastest, sink: None };
        problem.limits.latency = vec![limit];
        problem.limits.wait_levels = vec![0.02, 0.06, 0.2];
    }
    Ok(problems)
}

/// Multiplies the memory of the models.
fn with_memory(mut problems: Vec<Problem>, times: f64) -> Vec<Problem> {
    for problem in &mut problems {
        let variants = problem.operators.iter_mut().flat_map(|operator| &mut operator.variants);
        for mode in variants.flat_map(|variant| &mut variant.modes).flatten() {
            mode.memory_bytes *= times;
        }
    }
    problems
}

fn exclusive(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.iter_mut().for_each(|problem| problem.limits.one_operator_per_worker = true);
    problems
}

/// Returns all settings except the growth series.
fn settings(options: &Options) -> anyhow::Result<Vec<Setting>> {
    let mut settings = Vec::new();
    let mut add = |name: String, problems: Vec<Problem>, gap: f64, goal: f64, longest: f64| {
        let goal = Some(1000.0 * goal);
        settings.push(Setting { name, problems, gap, goal, longest, has_beam: true, longest_highs: None });
    };
    let longest = options.longest;
    for setting in PublishedSetting::ALL {
        let problems: Vec<Problem> = (1..=20)
            .flat_map(|step| {
                let rate = 10.0 * f64::from(step);
                [54.0, 55.0, 56.0, 57.0, 58.0].map(|accuracy| published_vqa_problem(rate, accuracy, setting))
            })
            .collect();
        let name = setting.name().replace('_', " ");
        add(format!("published VQA, {name}, 20 rates x 5 accuracies, gap 0"), problems, 0.0, 0.01, longest);
    }
    let large = || generated(Size::EXTRA_LARGE, options.seeds);
    let name = "6 operators x 5 variants, 30 workers";
    add(format!("{name}, gap 0"), large(), 0.0, 0.5, longest);
    add(format!("{name}, one operator per worker, gap 0"), exclusive(large()), 0.0, 10.0, longest);
    for times in [1.5, 3.0] {
        let problems = with_latency(large(), times)?;
        let name = format!("{name}, latency {times} x the fastest path, gap 0.1 %");
        add(name, problems, GAP_OF_HARD, 10.0, LONGEST_OF_HARD);
    }
    let problems = with_memory(large(), 8.0);
    add(format!("{name}, models of 8 x the memory, gap 0.1 %"), problems, GAP_OF_HARD, 10.0, LONGEST_OF_HARD);
    for setting in settings.iter_mut().rev().take(3) {
        setting.longest_highs = Some(LONGEST_OF_HIGHS);
    }
    Ok(settings)
}

/// Opens HiGHS, where its library is found.
fn highs() -> Option<Highs> {
    let candidates = match library::find(&library::HIGHS, Path::new(".")) {
        Found::Named { path, .. } => vec![path],
        Found::Searched { candidates, .. } => candidates,
    };
    candidates.iter().find_map(|path| Highs::open(path).ok())
}

pub(crate) fn run(options: &Options, folder: &Path) -> anyhow::Result<Answer> {
    let mut measurements = Vec::new();
    let mut table = format!(
        "# Planning time, case by case\n\nWritten by `make bench BENCH=planning-time`: {MICROLP}, one thread. A search \
         ends at the gap in its heading, or after {:.0} s by the clock ({LONGEST_OF_HARD:.0} s under latency limits and where memory binds).\n",
        options.longest
    );
    let beam = Beam::default();
    let highs = highs();
    let mut add = |setting: &Setting| -> anyhow::Result<(Series, Option<Series>)> {
        let is_listed = setting.problems.len() <= options.seeds as usize;
        let exact = series(&Exact, setting, Solver::Microlp, is_listed.then_some(&mut table))?;
        let name = &setting.name;
        let time = Measurement::new(format!("{name}: {MICROLP}"), "ms CPU", exact.milliseconds.clone());
        measurements.push(match setting.goal {
            Some(goal) => time.goal(goal),
            None => time,
        });
        let unproven = format!("{name}: {MICROLP}, left unproven");
        measurements.push(Measurement::new(unproven, "% of the cost", exact.gaps.clone()));
        if let Some((seconds, highs)) = setting.longest_highs.zip(highs) {
            let series = series(&Exact, setting, Solver::Highs(highs), is_listed.then_some(&mut table))?;
            let time = Measurement::new(format!("{name}: {HIGHS}"), "ms CPU", series.milliseconds);
            measurements.push(time.goal(1000.0 * seconds));
            measurements.push(Measurement::new(
                format!("{name}: {HIGHS}, left unproven"),
                "% of the cost",
                series.gaps,
            ));
        }
        if !setting.has_beam {
            return Ok((exact, None));
        }
        let baseline = series(&beam, setting, Solver::Microlp, None)?;
        let of_beam = Measurement::new(format!("{name}: beam"), "ms CPU", baseline.milliseconds.clone());
        measurements.push(of_beam.baseline());
        let both = exact.costs.iter().zip(&baseline.costs);
        let above: Vec<f64> =
            both.filter_map(|(exact, beam)| Some(100.0 * ((*beam)? / (*exact)? - 1.0))).collect();
        if !above.is_empty() {
            let name = format!("{name}: beam, above exact ({} plans)", above.len());
            measurements.push(Measurement::new(name, "%", above));
        }
        Ok((exact, Some(baseline)))
    };
    for setting in settings(options)? {
        add(&setting)?;
    }
    let mut plot = Plot {
        title: "Planning time by size of the workflow, gap at most 1 %".into(),
        across: "operators (5 variants each, 4 workers an operator)".into(),
        upwards: "ms CPU".into(),
        curves: ["exact, median", "exact, slowest", "beam, median"].map(Curve::named).to_vec(),
    };
    for (operators, workers, types, tiers) in GROWTH.into_iter().filter(|size| size.0 <= options.largest) {
        let seeds = if operators > 50 { options.seeds.min(SEEDS_OF_LARGEST) } else { options.seeds };
        let setting = Setting {
            name: format!("{operators} operators x 5 variants, {workers} workers, gap 1 %"),
            problems: generated(Size { operators, variants: 5, types, tiers, workers }, seeds),
            gap: GAP,
            goal: match operators {
                50 => Some(5_000.0),
                200 => Some(60_000.0),
                _ => None,
            },
            longest: options.longest,
            longest_highs: None,
            has_beam: operators <= options.largest_beam,
        };
        let (exact, beam) = add(&setting)?;
        let of = |samples: &[f64], share: f64| {
            let mut samples = samples.to_vec();
            samples.sort_by(f64::total_cmp);
            samples[((samples.len() - 1) as f64 * share) as usize]
        };
        let times = &exact.milliseconds;
        plot.curves[0].points.push((operators as f64, of(times, 0.5)));
        plot.curves[1].points.push((operators as f64, of(times, 1.0)));
        if let Some(beam) = beam {
            plot.curves[2].points.push((operators as f64, of(&beam.milliseconds, 0.5)));
        }
    }
    plot.write(&folder.join("planning-time.svg"))?;
    let path = folder.join("planning-time-cases.md");
    std::fs::write(&path, table).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Answer::new(
        "planning-time",
        "How long does planning take, and how much of the cost is proven?",
        measurements,
    ))
}
