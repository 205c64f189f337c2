//! Tiny problems of many kinds, small enough to try every plan.
use super::KIB;
use tidemill_optimizer::cost::per_gib;
use tidemill_optimizer::problem::{
    AccuracyModel, AccuracyRow, Edge, LatencyLimit, Limits, Location, Operator, Problem, Producer, RateCase,
    Rates, ResponseRow, ReturnTraffic, Route, ServiceMode, Source, Variant, WorkerClass,
};
use tidemill_random::Random;

/// Producers of the operators of a shape: negative numbers are sources (-1 is source 0), others operators.
const SHAPES: &[&[&[i32]]] = &[
    &[&[-1]],
    &[&[-1], &[0]],
    &[&[-1], &[0], &[1]],
    // Two sources, joined.
    &[&[-1], &[-2], &[0, 1]],
    // A stream split and joined again.
    &[&[-1], &[0], &[0], &[1, 2]],
    // A source that two operators read, joined.
    &[&[-1], &[-1], &[0, 1]],
    // As before, with the second source joined late.
    &[&[-1], &[0], &[-2], &[1, 2]],
    // A tree with two ends.
    &[&[-1], &[0], &[0]],
    // A join with the unchanged stream.
    &[&[-1], &[0, -1]],
];

/// A problem with up to 4 operators, 3 variants each, 5 workers and 3 locations: chains, joins, diamonds; one or several
/// sites; all accuracy models; some with narrow links, little memory, missing routes, several modes.
pub fn small_problem(seed: u64) -> Problem {
    let mut random = Random::of_seed(seed);
    let (locations, routes) = places(&mut random);
    let classes = worker_classes(&locations, &mut random);
    let shape = SHAPES[random.below(SHAPES.len())];
    let rate = 10f64.powf(random.uniform(0.0, 2.0));
    let mut operators: Vec<Operator> =
        shape.iter().enumerate().map(|(index, _)| operator(index, &classes, &mut random)).collect();
    if shape.len() == 4 && shape[3].len() == 2 && random.chance(0.15) {
        // A weightless join.
        let join = &mut operators[3];
        join.weightless = true;
        join.variants = vec![Variant { id: "join".into(), modes: Vec::new() }];
    }
    let ratios: Vec<f64> =
        shape.iter().map(|_| if random.chance(0.7) { 1.0 } else { random.uniform(0.3, 3.0) }).collect();
    let wanted = random.uniform(0.15, 1.0);
    scale(&mut operators, &ratios, rate, wanted, &classes);
    let edges = edges(shape, &operators, rate, &mut random);
    let sources = sources(shape, rate, &locations, &mut random);
    let (accuracy, limit) = accuracy(shape, &operators, &mut random);
    let problem = Problem {
        name: format!("small problem of seed {seed}"),
        operators,
        edges,
        sources,
        locations,
        worker_classes: classes,
        routes,
        rates: None,
        sizes: Vec::new(),
        accuracy,
        limits: Limits {
            accuracy: limit,
            max_utilization: if random.chance(0.5) { 1.0 } else { 0.85 },
            one_operator_per_worker: random.chance(0.3),
            return_traffic: if random.chance(0.5) { ReturnTraffic::Forbid } else { ReturnTraffic::Priced },
            ..Limits::default()
        },
    };
    debug_assert_eq!(problem.check(), Ok(()));
    problem
}

/// As [`small_problem`], with rates that depend on the variants of some operators: an operator's output affects
/// everything after it. (At least two of the operators' variants differ in nearly all of them.)
pub fn small_problem_with_rates(seed: u64) -> Problem {
    let problem = small_problem(seed);
    let mut random = Random::of_seed(seed ^ 0x5241_5445);
    let factors: Vec<Vec<f64>> = problem
        .operators
        .iter()
        .map(|operator| {
            let varies = random.chance(0.6);
            operator.variants.iter().map(|_| if varies { random.uniform(0.3, 1.4) } else { 1.0 }).collect()
        })
        .collect();
    let before: Vec<Vec<usize>> = (0..problem.operators.len()).fold(Vec::new(), |mut before, operator| {
        let mut own: Vec<usize> = Vec::new();
        for edge in problem.inputs_of(operator) {
            if let Producer::Operator(producer) = problem.edges[edge].from {
                own.push(producer);
                own.extend(&before[producer]);
            }
        }
        own.sort_unstable();
        own.dedup();
        before.push(own);
        before
    });
    let counts: Vec<usize> = problem.operators.iter().map(|operator| operator.variants.len()).collect();
    let matter: Vec<usize> = (0..counts.len()).filter(|operator| counts[*operator] > 1).collect();
    let rates = Rates::of(&counts, &matter, |variants| {
        let factor =
            |operators: &[usize]| -> f64 { operators.iter().map(|o| factors[*o][variants[*o]]).product() };
        let operator = |(index, operator): (usize, &Operator)| operator.rate * factor(&before[index]);
        let edge = |edge: &Edge| match edge.from {
            Producer::Source(_) => edge.rate,
            Producer::Operator(producer) => {
                edge.rate * factor(&before[producer]) * factors[producer][variants[producer]]
            }
        };
        RateCase {
            operators: problem.operators.iter().enumerate().map(operator).collect(),
            edges: problem.edges.iter().map(edge).collect(),
        }
    });
    let mut problem = problem.with_variant_rates(rates);
    problem.name = format!("small problem with rates by variants of seed {seed}");
    debug_assert_eq!(problem.check(), Ok(()));
    problem
}

/// As [`small_problem`], with a latency limit from infeasible to loose, two waiting times to choose from, no more than
/// 4 workers, and without narrow links or little memory.
pub fn small_problem_with_latency(seed: u64) -> Problem {
    let mut problem = small_problem(seed);
    let mut random = Random::of_seed(seed ^ 0x4C41_5445);
    problem.name = format!("small problem with latency of seed {seed}");
    for class in &mut problem.worker_classes {
        (class.count, class.memory_bytes) = (1, None);
    }
    for route in problem.routes.iter_mut().flatten().flatten() {
        route.bandwidth = None;
    }
    let mut calls: Vec<f64> = Vec::new();
    for operator in &mut problem.operators {
        // Fewer records, as otherwise no worker keeps a short wait.
        operator.rate *= 0.6;
        operator.stateful = random.chance(0.1);
        let modes = operator.variants.iter().flat_map(|variant| variant.modes.iter().flatten());
        calls.extend(modes.map(|mode| mode.call_seconds));
    }
    calls.sort_by(f64::total_cmp);
    let middle = calls.get(calls.len() / 2).copied().unwrap_or(0.1);
    problem.limits.wait_levels = vec![2.0 * middle, 8.0 * middle];
    problem.limits.tick_seconds = middle;
    let path = problem.operators.len().min(3) as f64;
    let seconds = 0.02 * path + middle * path * random.uniform(1.0, 12.0);
    problem.limits.latency = vec![LatencyLimit { percentile: 90.0, seconds, sink: None }];
    debug_assert_eq!(problem.check(), Ok(()));
    problem
}

fn places(random: &mut Random) -> (Vec<Location>, Vec<Vec<Option<Route>>>) {
    let tiers: &[usize] = match random.below(5) {
        0 => &[0],
        1 | 2 => &[0, 1],
        3 => &[0, 0, 1],
        _ => &[0, 1, 2],
    };
    let locations: Vec<Location> = tiers
        .iter()
        .enumerate()
        .map(|(index, &tier)| Location { name: format!("tier{tier}/site{index}"), tier })
        .collect();
    let narrow = random.chance(0.15);
    let routes = (0..tiers.len())
        .map(|from| {
            (0..tiers.len())
                .map(|to| {
                    if from == to {
                        return Some(Route::default());
                    }
                    let between_sites = tiers[from] == tiers[to];
                    if random.chance(if between_sites { 0.5 } else { 0.05 }) {
                        return None;
                    }
                    let price = if tiers[to] < tiers[from] { 1.0 } else { random.uniform(0.05, 0.3) };
                    let bandwidth =
                        (narrow && random.chance(0.6)).then(|| 10f64.powf(random.uniform(3.5, 6.5)));
                    Some(Route { price: per_gib(price), bandwidth, delay: 0.01 })
                })
                .collect()
        })
        .collect();
    (locations, routes)
}

fn worker_classes(locations: &[Location], random: &mut Random) -> Vec<WorkerClass> {
    let mut left = 5;
    let little_memory = random.chance(0.15);
    let mut classes = Vec::new();
    for number in 0..1 + random.below(4) {
        if left == 0 {
            break;
        }
        let count = (1 + random.below(2)).min(left);
        left -= count;
        let location = if number < locations.len() { number } else { random.below(locations.len()) };
        classes.push(WorkerClass {
            location,
            worker_type: format!("type{number}"),
            count: count as u32,
            price: 10f64.powf(random.uniform(-1.0, 0.5)),
            memory_bytes: little_memory.then(|| random.uniform(0.5, 2.5)),
        });
    }
    classes
}

fn operator(index: usize, classes: &[WorkerClass], random: &mut Random) -> Operator {
    let base = 10f64.powf(random.uniform(-2.5, -1.0));
    let variants = (0..1 + random.below(3))
        .map(|variant| {
            let modes = classes
                .iter()
                .map(|class| {
                    if random.chance(0.07) {
                        return Vec::new();
                    }
                    (0..if random.chance(0.15) { 2 } else { 1 })
                        .map(|_| {
                            let speed = (1.0 + 3.0 * class.price).powf(random.uniform(0.6, 1.4));
                            let seconds = base * 1.6f64.powi(variant as i32) / speed;
                            let memory_bytes = random.uniform(0.2, 1.2);
                            ServiceMode { memory_bytes, ..ServiceMode::constant(seconds) }
                        })
                        .collect()
                })
                .collect();
            Variant { id: format!("variant{variant}"), modes }
        })
        .collect();
    Operator {
        id: format!("operator{index}"),
        rate: 0.0,
        variants,
        weightless: false,
        stateful: false,
        follows_event_time: false,
        on_one_worker: false,
        survive: 0,
        fused: Vec::new(),
    }
}

/// Sets rates, and service times such that the first variants take about this part of all workers.
fn scale(operators: &mut [Operator], ratios: &[f64], rate: f64, wanted: f64, classes: &[WorkerClass]) {
    let mut load = 0.0;
    for (operator, ratio) in operators.iter_mut().zip(ratios) {
        operator.rate = rate * ratio;
        let Some(first) = operator.variants.first() else { continue };
        let speed: f64 = first
            .modes
            .iter()
            .zip(classes)
            .filter_map(|(modes, class)| Some(f64::from(class.count) / modes.first()?.seconds_per_record))
            .sum();
        load += if speed > 0.0 { operator.rate / speed } else { 0.0 };
    }
    let factor = if load > 0.0 { wanted / load } else { 1.0 };
    for operator in operators {
        for mode in operator.variants.iter_mut().flat_map(|variant| variant.modes.iter_mut().flatten()) {
            *mode = ServiceMode {
                memory_bytes: mode.memory_bytes,
                ..ServiceMode::constant(mode.seconds_per_record * factor)
            };
        }
    }
}

fn edges(shape: &[&[i32]], operators: &[Operator], rate: f64, random: &mut Random) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (to, producers) in shape.iter().enumerate() {
        for (input, &producer) in producers.iter().enumerate() {
            let (from, rate, sizes) = match usize::try_from(producer) {
                Ok(operator) => (
                    Producer::Operator(operator),
                    operators[operator].rate,
                    operators[operator].variants.len(),
                ),
                Err(_) => (Producer::Source(source_of(producer)), rate, 1),
            };
            let bytes =
                (0..sizes).map(|_| 10f64.powf(random.uniform(-1.0, 3.0)) * KIB / rate.max(1.0).sqrt());
            edges.push(Edge { from, to, input, rate, bytes: bytes.collect() });
        }
    }
    edges
}

/// Position of the source for a negative producer.
fn source_of(producer: i32) -> usize {
    (producer.unsigned_abs() as usize).saturating_sub(1)
}

fn sources(shape: &[&[i32]], rate: f64, locations: &[Location], random: &mut Random) -> Vec<Source> {
    let count =
        shape.iter().copied().flatten().filter(|p| **p < 0).map(|&p| source_of(p) + 1).max().unwrap_or(1);
    let sites: Vec<usize> = (0..locations.len()).filter(|&l| locations[l].tier == 0).collect();
    let first = random.uniform(0.2, 0.8);
    let spread: Vec<(usize, f64)> = match sites.as_slice() {
        [a, b, ..] => vec![(*a, first), (*b, 1.0 - first)],
        _ => vec![(0, 1.0)],
    };
    (0..count)
        .map(|index| {
            let elsewhere = index > 0 && random.chance(0.2);
            let locations =
                if elsewhere { vec![(random.below(locations.len()), 1.0)] } else { spread.clone() };
            Source { id: format!("source{index}"), rate, locations, at_one_time: 1, replies: false }
        })
        .collect()
}

fn accuracy(shape: &[&[i32]], operators: &[Operator], random: &mut Random) -> (AccuracyModel, Option<f64>) {
    let counts: Vec<usize> = operators.iter().map(|operator| operator.variants.len()).collect();
    match random.below(4) {
        0 => (AccuracyModel::None, None),
        1 => {
            let mut rows = Vec::new();
            for number in 0..counts.iter().product() {
                let mut rest = number;
                let variants: Vec<usize> = counts
                    .iter()
                    .map(|&count| {
                        let variant = rest % count;
                        rest /= count;
                        variant
                    })
                    .collect();
                if random.chance(0.8) {
                    let better = variants.iter().sum::<usize>() as f64;
                    rows.push(AccuracyRow {
                        variants,
                        accuracy: 60.0 + 3.0 * better + random.uniform(-4.0, 4.0),
                    });
                }
            }
            (AccuracyModel::Table(rows), Some(random.uniform(55.0, 72.0)))
        }
        2 => {
            let contributions: Vec<Vec<f64>> = counts
                .iter()
                .map(|&count| (0..count).map(|m| 2.0 * m as f64 + random.uniform(-1.0, 1.0)).collect())
                .collect();
            let best: f64 = contributions.iter().map(|v| v.iter().copied().fold(f64::MIN, f64::max)).sum();
            let limit = 70.0 + best * random.uniform(0.0, 1.05);
            (AccuracyModel::Additive { base: 70.0, contributions }, Some(limit))
        }
        _ => {
            let rows = shape
                .iter()
                .zip(&counts)
                .map(|(producers, &count)| {
                    (0..count)
                        .map(|variant| {
                            let rows = if random.chance(0.15) { 0 } else { 1 + random.below(3) };
                            (0..rows)
                                .map(|_| {
                                    let input = |producer: &i32, random: &mut Random| {
                                        if *producer < 0 { 100.0 } else { random.uniform(40.0, 85.0) }
                                    };
                                    let inputs: Vec<f64> =
                                        producers.iter().map(|producer| input(producer, random)).collect();
                                    let mean = inputs.iter().sum::<f64>() / inputs.len() as f64;
                                    let better = 4.0 * variant as f64 + random.uniform(-10.0, 10.0);
                                    ResponseRow {
                                        inputs,
                                        output: (0.5 * mean + 28.0 + better).clamp(0.0, 100.0),
                                    }
                                })
                                .collect()
                        })
                        .collect()
                })
                .collect();
            (AccuracyModel::RowLookup(rows), Some(random.uniform(45.0, 80.0)))
        }
    }
}
