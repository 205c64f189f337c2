//! Random planning problems for tests and benchmarks, reproducible on every machine; no product code depends on them.
mod devices;
mod files;
mod published;
mod small;

pub use devices::{small_problem_with_devices, small_problem_with_devices_and_latency};
pub use files::{Files, files};
pub use published::{PublishedSetting, published_vqa_problem};
pub use small::{small_problem, small_problem_with_latency, small_problem_with_rates};
use tidemill_optimizer::cost::per_gib;
use tidemill_optimizer::problem::{
    AccuracyModel, Edge, Limits, Location, Operator, Problem, Producer, Route, ServiceMode, Source, Variant,
    WorkerClass,
};
use tidemill_random::Random;

const KIB: f64 = 1024.0;
const GIB: f64 = (1u64 << 30) as f64;

/// Size of a generated problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Operators.
    pub operators: usize,
    /// Variants of each.
    pub variants: usize,
    /// Worker types, each in one tier.
    pub types: usize,
    /// Tiers, each one location.
    pub tiers: usize,
    /// Workers over all types, at least one of each.
    pub workers: usize,
}

impl Size {
    /// Of the published extra large setting's order: 6 operators with 5 variants, 30 workers.
    pub const EXTRA_LARGE: Self = Self { operators: 6, variants: 5, types: 10, tiers: 3, workers: 30 };
    /// 50 operators with 5 variants, 200 workers.
    pub const HUGE: Self = Self { operators: 50, variants: 5, types: 15, tiers: 4, workers: 200 };
}

/// A worker type under construction.
struct WorkerType {
    tier: usize,
    is_accelerator: bool,
    speed: f64,
    price: f64,
    memory: f64,
    count: u32,
}

/// Returns a workflow of joins over tiers of increasingly fast and expensive workers; the last type of each tier above
/// the lowest is an accelerator. Accuracy is additive, its limit at 60 % of the maximum; utilisation up to 0.8; the
/// rate takes 45 % of all workers with the middle variants. Traffic up costs 0.05 to 0.2 $/GiB, down ten times that.
pub fn workflow_problem(size: Size, seed: u64) -> Problem {
    let mut random = Random::of_seed(seed);
    let types = worker_types(size, &mut random);
    let sources = (size.operators / 5).max(2).min(size.operators);
    let mut contributions = Vec::new();
    let mut operators: Vec<Operator> = (0..size.operators)
        .map(|index| {
            let (operator, accuracy) = operator(index, size, &types, &mut random);
            contributions.push(accuracy);
            operator
        })
        .collect();
    let edges = edges(size, sources, &mut random);
    let middle = size.variants / 2;
    let time: f64 = operators.iter().map(|operator| 1.0 / capacity(operator, middle, &types)).sum();
    let rate = 0.45 / time;
    operators.iter_mut().for_each(|operator| operator.rate = rate);
    let best: f64 = contributions.iter().map(|values| extreme(values, f64::max)).sum();
    let worst: f64 = contributions.iter().map(|values| extreme(values, f64::min)).sum();
    Problem {
        name: format!("{} operators, {} workers, seed {seed}", size.operators, size.workers),
        operators,
        edges: edges.into_iter().map(|edge| Edge { rate, ..edge }).collect(),
        sources: (0..sources)
            .map(|index| Source {
                id: format!("source{index}"),
                rate,
                locations: vec![(0, 1.0)],
                at_one_time: 1,
                replies: false,
            })
            .collect(),
        locations: (0..size.tiers).map(|tier| Location { name: format!("tier{tier}"), tier }).collect(),
        worker_classes: types
            .iter()
            .enumerate()
            .map(|(index, of)| WorkerClass {
                location: of.tier,
                worker_type: format!("type{index}"),
                count: of.count,
                price: of.price,
                memory_bytes: Some(of.memory),
            })
            .collect(),
        routes: (0..size.tiers)
            .map(|from| (0..size.tiers).map(|to| Some(route(from, to))).collect())
            .collect(),
        rates: None,
        sizes: Vec::new(),
        accuracy: AccuracyModel::Additive { base: 100.0, contributions },
        limits: Limits {
            accuracy: Some(100.0 + worst + 0.6 * (best - worst)),
            max_utilization: 0.8,
            ..Limits::default()
        },
    }
}

fn worker_types(size: Size, random: &mut Random) -> Vec<WorkerType> {
    let tier_of = |index: usize| index * size.tiers / size.types;
    let mut types: Vec<WorkerType> = (0..size.types)
        .map(|index| {
            let tier = tier_of(index);
            let is_last = index + 1 == size.types || tier_of(index + 1) != tier;
            let is_accelerator = tier > 0 && is_last;
            let (speed, price, memory) = if is_accelerator {
                let speed = random.uniform(15.0, 30.0);
                (speed, 2.497 * speed / 25.0 * random.uniform(0.9, 1.1), 16.0)
            } else {
                let speed = 2f64.powf(random.uniform(0.0, 2.0) + 0.7 * tier as f64);
                let price = 0.096 * speed.powf(0.95) * random.uniform(0.9, 1.1) * (1.0 + 0.15 * tier as f64);
                (speed, price, 4.0 * speed.min(8.0).round())
            };
            WorkerType { tier, is_accelerator, speed, price, memory: memory * GIB, count: 1 }
        })
        .collect();
    for _ in size.types..size.workers {
        let chosen = random.below(types.len());
        types[chosen].count += 1;
    }
    types
}

/// An operator and the accuracies of its variants.
fn operator(index: usize, size: Size, types: &[WorkerType], random: &mut Random) -> (Operator, Vec<f64>) {
    let base = 10f64.powf(random.uniform(0.8, 2.0)) / 1000.0;
    let affinity: Vec<f64> = types.iter().map(|_| random.uniform(-0.3, 0.3).exp()).collect();
    let step = random.uniform(1.3, 2.0);
    let step_of_accelerators = step.powf(random.uniform(0.5, 1.0));
    let memory = random.uniform(0.1, 1.0) * GIB;
    let loss = random.uniform(0.02, 0.12);
    let mut accuracy = Vec::new();
    let variants = (0..size.variants)
        .map(|variant| {
            accuracy.push(-100.0 * loss * 0.55f64.powi(variant as i32) * random.uniform(0.95, 1.05));
            let modes = types
                .iter()
                .zip(&affinity)
                .map(|(of, affinity)| {
                    let step = if of.is_accelerator { step_of_accelerators } else { step };
                    let noise = random.uniform(0.95, 1.05);
                    let seconds = base * step.powi(variant as i32) / of.speed * affinity * noise;
                    let memory_bytes = memory * step.powi(variant as i32);
                    vec![ServiceMode { memory_bytes, ..ServiceMode::constant(seconds) }]
                })
                .collect();
            Variant { id: format!("variant{variant}"), modes }
        })
        .collect();
    let operator = Operator {
        id: format!("operator{index}"),
        rate: 0.0,
        variants,
        weightless: false,
        stateful: false,
        follows_event_time: false,
        on_one_worker: false,
        survive: 0,
        fused: Vec::new(),
    };
    (operator, accuracy)
}

/// Returns the seconds of the slowest path of a generated workflow on its fastest machines and routes: the unit of
/// benchmarks' latency limits.
///
/// Each operator takes 1.3 times the service time of its middle variant and 20 ms of waiting at the location where it
/// ends first; none where an operator cannot be reached.
pub fn fastest_path_seconds(problem: &Problem) -> Option<f64> {
    let locations = 0..problem.locations.len();
    let mut ends: Vec<Vec<f64>> = Vec::new(); // by operator and location
    for (index, operator) in problem.operators.iter().enumerate() {
        let middle = &operator.variants[operator.variants.len() / 2];
        let end = |at: usize| {
            let there =
                problem.worker_classes.iter().zip(&middle.modes).filter(|(class, _)| class.location == at);
            let calls = there.flat_map(|(_, modes)| modes).map(|mode| mode.call_seconds);
            let own = 1.3 * calls.fold(f64::INFINITY, f64::min) + 0.02;
            let way = |from: usize, before: f64| {
                problem.route(from, at).map_or(f64::INFINITY, |route| before + route.delay)
            };
            let begins = problem.edges.iter().filter(|edge| edge.to == index).map(|edge| match edge.from {
                Producer::Source(source) => {
                    let from = problem.sources[source].locations.iter();
                    from.map(|(location, _)| way(*location, 0.0)).fold(0.0, f64::max)
                }
                Producer::Operator(producer) => locations
                    .clone()
                    .map(|from| way(from, ends[producer][from]))
                    .fold(f64::INFINITY, f64::min),
            });
            begins.fold(0.0, f64::max) + own
        };
        let of_operator = locations.clone().map(end).collect();
        ends.push(of_operator);
    }
    let soonest = |operator: usize| ends[operator].iter().copied().fold(f64::INFINITY, f64::min);
    let slowest = problem.last_operators().into_iter().map(soonest).fold(0.0, f64::max);
    slowest.is_finite().then_some(slowest)
}

/// Each source feeds an operator; later operators read one or two of the preceding ones; loose ends join in the last.
fn edges(size: Size, sources: usize, random: &mut Random) -> Vec<Edge> {
    let mut edges = Vec::new();
    let mut is_read = vec![false; size.operators];
    let mut add = |from: Producer, to: usize, input: usize, random: &mut Random| {
        let bytes = match from {
            Producer::Source(_) => vec![random.uniform(50.0, 800.0) * KIB],
            Producer::Operator(_) => {
                let bytes = 10f64.powf(random.uniform(-0.5, 2.3)) * KIB;
                let grows = random.chance(0.5);
                let factor = |variant: usize| if grows { 1.0 + 0.5 * variant as f64 } else { 1.0 };
                (0..size.variants).map(|variant| bytes * factor(variant)).collect()
            }
        };
        edges.push(Edge { from, to, input, rate: 0.0, bytes });
    };
    for to in 0..size.operators {
        if to < sources {
            add(Producer::Source(to), to, 0, random);
            continue;
        }
        let near = to.saturating_sub(sources + 2);
        let mut inputs = vec![near + random.below(to - near)];
        if random.chance(0.4) && to - near > 1 {
            let other = near + random.below(to - near);
            inputs.extend((other != inputs[0]).then_some(other));
        }
        if to + 1 == size.operators {
            inputs.extend((0..to).filter(|&from| !is_read[from]));
            inputs.sort_unstable();
            inputs.dedup();
        }
        for (input, &from) in inputs.iter().enumerate() {
            is_read[from] = true;
            add(Producer::Operator(from), to, input, random);
        }
    }
    edges
}

/// Records per second of all workers together.
fn capacity(operator: &Operator, variant: usize, types: &[WorkerType]) -> f64 {
    let modes = operator.variants[variant].modes.iter().flatten();
    types.iter().zip(modes).map(|(of, mode)| f64::from(of.count) / mode.seconds_per_record).sum()
}

fn extreme(values: &[f64], of: fn(f64, f64) -> f64) -> f64 {
    values.iter().copied().reduce(of).unwrap_or(0.0)
}

fn route(from: usize, to: usize) -> Route {
    if from == to {
        return Route { price: 0.0, bandwidth: None, delay: 0.001 };
    }
    let span = from.abs_diff(to) as f64;
    let up = 0.05 + 0.05 * span;
    let price = per_gib(if to > from { up } else { 10.0 * up });
    Route { price, bandwidth: None, delay: 0.010 + 0.015 * span }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_well_made_and_the_same_for_a_seed() {
        for seed in 1..=10 {
            for size in [Size::EXTRA_LARGE, Size::HUGE] {
                let problem = workflow_problem(size, seed);
                problem.check().expect("the generator makes well-formed problems");
                assert_eq!(problem, workflow_problem(size, seed));
                let workers: u32 = problem.worker_classes.iter().map(|class| class.count).sum();
                assert_eq!(workers as usize, size.workers);
                assert_eq!(problem.last_operators(), [size.operators - 1]);
            }
        }
        assert_ne!(workflow_problem(Size::HUGE, 1), workflow_problem(Size::HUGE, 2));
    }

    #[test]
    fn the_fastest_path_is_no_shorter_than_its_parts() {
        for seed in 1..=5 {
            let mut problem = workflow_problem(Size::EXTRA_LARGE, seed);
            let seconds = fastest_path_seconds(&problem).expect("all can be reached");
            assert!(seconds > 0.02 * 2.0 && seconds < 5.0, "{seconds}");
            for mode in problem.operators.iter_mut().flat_map(|o| &mut o.variants).flat_map(|v| &mut v.modes)
            {
                mode.iter_mut().for_each(|mode| mode.call_seconds *= 2.0);
            }
            let slower = fastest_path_seconds(&problem).expect("all can be reached");
            assert!(slower > seconds && slower < 2.0 * seconds);
        }
    }
}
