//! Latency limits without listed waits: proofs hold for every wait.
use tidemill_optimizer::check::check;
use tidemill_optimizer::cost::cost;
use tidemill_optimizer::explain::{with_accuracy, with_latency, with_rate};
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::planners::exhaustive::Exhaustive;
use tidemill_optimizer::problem::{
    AccuracyModel, AccuracyRow, Edge, LatencyLimit, Limits, Location, Operator, Problem, Producer, Route,
    ServiceMode, Source, Variant, WorkerClass,
};
use tidemill_optimizer::solution::{Hosting, Outcome, RouteClass, Solution, Status, UsedWorker};
use tidemill_optimizer::summary::headroom;
use tidemill_optimizer::waits::with_least_waits;
use tidemill_problems::small_problem_with_latency;
use tidemill_random::Random;

/// Records of a call, and its milliseconds: mean, deviation, the guaranteed percentile.
type Call = (u32, f64, f64, f64);

fn mode((batch, mean, deviation, percentile): Call) -> ServiceMode {
    let (mean, deviation, percentile) = (mean / 1e3, deviation / 1e3, percentile / 1e3);
    ServiceMode {
        batch,
        seconds_per_record: percentile.max(mean) / f64::from(batch),
        call_seconds: percentile,
        fill_seconds: if batch > 1 { 0.01 } else { 0.0 },
        mean_call_seconds: mean,
        variance_call_seconds: deviation * deviation,
        ..ServiceMode::constant(0.0)
    }
}

/// Two consecutive operators on two kinds of machines, the source at the first kind; `calls[operator][variant][class]`.
fn two_operators(
    rate: f64,
    calls: [Vec<[Vec<Call>; 2]>; 2],
    bytes: (f64, Vec<f64>),
    machines: [(u32, f64); 2],
    link: (f64, f64, bool),
) -> Problem {
    let operator = |id: &str, variants: Vec<[Vec<Call>; 2]>| Operator {
        id: id.to_owned(),
        rate,
        variants: variants
            .into_iter()
            .enumerate()
            .map(|(index, classes)| Variant {
                id: format!("{id}{index}"),
                modes: classes.into_iter().map(|calls| calls.into_iter().map(mode).collect()).collect(),
            })
            .collect(),
        weightless: false,
        stateful: false,
        follows_event_time: false,
        on_one_worker: false,
        survive: 0,
        fused: Vec::new(),
    };
    let [first, second] = calls;
    let (price, delay, is_both) = link;
    let there = Route { price: price / f64::from(1 << 30), delay, ..Route::default() };
    Problem {
        name: "two operators".to_owned(),
        operators: vec![operator("first", first), operator("second", second)],
        edges: vec![
            Edge { from: Producer::Source(0), to: 0, input: 0, rate, bytes: vec![bytes.0] },
            Edge { from: Producer::Operator(0), to: 1, input: 0, rate, bytes: bytes.1 },
        ],
        sources: vec![Source {
            id: "source".to_owned(),
            rate,
            locations: vec![(0, 1.0)],
            at_one_time: 1,
            replies: false,
        }],
        locations: (0..2).map(|tier| Location { name: format!("tier{tier}"), tier }).collect(),
        worker_classes: machines
            .iter()
            .enumerate()
            .map(|(location, &(count, price))| WorkerClass {
                location,
                worker_type: format!("machine{location}"),
                count,
                price,
                memory_bytes: None,
            })
            .collect(),
        routes: vec![
            vec![Some(Route::default()), Some(there)],
            vec![is_both.then_some(there), Some(Route::default())],
        ],
        rates: None,
        sizes: Vec::new(),
        accuracy: AccuracyModel::None,
        limits: Limits { tick_seconds: 0.02, publication_seconds: 0.02, ..Limits::default() },
    }
}

/// One machine at the source and one across a link that is expensive for the source's records.
fn expensive_link() -> Problem {
    let constant = |seconds: [f64; 2]| seconds.map(|seconds| vec![(1, seconds, 0.0, seconds)]);
    let mut problem = two_operators(
        20.0,
        [
            vec![constant([36.729, 6.3074]), constant([38.9326, 16.156]), constant([105.7605, 30.0717])],
            vec![constant([26.7957, 8.8848]), constant([87.0723, 42.1398])],
        ],
        (18181.0, vec![3691.0, 1731.0, 1177.0]),
        [(1, 0.0831), (1, 0.121)],
        (0.5, 0.015, false),
    );
    problem.limits.latency = vec![LatencyLimit { percentile: 95.0, seconds: 0.195, sink: None }];
    problem
}

/// Four machines that are all needed, each with its own wait.
fn four_machines(milliseconds: f64) -> Problem {
    let mut problem = two_operators(
        5.0,
        [
            vec![
                [
                    vec![
                        (1, 85.4959, 30.175, 100.5834),
                        (2, 163.3315, 57.6464, 192.1547),
                        (4, 287.0663, 33.7725, 337.725),
                    ],
                    vec![
                        (1, 60.9623, 7.172, 71.7204),
                        (2, 110.3131, 12.978, 129.7801),
                        (4, 161.7089, 57.0737, 190.2458),
                    ],
                ],
                [
                    vec![
                        (1, 170.395, 20.0465, 200.4647),
                        (2, 301.8467, 106.5341, 355.1137),
                        (4, 472.2999, 55.5647, 555.6469),
                    ],
                    vec![
                        (1, 100.1279, 35.3393, 117.7975),
                        (2, 179.0163, 21.0607, 210.6074),
                        (4, 327.2253, 115.4913, 384.971),
                    ],
                ],
                [
                    vec![
                        (1, 313.7089, 110.7208, 369.0692),
                        (2, 552.2369, 64.969, 649.6905),
                        (4, 1129.8018, 398.7536, 1329.1786),
                    ],
                    vec![
                        (1, 175.3682, 61.8946, 206.3155),
                        (2, 289.9023, 34.1061, 341.0615),
                        (4, 494.7912, 174.6322, 582.1073),
                    ],
                ],
            ],
            vec![
                [vec![(1, 128.4064, 15.1066, 151.0664)], vec![(1, 122.2769, 14.3855, 143.8552)]],
                [vec![(1, 117.569, 13.8316, 138.3165)], vec![(1, 100.2995, 11.7999, 117.9994)]],
                [vec![(1, 517.3506, 60.8648, 608.6477)], vec![(1, 303.7225, 107.1962, 357.3206)]],
            ],
        ],
        (836.0, vec![15597.0, 30717.0, 5484.0]),
        [(2, 0.0825), (2, 0.1743)],
        (0.02, 0.002, true),
    );
    let row =
        |&(variants, accuracy): &([usize; 2], f64)| AccuracyRow { variants: variants.to_vec(), accuracy };
    problem.accuracy = AccuracyModel::Table(
        [
            ([0, 0], 58.81),
            ([0, 1], 66.48),
            ([0, 2], 66.76),
            ([1, 1], 65.99),
            ([1, 2], 72.09),
            ([2, 0], 69.95),
            ([2, 1], 73.34),
            ([2, 2], 75.16),
        ]
        .iter()
        .map(row)
        .collect(),
    );
    problem.limits.accuracy = Some(68.0);
    problem.limits.latency = vec![LatencyLimit { percentile: 99.0, seconds: milliseconds / 1e3, sink: None }];
    problem
}

fn planned(problem: &Problem) -> Outcome {
    let outcome = Exact.plan(problem, &SearchLimits::default()).expect("it takes the problem");
    if let Some(solution) = &outcome.solution {
        assert_eq!(check(problem, solution), []);
        let total = cost(problem, solution).expect("a cost").total();
        assert!(outcome.bound.expect("a bound") <= total);
    }
    outcome
}

/// A manual plan: a share of the first operator on the near machine, all else on the far one.
fn by_hand(problem: &Problem, near: f64) -> Solution {
    let hosting = |operator, worker, share| Hosting {
        operator,
        worker: Some(worker),
        location: worker,
        mode: 0,
        share,
        wait_seconds: None,
        device: None,
    };
    let solution = Solution {
        variants: vec![0, 0],
        workers: (0..2).map(|class| UsedWorker { class, index: 0 }).collect(),
        hostings: vec![hosting(0, 0, near), hosting(0, 1, 1.0 - near), hosting(1, 1, 1.0)],
        classes: vec![
            RouteClass { share: near, sources: vec![0], hostings: vec![0, 2] },
            RouteClass { share: 1.0 - near, sources: vec![0], hostings: vec![1, 2] },
        ],
        fallbacks: Vec::new(),
    };
    with_least_waits(problem, &solution)
}

/// The bound is close enough to be useful, and never above the cost of a known plan.
#[test]
fn a_plan_with_waits_of_its_own_is_not_beneath_the_bound() {
    let problem = expensive_link();
    let hand = by_hand(&problem, 0.7264);
    assert_eq!(check(&problem, &hand), []);
    let by_hand = cost(&problem, &hand).expect("a cost").total();
    assert!((by_hand - 0.4608).abs() < 1e-3, "{by_hand}");
    let outcome = planned(&problem);
    assert!(outcome.bound.expect("a bound") <= by_hand);
    assert!(outcome.cost.expect("a plan") <= by_hand * (1.0 + 1e-6));
    assert!(outcome.gap.expect("a gap") < 0.01, "{:?}", outcome.gap);
}

#[test]
fn a_looser_level_keeps_a_plan_on_four_machines() {
    let limits = SearchLimits { wall_seconds: Some(10.0), ..SearchLimits::default() };
    let mut last: Option<(f64, Solution)> = None;
    for milliseconds in [1584.4, 1650.0, 1680.0] {
        let problem = four_machines(milliseconds);
        let outcome = Exact.plan(&problem, &limits).expect("it takes the problem");
        let solution = outcome.solution.expect("there is a plan");
        assert_eq!(check(&problem, &solution), []);
        if let Some((cost, stricter)) = &last {
            assert_eq!(check(&problem, stricter), []);
            assert!(outcome.bound.expect("a bound") <= *cost, "{milliseconds} ms");
            assert!(outcome.cost.expect("a plan") <= cost * 1.001, "{milliseconds} ms");
        }
        last = outcome.cost.map(|cost| (cost, solution));
    }
}

/// A random small problem without listed waits.
fn without_levels(seed: u64) -> Problem {
    let mut problem = small_problem_with_latency(seed);
    problem.limits.wait_levels.clear();
    problem
}

/// Plans with random waits come from another planner, which shares no code with the exact one.
#[test]
fn no_plan_with_random_waits_is_beneath_the_bound() {
    let limits = SearchLimits { wall_seconds: Some(2.0), ..SearchLimits::default() };
    let mut compared = 0;
    for seed in 1..=12 {
        let problem = without_levels(seed);
        let outcome = Exact.plan(&problem, &limits).expect("it takes the problem");
        let bound = outcome.bound.expect("a bound");
        let mut random = Random::of_seed(seed ^ 0x5741_4954);
        for _ in 0..3 {
            let seconds = problem.limits.latency[0].seconds;
            let mut others = problem.clone();
            others.limits.wait_levels = (0..3).map(|_| seconds * random.uniform(0.005, 0.9)).collect();
            others.limits.wait_levels.sort_by(f64::total_cmp);
            let found = Exhaustive.plan(&others, &limits).expect("it takes the problem");
            let Some((solution, total)) = found.solution.zip(found.cost) else { continue };
            assert_eq!(check(&problem, &solution), [], "seed {seed}");
            assert!(bound <= total * (1.0 + 1e-5), "seed {seed}: {total} beneath {bound}");
            compared += 1;
        }
    }
    assert!(compared >= 6, "{compared}");
}

/// A plan for a stricter level keeps a looser one, which is therefore never proven infeasible or more expensive.
#[test]
fn a_looser_level_is_never_proven_worse() {
    let limits = SearchLimits { wall_seconds: Some(1.0), ..SearchLimits::default() };
    let mut compared = 0;
    for seed in 1..=8 {
        let strict = without_levels(seed);
        let accuracy = strict.limits.accuracy.map(|accuracy| accuracy - 5.0);
        let looser = [
            with_latency(&strict, |seconds| seconds * 1.2),
            with_accuracy(&strict, accuracy),
            with_rate(&strict, 0.8),
        ];
        let stricter = Exact.plan(&strict, &limits).expect("it takes the problem");
        let Some((plan, cost)) = stricter.solution.zip(stricter.cost) else { continue };
        for problem in looser {
            let plan = with_least_waits(&problem, &plan);
            if problem.held_seconds(0) <= strict.held_seconds(0) {
                assert_eq!(check(&problem, &plan), [], "seed {seed}");
            }
            let outcome = Exact.plan(&problem, &limits).expect("it takes the problem");
            assert!(outcome.bound.expect("a bound") <= cost * (1.0 + 1e-5), "seed {seed}");
            assert_ne!(
                (outcome.status, outcome.solution.is_some()),
                (Status::Infeasible, false),
                "seed {seed}"
            );
            if outcome.status == Status::Optimal {
                assert!(outcome.cost.expect("a plan") <= cost * (1.0 + 1e-5), "seed {seed}");
            }
            compared += 1;
        }
    }
    assert!(compared >= 9, "{compared}");
}

#[test]
fn few_waits_prove_nothing() {
    let found = Exhaustive.plan(&expensive_link(), &SearchLimits::default()).expect("it takes the problem");
    assert_eq!((found.status, found.bound, found.gap), (Status::Feasible, None, None));
}

/// At another rate workers keep other waits, which determine the headroom of the latency level.
#[test]
fn a_level_on_latency_leaves_room_for_more_records() {
    let mut problem = expensive_link();
    problem.limits.latency[0].seconds = 0.5;
    let plan = by_hand(&problem, 0.5);
    assert_eq!(check(&problem, &plan), []);
    let most = headroom(&problem, &plan).expect("a bound");
    assert!(most > 1.2, "{most}");
    for (factor, keeps) in [(0.99 * most, true), (1.02 * most, false)] {
        let faster = with_rate(&problem, factor);
        assert_eq!(check(&faster, &with_least_waits(&faster, &plan)).is_empty(), keeps, "{factor}");
    }
}
