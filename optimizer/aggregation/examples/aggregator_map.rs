//! Prints which aggregator holds which tensors, as jobs come and go, and what a service saves over random arrivals.
//!
//! ```text
//! cargo run -p tidemill-aggregation --example aggregator_map
//! cargo run -p tidemill-aggregation --example aggregator_map -- jobs=300 between=60 seed=2 loss_limit=0.2
//! ```
//!
//! `between` is the mean time between two of the random arrivals, in seconds. Jobs are shaped like published models; their durations and most of
//! their processor times are assumptions (`workload`).
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;
use tidemill_aggregation::comparison::Exchange;
use tidemill_aggregation::simulation::{Arrival, Options, simulate};
use tidemill_aggregation::workload::{ALEXNET, AWD_LM, BERT, Shape, VGG19, arrivals};
use tidemill_aggregation::{Feedback, JobId, Service};

const DEFAULTS: [(&str, f64); 4] = [("jobs", 150.0), ("between", 120.0), ("seed", 1.0), ("loss_limit", 0.1)];

fn main() -> Result<(), Box<dyn Error>> {
    let mut given: BTreeMap<&str, f64> = DEFAULTS.into_iter().collect();
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let known = DEFAULTS.map(|(name, _)| name);
        let place = given.get_mut(name).ok_or(format!("{argument}: write NAME=NUMBER; names: {known:?}"))?;
        *place = value.parse().map_err(|_| format!("{argument}: a number is expected"))?;
    }
    let options = Options { loss_limit: given["loss_limit"], ..Options::default() };
    timeline(options)?;
    println!("\nfour jobs of one shape, two servers and two workers each");
    for shape in [ALEXNET, VGG19, AWD_LM, BERT] {
        let minute = Duration::from_secs(60);
        let jobs: Vec<Arrival> = (0..4)
            .map(|job| Arrival { at: job * minute, length: 30 * minute, servers: 2, job: shape.job(2, 2) })
            .collect();
        let report = simulate(&jobs, options)?;
        let most = report.samples.iter().map(|sample| sample.allocated).max().unwrap_or(0);
        println!(
            "  {:<8} 8 servers become {most}; largest loss {:.1} %",
            shape.name,
            100.0 * report.most_loss
        );
    }
    let between = Duration::try_from_secs_f64(given["between"])?;
    let arrivals = arrivals(given["seed"] as u64, given["jobs"] as usize, between);
    let report = simulate(&arrivals, options)?;
    let end = arrivals.last().map_or(Duration::ZERO, |arrival| arrival.at);
    let most =
        |of: fn(&tidemill_aggregation::simulation::Sample) -> usize| report.samples.iter().map(of).max();
    println!("\n{} random jobs, one each {} s", given["jobs"], given["between"]);
    println!("  servers asked for at most {:?}", most(|sample| sample.demanded).unwrap_or(0));
    println!("  aggregators at most       {:?}", most(|sample| sample.allocated).unwrap_or(0));
    println!("  time of servers saved     {:.1} %", 100.0 * report.saving);
    let below = report.below(end / 20, end);
    println!("  minutes with fewer        {:.1} %, while jobs arrive", 100.0 * below);
    println!("  worst ratio               {:.2}", report.worst);
    println!("  largest loss of speed     {:.1} %", 100.0 * report.most_loss);
    println!("  tensors moved             {}", report.moves);
    println!("\nVGG19 with 8 workers, links of 1.25 GB/s: time of the exchange");
    let exchange = Exchange {
        bytes: 548e6,
        tensors: 19,
        workers: 8,
        worker_rate: 1.25e9,
        aggregators: 1,
        aggregator_rate: 1.25e9,
        work: VGG19.job(1, 8).tensors.iter().sum(),
        latency: Duration::from_micros(50),
    };
    println!("  all-reduce     {:>8.0} ms", 1e3 * exchange.all_reduce().as_secs_f64());
    for aggregators in [1, 2, 4, 8] {
        let exchange = Exchange { aggregators, ..exchange };
        println!("  {aggregators} aggregators  {:>8.0} ms", 1e3 * exchange.aggregation().as_secs_f64());
    }
    Ok(())
}

/// A long job, a short one that measures a loss of 22 %, and its end.
fn timeline(options: Options) -> Result<(), Box<dyn Error>> {
    let mut service = Service::with_loss_limit(options.loss_limit)?;
    let names: BTreeMap<JobId, Shape> = [(JobId(1), VGG19), (JobId(2), ALEXNET)].into_iter().collect();
    service.admit(JobId(1), VGG19.job(2, 2))?;
    map("VGG19 alone", &service, &names);
    service.admit(JobId(2), ALEXNET.job(2, 2))?;
    map("AlexNet joins", &service, &names);
    let alone = ALEXNET.job(2, 2).iteration;
    if let Feedback::Reassigned { moves, .. } = service.feedback(JobId(2), alone.mul_f64(1.0 / 0.78))? {
        map(&format!("AlexNet measured a loss of 22 %: {} tensors move", moves.len()), &service, &names);
    }
    service.exit(JobId(2))?;
    service.scale_in();
    map("AlexNet ends", &service, &names);
    Ok(())
}

fn map(title: &str, service: &Service, names: &BTreeMap<JobId, Shape>) {
    println!("{title}");
    for load in service.loads() {
        let jobs: Vec<String> = load
            .tensors
            .iter()
            .map(|(job, tensors)| {
                format!("{} {}", tensors.len(), names.get(job).map_or("", |shape| shape.name))
            })
            .collect();
        println!(
            "  aggregator {}: cycle {:>4} ms, {:>5.1} % busy, tensors: {}",
            load.aggregator.0,
            load.cycle.as_millis(),
            100.0 * load.utilisation(),
            jobs.join(", ")
        );
    }
}
