//! Measures the cost of a controller as its cluster grows. The controller has a process and a network namespace of its
//! own. Simulated workers speak the protocol of agents: they join, send two heartbeats a second, fetch files, and run
//! their assignments with the real engine, on threads of a few processes instead of machines. Each runs a workflow with
//! as many sources as a site has cameras.
mod control;
mod drawing;
mod work;
mod workers;

pub(crate) use workers::serve as serve_workers;

use crate::fit::line;
use crate::network::Network;
use crate::result::{Answer, Measurement};
use anyhow::Context;
use clap::Args;
use control::{Controlled, Spent};
use std::path::Path;
use std::time::{Duration, Instant};
use work::{Work, site, spread};
use workers::Crowd;

/// Options of `cluster-scale`.
#[derive(Debug, Clone, Args)]
#[group(id = "cluster-scale-options")]
pub(crate) struct Options {
    /// Numbers of workers, for cluster-scale.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 50, 100, 200])]
    cluster_workers: Vec<usize>,
    /// Sources of each worker, for cluster-scale.
    #[arg(long, default_value_t = 50)]
    cluster_sources: usize,
    /// Seconds of each measurement, for cluster-scale.
    #[arg(long, default_value_t = 8.0)]
    cluster_seconds: f64,
}

/// A number of workers, and the goal for the seconds from a submission to the first record.
const GOAL: (usize, f64) = (50, 5.0);
/// Timed submissions of a run over all workers.
const SUBMISSIONS: usize = 3;
/// Time after which a wait is a failure.
const HANG: Duration = Duration::from_secs(240);

#[expect(clippy::disallowed_methods, reason = "what a cluster takes is real time")]
fn now() -> Instant {
    Instant::now()
}

/// Results with one number of workers.
#[derive(Debug, Clone)]
struct Size {
    workers: usize,
    sources: usize,
    /// Consumption while nothing runs.
    idle: Spent,
    /// Consumption while each worker runs a workflow.
    busy: Spent,
    /// Milliseconds of the controller's processor time per joining worker.
    join: f64,
    /// Milliseconds from each submission to its answer.
    submissions: Vec<f64>,
    /// Seconds from the submission of a run over all workers to its first record.
    running: Vec<f64>,
}

pub(crate) fn run(options: &Options, binary: &Path, folder: &Path) -> anyhow::Result<Answer> {
    let binary = binary.canonicalize().with_context(|| {
        format!("{} is not there: build it with `cargo build -p tidemill`", binary.display())
    })?;
    let network = Network::up("hub:1")?;
    let mut sizes = Vec::new();
    for workers in &options.cluster_workers {
        let size = measure(options, &binary, &network, *workers)
            .with_context(|| format!("with {workers} workers"))?;
        println!("{size:?}");
        sizes.push(size);
    }
    drawing::write(folder, &sizes)?;
    Ok(Answer::new(
        "cluster-scale",
        "What does a controller cost as its cluster grows?",
        measurements(&sizes),
    ))
}

fn measure(options: &Options, binary: &Path, network: &Network, workers: usize) -> anyhow::Result<Size> {
    let folder = tempfile::tempdir()?;
    let controller = Controlled::start(network, binary, &folder.path().join("controller"))?;
    let before = controller.spent(network)?;
    let crowd = Crowd::join(&controller, network.here()?, folder.path(), workers)?;
    let joined = controller.spent(network)?;
    let pause = Duration::from_secs_f64(options.cluster_seconds);
    let idle = controller.during(network, pause)?;

    let sites: Vec<Work> = (0..workers)
        .map(|number| site(&folder.path().join("sites"), &workers::name(number), options.cluster_sources))
        .collect::<Result<_, _>>()?;
    let mut submissions = Vec::new();
    for site in &sites {
        submissions.push(controller.submit(site)?.as_secs_f64() * 1e3);
    }
    let begin = now();
    for site in &sites {
        controller.until_running(&site.name, HANG.saturating_sub(begin.elapsed()))?;
    }
    let busy = controller.during(network, pause)?;
    for site in &sites {
        controller.cancel(&site.name)?;
    }

    let mut running = Vec::new();
    for number in 0..SUBMISSIONS {
        let work = spread(&folder.path().join("spread"), number, workers)?;
        let begin = now();
        controller.submit(&work)?;
        controller.until_running(&work.name, HANG)?;
        running.push(begin.elapsed().as_secs_f64());
        controller.cancel(&work.name)?;
    }
    crowd.end()?;
    let join = (joined.processor - before.processor) / workers as f64 * 1e3;
    let sources = workers * options.cluster_sources;
    Ok(Size { workers, sources, idle, busy, join, submissions, running })
}

type Figure = fn(&Spent) -> f64;

/// The reported figures of a controller, with their units.
const FIGURES: [(&str, &str, Figure); 5] = [
    ("processor time", "% of one", |spent| spent.processor * 100.0),
    ("to the controller", "KB/s", |spent| spent.came / 1e3),
    ("from the controller", "KB/s", |spent| spent.left / 1e3),
    ("memory", "MiB", |spent| spent.memory / (1 << 20) as f64),
    ("threads", "threads", |spent| spent.threads),
];

fn measurements(sizes: &[Size]) -> Vec<Measurement> {
    let mut all = Vec::new();
    for size in sizes {
        let name = |what: &str| format!("{} workers, {} sources: {what}", size.workers, size.sources);
        for (state, spent) in [("idle", &size.idle), ("running", &size.busy)] {
            for (figure, unit, of) in FIGURES {
                all.push(Measurement::new(name(&format!("{state}, {figure}")), unit, vec![of(spent)]));
            }
        }
        all.push(Measurement::new(name("a worker joins"), "ms CPU", vec![size.join]));
        all.push(Measurement::new(name("a submission is answered"), "ms", size.submissions.clone()));
        let running =
            Measurement::new(name("submission to first record, one run"), "s", size.running.clone());
        all.push(if size.workers == GOAL.0 { running.goal(GOAL.1) } else { running });
    }
    type OfState = (&'static str, fn(&Size) -> &Spent);
    let states: [OfState; 2] = [("idle", |size| &size.idle), ("running", |size| &size.busy)];
    for (state, of_state) in states {
        for (figure, unit, of) in FIGURES {
            let points: Vec<(f64, f64)> =
                sizes.iter().map(|size| (size.workers as f64, of(of_state(size)))).collect();
            let (_, slope, explained) = line(&points);
            all.push(Measurement::new(format!("{state}, {figure}: for each worker more"), unit, vec![slope]));
            let name = format!("{state}, {figure}: part that the line explains");
            all.push(Measurement::new(name, "", vec![explained]));
        }
    }
    all
}
