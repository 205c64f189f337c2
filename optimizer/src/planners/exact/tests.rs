//! The planner on small cases with known answers; the published case with its golden numbers is in
//! `tests/planners/golden.rs`.
use super::model::{Allowed, Model};
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::search::Search;
use super::variants::{Candidates, candidates};
use super::*;
use crate::generator::{Size, workflow_problem};
use crate::problem::{
    AccuracyModel, AccuracyRow, Edge, LatencyLimit, Limits, Location, Operator, Producer, ResponseRow,
    ReturnTraffic, Route, ServiceMode, Source, Variant, WorkerClass,
};
use crate::solution::Status;

const GIB: f64 = (1u64 << 30) as f64;

/// A problem with sources at location 0 that send 1 kB at 10/s; locations are tiers of their own, up costs 0.1 $/GB.
///
/// `services[operator][variant]` are the seconds per record on a worker of speed 1; `machines` are location, count,
/// price, speed; `edges` lead from an operator to a later one, and operators without one are fed by the source.
fn case(
    services: &[&[f64]],
    edges: &[(usize, usize)],
    machines: &[(usize, u32, f64, f64)],
    accuracy: AccuracyModel,
) -> Problem {
    let rate = 10.0;
    let operator = |(index, seconds): (usize, &&[f64])| Operator {
        id: format!("operator-{index}"),
        rate,
        variants: seconds
            .iter()
            .enumerate()
            .map(|(m, seconds)| Variant {
                id: format!("variant-{m}"),
                modes: machines
                    .iter()
                    .map(|machine| vec![ServiceMode::constant(seconds / machine.3)])
                    .collect(),
            })
            .collect(),
        weightless: false,
        stateful: false,
        follows_event_time: false,
        on_one_worker: false,
        survive: 0,
        fused: Vec::new(),
    };
    let locations = machines.iter().map(|machine| machine.0).max().unwrap_or(0) + 1;
    let bytes = |variants: usize| vec![1000.0; variants];
    let mut streams: Vec<Edge> = Vec::new();
    for to in 0..services.len() {
        let from: Vec<usize> = edges.iter().filter(|edge| edge.1 == to).map(|edge| edge.0).collect();
        if from.is_empty() {
            streams.push(Edge { from: Producer::Source(0), to, input: 0, rate, bytes: bytes(1) });
        }
        for (input, &producer) in from.iter().enumerate() {
            let bytes = bytes(services[producer].len());
            streams.push(Edge { from: Producer::Operator(producer), to, input, rate, bytes });
        }
    }
    let price = |from: usize, to: usize| 1e-10 * to.saturating_sub(from) as f64;
    let route = |from, to| {
        Some(Route { price: price(from, to), bandwidth: None, delay: 0.01 * f64::from(from != to) })
    };
    Problem {
        name: "case".to_owned(),
        operators: services.iter().enumerate().map(operator).collect(),
        edges: streams,
        sources: vec![Source {
            id: "source".to_owned(),
            rate,
            locations: vec![(0, 1.0)],
            at_one_time: 1,
            replies: false,
        }],
        locations: (0..locations).map(|tier| Location { name: format!("tier-{tier}"), tier }).collect(),
        worker_classes: machines
            .iter()
            .enumerate()
            .map(|(index, &(location, count, price, _))| WorkerClass {
                location,
                worker_type: format!("machine-{index}"),
                count,
                price,
                memory_bytes: None,
            })
            .collect(),
        routes: (0..locations).map(|from| (0..locations).map(|to| route(from, to)).collect()).collect(),
        rates: None,
        sizes: Vec::new(),
        accuracy,
        limits: Limits { max_utilization: 1.0, return_traffic: ReturnTraffic::Forbid, ..Limits::default() },
    }
}

fn plan(problem: &Problem) -> Outcome {
    let limits = SearchLimits { wall_seconds: None, ..SearchLimits::default() };
    let outcome = Exact.plan(problem, &limits).unwrap_or_else(|error| panic!("{error}"));
    if let Some(solution) = &outcome.solution {
        assert_eq!(check(problem, solution), []);
    }
    outcome
}

/// Cost of the optimal plan.
fn optimum(problem: &Problem) -> f64 {
    let outcome = plan(problem);
    assert_eq!(outcome.status, Status::Optimal, "{outcome:?}");
    outcome.cost.expect("an optimum has a cost")
}

fn assert_close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6 * b.abs().max(1.0), "{a} instead of {b}");
}

#[test]
fn the_cheaper_of_two_ways_to_share() {
    // 10/s x 0.05 s = half a worker per operator: two share one.
    let problem =
        case(&[&[0.05], &[0.05]], &[(0, 1)], &[(0, 5, 1.0, 1.0), (1, 5, 3.0, 2.0)], AccuracyModel::None);
    assert_close(optimum(&problem), 1.0);
    let mut exclusive = problem.clone();
    exclusive.limits.one_operator_per_worker = true;
    assert_close(optimum(&exclusive), 2.0);
    let mut careful = problem;
    careful.limits.max_utilization = 0.85;
    assert_close(optimum(&careful), 2.0);
}

#[test]
fn models_that_do_not_fit_together_need_more_workers() {
    // Three operators, each half a worker and 3 GiB; workers have 4 GiB: the load would fit on two.
    let mut problem =
        case(&[&[0.05], &[0.05], &[0.05]], &[(0, 1), (1, 2)], &[(0, 2, 1.0, 1.0)], AccuracyModel::None);
    for operator in &mut problem.operators {
        operator.variants[0].modes[0][0].memory_bytes = 3.0 * GIB;
    }
    assert_close(optimum(&problem), 2.0);
    problem.worker_classes[0].memory_bytes = Some(4.0 * GIB);
    assert_eq!(plan(&problem).bound, Some(f64::INFINITY));
    problem.worker_classes[0].count = 3;
    assert_close(optimum(&problem), 3.0);
    problem.worker_classes[0].count = 12; // counted together first, then one by one
    assert_close(optimum(&problem), 3.0);
    problem.worker_classes[0].memory_bytes = Some(6.0 * GIB);
    assert_close(optimum(&problem), 2.0);
    problem.worker_classes[0].memory_bytes = Some(2.0 * GIB);
    assert_eq!(plan(&problem).status, Status::Infeasible);
}

#[test]
fn bandwidth_bounds_what_goes_up() {
    let mut problem = case(&[&[0.2]], &[], &[(0, 4, 5.0, 1.0), (1, 4, 1.0, 1.0)], AccuracyModel::None);
    assert!(optimum(&problem) < 2.1);
    // 10 kB/s would go up; half of it may.
    if let Some(route) = &mut problem.routes[0][1] {
        route.bandwidth = Some(5000.0);
    }
    let cost = optimum(&problem);
    assert_close(cost, 6.0 + 5000.0 * 3600.0 * 1e-10);
    if let Some(route) = &mut problem.routes[0][1] {
        route.bandwidth = Some(0.0);
    }
    assert_close(optimum(&problem), 10.0);
}

/// A stream split and joined again, with too little room at the edge for all of it: each key takes one route as a
/// whole.
#[test]
fn a_diamond_is_planned_in_whole_routes() {
    let edges = [(0, 1), (0, 2), (1, 3), (2, 3)];
    let machines = [(0, 1, 0.1, 1.0), (1, 3, 1.0, 2.0)];
    let mut problem = case(&[&[0.02], &[0.08], &[0.08], &[0.02]], &edges, &machines, AccuracyModel::None);
    for edge in &mut problem.edges {
        edge.bytes[0] = 1e6 * (1.0 + edge.to as f64);
    }
    for traffic in [ReturnTraffic::Forbid, ReturnTraffic::Priced] {
        problem.limits.return_traffic = traffic;
        let outcome = plan(&problem);
        assert_eq!(outcome.status, Status::Optimal);
        let solution = outcome.solution.expect("has a plan");
        assert!(solution.classes.len() > 1, "the edge takes a part of the keys");
    }
}

/// Two sites with one source of each of two kinds, whose records meet by key: a site's keys stay at the site or go up.
#[test]
fn sites_serve_their_own_records() {
    let mut problem = case(
        &[&[0.04], &[0.04], &[0.02]],
        &[(0, 2), (1, 2)],
        &[(0, 1, 0.1, 1.0), (1, 1, 0.1, 1.0), (2, 2, 1.0, 1.0)],
        AccuracyModel::None,
    );
    problem.locations[1].tier = 0;
    problem.routes[0][1] = None;
    problem.routes[1][0] = None;
    problem.sources.push(problem.sources[0].clone());
    problem.edges[1].from = Producer::Source(1);
    for source in &mut problem.sources {
        source.locations = vec![(0, 0.5), (1, 0.5)];
    }
    // Each site's half of the work is half a worker.
    assert_close(optimum(&problem), 0.2);
    // A slow worker at one site: then half of a site's keys goes up, with both of its records.
    for operator in &mut problem.operators {
        for mode in operator.variants[0].modes[1].iter_mut() {
            *mode = ServiceMode::constant(mode.call_seconds * 4.0);
        }
    }
    let outcome = plan(&problem);
    assert_eq!(outcome.status, Status::Optimal);
    let solution = outcome.solution.expect("has a plan");
    assert!(solution.classes.iter().all(|class| class.sources[0] == class.sources[1]));
    assert!(outcome.cost.is_some_and(|cost| cost > 1.0 && cost < 1.3), "{:?}", outcome.cost);
}

#[test]
fn a_weightless_join_runs_where_a_worker_is() {
    let mut problem =
        case(&[&[0.05], &[0.05], &[0.0]], &[(0, 2), (1, 2)], &[(0, 1, 1.0, 1.0)], AccuracyModel::None);
    problem.operators[2].weightless = true;
    problem.operators[2].variants[0].modes = Vec::new();
    problem.limits.one_operator_per_worker = false;
    let outcome = plan(&problem);
    assert_eq!(outcome.cost, Some(1.0));
    let solution = outcome.solution.expect("has a plan");
    assert!(solution.hostings.iter().any(|hosting| hosting.operator == 2 && hosting.worker.is_none()));
}

fn two_variants(accuracy: AccuracyModel, needed: f64) -> Problem {
    let machines = [(0, 9, 1.0, 1.0)];
    let mut problem = case(&[&[0.1, 0.3], &[0.1, 0.4]], &[(0, 1)], &machines, accuracy);
    problem.limits.accuracy = Some(needed);
    problem
}

/// A table, contributions and responses with equal facts accept the same joint variants.
#[test]
fn accuracy_models_agree() {
    let table = AccuracyModel::Table(
        [(0, 0, 50.0), (1, 0, 60.0), (0, 1, 65.0), (1, 1, 75.0)]
            .map(|(a, b, accuracy)| AccuracyRow { variants: vec![a, b], accuracy })
            .to_vec(),
    );
    let sum = AccuracyModel::Additive { base: 50.0, contributions: vec![vec![0.0, 10.0], vec![0.0, 15.0]] };
    let row = |input: f64, output: f64| ResponseRow { inputs: vec![input], output };
    let responses = AccuracyModel::RowLookup(vec![
        vec![vec![row(0.0, 40.0)], vec![row(0.0, 80.0)]],
        vec![vec![row(0.0, 20.0), row(40.0, 50.0), row(80.0, 60.0)], vec![row(40.0, 65.0), row(80.0, 75.0)]],
    ]);
    for (needed, expected) in [(50.0, 2.0), (55.0, 4.0), (60.0, 4.0), (62.0, 5.0), (65.0, 5.0), (70.0, 7.0)] {
        for model in [&table, &sum, &responses] {
            let problem = two_variants(model.clone(), needed);
            assert_close(optimum(&problem), expected);
            // As rows of one program.
            let prepared =
                Prepared::new(&problem, &[MemoryRule::Ignored], LatencyRule::Plan, 1.0).expect("is right");
            let variants = vec![vec![true; 2]; 2];
            let allowed = Allowed { variants, excluded: Vec::new(), list: None };
            let mut search = Search::new(&SearchLimits::default(), SearchTime::begin());
            let found = search.together(&prepared, &allowed, None).expect("solves");
            assert_close(found.best.expect("has a plan").1.cost, expected);
        }
    }
    for model in [table, sum, responses, AccuracyModel::None] {
        assert_eq!(plan(&two_variants(model, 80.0)).status, Status::Infeasible);
    }
}

/// A larger variant that is less accurate or faster than a smaller one is no special case.
#[test]
fn variants_need_not_be_in_order() {
    let rows =
        [(0, 60.0), (1, 55.0), (2, 70.0)].map(|(m, accuracy)| AccuracyRow { variants: vec![m], accuracy });
    let mut problem =
        case(&[&[0.2, 0.3, 0.1]], &[], &[(0, 9, 1.0, 1.0)], AccuracyModel::Table(rows.to_vec()));
    problem.limits.accuracy = Some(50.0);
    assert_eq!(plan(&problem).solution.expect("has a plan").variants, [2]);
    let outcome = Exact.plan_without(&problem, &SearchLimits::default(), &[vec![2]]).expect("plans");
    assert_eq!(outcome.solution.expect("has a plan").variants, [0]);
    let excluded = [vec![2], vec![0], vec![1]];
    let outcome = Exact.plan_without(&problem, &SearchLimits::default(), &excluded).expect("plans");
    assert_eq!(outcome.status, Status::Infeasible);
}

#[test]
fn one_program_and_one_by_one_agree() {
    let services: Vec<Vec<f64>> =
        (0..4).map(|v| (0..3).map(|m| 0.03 * f64::from(1 + v) * 1.7f64.powi(m)).collect()).collect();
    let services: Vec<&[f64]> = services.iter().map(Vec::as_slice).collect();
    let contributions = (0..4).map(|v| (0..3).map(|m| f64::from(m * (5 + v))).collect()).collect();
    let machines = [(0, 3, 0.3, 1.0), (0, 2, 0.5, 2.0), (1, 4, 1.1, 5.0)];
    let accuracy = AccuracyModel::Additive { base: 50.0, contributions };
    let mut problem = case(&services, &[(0, 2), (1, 2), (2, 3)], &machines, accuracy);
    problem.limits.accuracy = Some(75.0);
    let prepared =
        Prepared::new(&problem, &[MemoryRule::Ignored; 3], LatencyRule::Plan, 1.0).expect("is right");
    let mut search = Search::new(&SearchLimits::default(), SearchTime::begin());
    let Candidates::Few(joints) = candidates(&prepared, &[], 1000) else { panic!("few enough") };
    let Candidates::Many(allowed) = candidates(&prepared, &[], 1) else { panic!("too many") };
    let apart = search.one_by_one(&prepared, &joints);
    let together = search.together(&prepared, &allowed, None).expect("solves");
    let cost = apart.best.expect("has a plan").1.cost;
    assert_close(together.best.expect("has a plan").1.cost, cost);
    assert_close(apart.bound, cost);
    let excluded = joints[..joints.len() / 2].to_vec();
    let without = candidates(&prepared, &excluded, 1000);
    assert!(matches!(without, Candidates::Few(left) if left.iter().all(|joint| !excluded.contains(joint))));
    let list_free = Allowed { list: None, excluded, ..allowed };
    let model = Model::new(&prepared, &list_free);
    assert_eq!(model.binaries.len(), 4);
}

fn with_latency(seconds: f64) -> Problem {
    let machines = [(0, 9, 1.0, 1.0), (1, 9, 4.0, 8.0)];
    let mut problem = case(&[&[0.04], &[0.02]], &[(0, 1)], &machines, AccuracyModel::None);
    problem.limits.latency = vec![LatencyLimit { percentile: 95.0, seconds, sink: None }];
    problem
}

#[test]
fn tighter_latency_costs_more_until_nothing_is_fast_enough() {
    let mut before = 0.0;
    for seconds in [2.0, 0.5, 0.3, 0.2, 0.12, 0.07] {
        let problem = with_latency(seconds);
        let cost = optimum(&problem);
        assert!(cost >= before - 1e-6, "{cost} after {before} at {seconds} s");
        before = cost;
    }
    assert!(before > optimum(&with_latency(2.0)));
    let outcome = plan(&with_latency(0.01));
    assert_eq!((outcome.status, outcome.bound), (Status::Infeasible, Some(f64::INFINITY)));
}

/// Whether there is a plan does not depend on prices, even where workers need different waits, which no heuristic
/// assigns.
#[test]
fn what_is_free_has_a_plan_where_what_costs_has_one() {
    let machines = [(0, 1, 1.0, 1.0); 5];
    let services: [&[f64]; 5] = [&[0.02]; 5];
    let mut problem = case(&services, &[(0, 1), (1, 2), (2, 3), (3, 4)], &machines, AccuracyModel::None);
    for (index, operator) in problem.operators.iter_mut().enumerate() {
        operator.rate = if index == 0 { 30.0 } else { 1.5 };
        let elsewhere =
            operator.variants[0].modes.iter_mut().enumerate().filter(|(class, _)| *class != index);
        elsewhere.for_each(|(_, modes)| modes.clear());
    }
    problem.sources[0].rate = 30.0;
    for edge in &mut problem.edges {
        edge.rate = if edge.to == 0 { 30.0 } else { 1.5 };
    }
    let mut possible = 0;
    for milliseconds in (200..800).step_by(50) {
        let seconds = f64::from(milliseconds) / 1000.0;
        problem.limits.latency = vec![LatencyLimit { percentile: 99.0, seconds, sink: None }];
        let mut free = problem.clone();
        free.worker_classes.iter_mut().for_each(|class| class.price = 0.0);
        let (costs, free) = (plan(&problem), plan(&free));
        assert_eq!(costs.solution.is_some(), free.solution.is_some(), "{milliseconds} ms");
        possible += usize::from(free.solution.is_some());
    }
    assert!((1..12).contains(&possible), "{possible} of 12");
}

#[test]
fn only_the_cameras_before_an_operator_keep_it_waiting() {
    let mut problem = with_latency(1.0);
    problem.operators[0].follows_event_time = true;
    problem.sources[0].at_one_time = 3;
    let waits = problem.held_seconds(0);
    assert_close(waits, 2.0 / problem.sources[0].rate);
    problem.sources.push(Source { at_one_time: 50, id: "other".to_owned(), ..problem.sources[0].clone() });
    assert_close(problem.held_seconds(0), waits);
}

#[test]
fn a_tick_counts_for_stateful_operators() {
    let mut problem = with_latency(0.07);
    assert_eq!(plan(&problem).status, Status::Optimal);
    problem.operators[1].stateful = true;
    problem.limits.tick_seconds = 0.05;
    assert_eq!(plan(&problem).status, Status::Infeasible);
}

#[test]
fn batches_are_used_where_latency_allows() {
    let mut problem = case(&[&[0.12]], &[], &[(0, 9, 1.0, 1.0)], AccuracyModel::None);
    let batch = ServiceMode {
        batch: 8,
        seconds_per_record: 0.04,
        call_seconds: 0.32,
        mean_call_seconds: 0.32,
        fill_seconds: 0.3,
        ..ServiceMode::constant(0.0)
    };
    problem.operators[0].variants[0].modes[0].push(batch);
    assert_close(optimum(&problem), 1.0);
    problem.limits.latency = vec![LatencyLimit { percentile: 95.0, seconds: 0.5, sink: None }];
    problem.limits.wait_levels = vec![0.02, 0.06, 0.2];
    let outcome = plan(&problem);
    let solution = outcome.solution.expect("has a plan");
    assert!(solution.hostings.iter().all(|hosting| hosting.mode == 0));
    // A wait of 0.2 s at the 95th percentile takes (exp(15 x 0.12) - 1) / 15 = 0.337 s of a worker per record.
    assert_eq!(outcome.cost, Some(4.0));
}

/// A node limit leaves a true gap, and the plan is reproducible.
#[test]
fn a_node_limit_is_reproducible() {
    let services: Vec<Vec<f64>> = (0..5).map(|v| vec![0.07 + 0.013 * f64::from(v)]).collect();
    let services: Vec<&[f64]> = services.iter().map(Vec::as_slice).collect();
    let machines = [(0, 3, 0.31, 1.0), (0, 3, 0.47, 1.7), (1, 3, 0.9, 3.1), (1, 3, 1.3, 4.9)];
    let mut problem = case(&services, &[(0, 1), (1, 2), (2, 3), (3, 4)], &machines, AccuracyModel::None);
    problem.limits.one_operator_per_worker = true;
    let limits = SearchLimits { nodes: 5, wall_seconds: None, ..SearchLimits::default() };
    let first = Exact.plan(&problem, &limits).expect("plans");
    let second = Exact.plan(&problem, &limits).expect("plans");
    assert_eq!((&first.solution, first.bound, first.nodes), (&second.solution, second.bound, second.nodes));
    let best = optimum(&problem);
    assert!(first.bound.is_some_and(|bound| bound <= best + 1e-6), "{:?} above {best}", first.bound);
    if let Some(cost) = first.cost {
        assert!(cost >= best - 1e-6);
        assert!(first.status != Status::Optimal || cost <= best + 1e-6);
    }
}

/// Two models that fill half of the memory each, and two small ones: no division in their order by load fits.
#[test]
fn models_are_packed_in_another_order_before_another_worker_is_rented() {
    let mut problem = case(
        &[&[0.06], &[0.06], &[0.04], &[0.04]],
        &[(0, 1), (1, 2), (2, 3)],
        &[(0, 6, 1.0, 1.0)],
        AccuracyModel::None,
    );
    for (operator, memory) in problem.operators.iter_mut().zip([3.0, 3.0, 3.0, 3.0]) {
        operator.variants[0].modes[0][0].memory_bytes = memory * GIB;
    }
    problem.worker_classes[0].memory_bytes = Some(6.0 * GIB);
    assert_close(optimum(&problem), 2.0);
}

/// Waits and machines can be chosen: the cost lies between the bound and the cost without a limit.
#[test]
fn a_latency_limit_costs_no_less_than_none() {
    let machines = [(0, 6, 0.5, 1.0), (0, 6, 1.1, 2.0), (1, 9, 2.0, 8.0)];
    let services: [&[f64]; 3] = [&[0.04, 0.06], &[0.02, 0.03], &[0.05, 0.07]];
    let accuracy = AccuracyModel::Additive { base: 50.0, contributions: vec![vec![0.0, 5.0]; 3] };
    let mut problem = case(&services, &[(0, 1), (1, 2)], &machines, accuracy);
    problem.limits.accuracy = Some(60.0);
    let free = optimum(&problem);
    for seconds in [2.0, 0.6, 0.4] {
        problem.limits.latency = vec![LatencyLimit { percentile: 95.0, seconds, sink: None }];
        // The assertions hold wherever the search ends.
        let limits = SearchLimits { wall_seconds: Some(5.0), ..SearchLimits::default() };
        let outcome = Exact.plan(&problem, &limits).expect("it takes the problem");
        let (cost, bound) = (outcome.cost.expect("has a plan"), outcome.bound.expect("has a bound"));
        assert!(bound >= free - 1e-6, "{bound} is below {free}, what it costs without the limit");
        assert!(cost >= bound - 1e-9, "{seconds} s: {cost} against {bound}");
    }
}

/// In this problem `microlp` ends one of the programs with an internal error.
#[test]
fn a_solver_that_loses_its_way_ends_no_search() {
    let mut problem = workflow_problem(Size::EXTRA_LARGE, 9);
    problem.limits.one_operator_per_worker = true;
    let limits = SearchLimits { wall_seconds: Some(20.0), ..SearchLimits::default() };
    let outcome = Exact.plan(&problem, &limits).expect("no fault");
    assert!(outcome.solution.is_some() && outcome.bound.is_some_and(|bound| bound > 0.0), "{outcome:?}");
}
