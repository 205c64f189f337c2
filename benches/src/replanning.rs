//! Measures the benefit of re-planning on days with a moving load, a lost worker and a slow link: one fixed plan, the
//! controller's decisions, cheaper variants on a fixed fleet, and an oracle that knows the day. Records are simulated;
//! the decisions come from the controller's own code.
mod day;
mod oracle;
mod report;
mod search;
mod strategies;
mod world;

use anyhow::Context;
use clap::Args;
use day::{Day, Kind, State};
use search::Plans;
use std::path::{Path, PathBuf};
use strategies::{Auto, Lived, PlanStrategy, Scaling, best};
use tidemill_app::service_level::LevelSetting;
use tidemill_spec::units::Percent;
use world::{Workload, World, workers};

/// Options of `replanning`.
#[derive(Debug, Clone, Args)]
#[group(id = "replanning-options")]
pub(crate) struct Options {
    /// Seeds of the bursty days of `replanning`. No constant of the controller was chosen with them.
    #[arg(long, value_delimiter = ',', default_value = "11,12")]
    replanning_seeds: Vec<u64>,
    /// Only this day of `replanning`: bursty, steady or spikes.
    #[arg(long)]
    replanning_day: Option<String>,
    /// How many times as fast as a day the days of `replanning` are: 6 lasts four hours, 24 one.
    #[arg(long, default_value_t = 6.0)]
    replanning_compressed: f64,
    /// Only models whose title contains this: `published`, `our`.
    #[arg(long)]
    replanning_models: Option<String>,
    /// The repository, for the inputs of `replanning`.
    #[arg(long, default_value = ".")]
    replanning_root: PathBuf,
}

/// Percentage points by which the level on accuracy may be lowered (`--degrade`).
const GIVES_WAY: f64 = 5.0;
/// Ratio of the loads that are tried for the plan of the peak.
const LESS: f64 = 0.95;

/// Results of a day.
struct Found {
    workload: String,
    rate: f64,
    kind: Kind,
    seed: u64,
    lost: String,
    /// The load, factors by moment.
    factors: Vec<f64>,
    ways: Vec<(&'static str, Lived)>,
}

pub(crate) fn run(options: &Options, folder: &Path) -> anyhow::Result<()> {
    let root = &options.replanning_root;
    let compressed = options.replanning_compressed;
    anyhow::ensure!(
        (1.0..=144.0).contains(&compressed),
        "--replanning-compressed {compressed}: a day is 1 to 144 times as fast"
    );
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut all = Vec::new();
    let wanted = options.replanning_models.as_deref().unwrap_or("").to_lowercase();
    let workloads = Workload::all(root)?.into_iter().filter(|one| one.title.to_lowercase().contains(&wanted));
    for workload in workloads {
        for kind in Kind::ALL {
            let name = format!("{kind:?}").to_lowercase();
            if options.replanning_day.as_ref().is_some_and(|only| *only != name) {
                continue;
            }
            let seeds = if kind == Kind::Bursty {
                &options.replanning_seeds[..]
            } else {
                &options.replanning_seeds[..1]
            };
            for seed in seeds {
                let day = Day::new(root, kind, *seed, compressed)?;
                all.push(contest(&workload, &day)?);
                // Days take long: write the results so far, in case the run is stopped.
                report::write(folder, &all)?;
            }
        }
    }
    anyhow::ensure!(
        !all.is_empty(),
        "there is no such day or model: bursty, steady or spikes; a part of a title"
    );
    Ok(())
}

/// Runs all strategies through a day.
fn contest(workload: &Workload, day: &Day) -> anyhow::Result<Found> {
    println!("{}, {}, seed {}", workload.title, day.kind.title(), day.seed);
    let plans = Plans::default();
    let mut world = World { workload, day, lost: String::new() };
    let plan = |world: &World<'_>, factor: f64| {
        best(world, &plans, State::default(), factor)
            .map_err(|why| anyhow::anyhow!("no plan for {factor:.2} times the load: {why}"))
    };
    // The most expensive machine of the plan for the mean is lost.
    let mean = plan(&world, day.mean())?;
    let dearest = workers(&mean).into_iter().max_by(|a, b| {
        let price = |name: &String| world.price(&[name.clone()].into());
        price(a).total_cmp(&price(b)).then_with(|| b.cmp(a))
    });
    world.lost = dearest.context("a plan without workers")?;
    // The largest load that a plan carries, where the peak is larger.
    let tries =
        (0..40).map(|steps| day.largest() * LESS.powi(steps)).take_while(|factor| *factor >= day.mean());
    let peak = tries.map(|factor| plan(&world, factor)).find_map(Result::ok).unwrap_or_else(|| mean.clone());
    let assembly = world.case(State::default(), day.mean()).assemble().map_err(crate::setups::written)?;
    let chosen = oracle::plans_of(&world, &plans);
    let first = chosen.first().map_or_else(|| mean.clone(), |chosen| chosen.plan.clone());
    let degrade = vec![LevelSetting::Accuracy(Some(Percent(workload.accuracy - GIVES_WAY)))];
    let ways = [
        ("fixed plan, peak", PlanStrategy::Fixed, &peak),
        ("fixed plan, mean", PlanStrategy::Fixed, &mean),
        ("accuracy scaling", PlanStrategy::Scaling(Box::new(Scaling::of(&mean, &assembly))), &mean),
        ("replan: auto", PlanStrategy::Auto(Box::new(Auto::new(&plans, Vec::new()))), &mean),
        ("auto, degrading", PlanStrategy::Auto(Box::new(Auto::new(&plans, degrade))), &mean),
        ("oracle", PlanStrategy::Oracle(chosen), &first),
    ];
    let mut found = Vec::new();
    for (name, mut way, first) in ways {
        let lived = way.live(&world, first)?;
        println!("  {}", report::line(name, &lived));
        found.push((name, lived));
    }
    Ok(Found {
        workload: workload.title.clone(),
        rate: workload.rate,
        kind: day.kind,
        seed: day.seed,
        lost: world.lost.clone(),
        factors: day.moments.iter().map(|moment| moment.factor).collect(),
        ways: found,
    })
}
