//! Schedules against all trees that cross each rack once.
use super::*;
use crate::tree::{Direction, Link};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Racks {A, B} and {C, D}; a quarter of what D could send is taken.
fn figure() -> (Tree, Vec<f64>) {
    let tree = Tree::of(&["one", "one", "two", "two"]);
    let mut rates = vec![1.0; tree.links()];
    rates[tree.id(Link::Machine(3, Direction::Up))] = 0.75;
    (tree, rates)
}

#[test]
fn chains_of_the_published_figure_take_the_published_times() {
    let (tree, rates) = figure();
    let chain = |order: [usize; 4]| {
        let edges: Vec<(usize, usize)> = order.windows(2).map(|pair| (pair[0], pair[1])).collect();
        time(&tree.loads(Goal::Broadcast { root: 0 }.transfers(&edges)), &rates)
    };
    let [a, b, c, d] = [0, 1, 2, 3];
    assert_eq!(chain([a, c, b, d]), 2.0);
    assert_eq!(chain([a, b, d, c]), 4.0 / 3.0);
    assert_eq!(chain([a, b, c, d]), 1.0);
    let best = schedule(&tree, &rates, Goal::Broadcast { root: a }).expect("it has a schedule");
    assert!((best.time - 1.0).abs() < 1e-6, "{best:?}");
    assert_eq!(ring(&tree, &rates, a).map(|ring| (ring.order, ring.broadcast)), Ok((vec![a, b, c, d], 1.0)));
}

/// All trees of the machines that cross each rack once, by their Prüfer codes, directed away from `root`.
fn every_tree(tree: &Tree, root: usize) -> Vec<Vec<(usize, usize)>> {
    let count = tree.machines();
    let mut codes: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..count.saturating_sub(2) {
        let longer = codes.iter().flat_map(|code| (0..count).map(|next| [code.clone(), vec![next]].concat()));
        codes = longer.collect();
    }
    let undirected = codes.into_iter().map(|code| {
        let mut degree = vec![1; count];
        code.iter().for_each(|node| degree[*node] += 1);
        let mut edges = Vec::new();
        for node in &code {
            let leaf = (0..count).find(|leaf| degree[*leaf] == 1).expect("a tree has a leaf");
            edges.push((leaf, *node));
            degree[leaf] -= 1;
            degree[*node] -= 1;
        }
        let last: Vec<usize> = (0..count).filter(|node| degree[*node] == 1).collect();
        edges.extend(last.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        edges
    });
    let directed = undirected.map(|mut edges| {
        let (mut reached, mut found) = (BTreeSet::from([root]), Vec::new());
        while let Some(next) = edges.iter().position(|(a, b)| reached.contains(a) || reached.contains(b)) {
            let (a, b) = edges.swap_remove(next);
            let edge = if reached.contains(&a) { (a, b) } else { (b, a) };
            reached.insert(edge.1);
            found.push(edge);
        }
        found
    });
    directed.filter(|edges| crosses_once(tree, edges)).collect()
}

/// Whether no rack is entered twice, nor one that the data came from.
fn crosses_once(tree: &Tree, edges: &[(usize, usize)]) -> bool {
    let across = edges.iter().filter(|(from, to)| tree.rack_of(*from) != tree.rack_of(*to));
    across.count() + 1 == tree.racks().len()
}

/// Lower and upper bound of the best mix, by a game: one side weighs links, the other one answers with the tree that is best for that.
/// It shares nothing with the solver.
fn bounds(times: &[Vec<f64>]) -> (f64, f64) {
    let links = times[0].len();
    let highest = times.iter().flatten().copied().fold(0.0, f64::max);
    let (mut weights, mut sums, mut low) = (vec![1.0; links], vec![0.0; links], 0.0_f64);
    let rounds = 6_000;
    for _ in 0..rounds {
        let whole: f64 = weights.iter().sum();
        let cost = |one: &Vec<f64>| {
            one.iter().zip(&weights).map(|(time, weight)| time * weight).sum::<f64>() / whole
        };
        let best =
            times.iter().min_by(|one, other| cost(one).total_cmp(&cost(other))).expect("there are trees");
        low = low.max(cost(best));
        for link in 0..links {
            sums[link] += best[link];
            weights[link] *= 1.0 + 0.03 * best[link] / highest;
        }
        let largest = weights.iter().copied().fold(0.0, f64::max);
        weights.iter_mut().for_each(|weight| *weight /= largest);
    }
    (low, sums.iter().copied().fold(0.0, f64::max) / f64::from(rounds))
}

/// The time of the best mix, by a linear program with one weight for each tree.
fn best_mix(times: &[Vec<f64>]) -> f64 {
    let mut program = microlp::Problem::new(microlp::OptimizationDirection::Minimize);
    let time = program.add_var(1.0, (0.0, f64::INFINITY));
    let weights: Vec<microlp::Variable> = times.iter().map(|_| program.add_var(0.0, (0.0, 1.0))).collect();
    let all: Vec<(microlp::Variable, f64)> = weights.iter().map(|weight| (*weight, 1.0)).collect();
    program.add_constraint(all, microlp::ComparisonOp::Eq, 1.0);
    for link in 0..times[0].len() {
        let of_link = weights.iter().zip(times).map(|(weight, times)| (*weight, times[link]));
        let load: Vec<(microlp::Variable, f64)> = of_link.chain([(time, -1.0)]).collect();
        program.add_constraint(load, microlp::ComparisonOp::Le, 0.0);
    }
    let outcome = program.solve().expect("it has a solution");
    outcome.into_solution().expect("it is solved").objective()
}

fn check(tree: &Tree, rates: &[f64], goal: Goal) -> Result<Schedule, TestCaseError> {
    let found = schedule(tree, rates, goal).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let sum: f64 = found.parts.iter().map(|part| part.weight).sum();
    prop_assert!((sum - 1.0).abs() < 1e-9, "weights add up to {sum}");
    for part in &found.parts {
        prop_assert!(part.weight > 0.0);
        let mut reached = BTreeSet::from([part.root]);
        for (from, to) in &part.edges {
            prop_assert!(reached.contains(from), "{from} sends before it has the part: {part:?}");
            prop_assert!(reached.insert(*to), "{to} gets the part twice: {part:?}");
        }
        prop_assert_eq!(reached.len(), tree.machines());
        prop_assert!(crosses_once(tree, &part.edges), "{part:?}");
        if let Goal::Broadcast { root } = goal {
            prop_assert_eq!(part.root, root);
        }
    }
    Ok(found)
}

fn goal(number: usize, machines: usize) -> Goal {
    if number == 0 { Goal::AllReduce } else { Goal::Broadcast { root: (number - 1) % machines } }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_mix_of_trees_is_quicker(
        racks in prop::collection::vec(0..3_u8, 2..=6),
        rates in prop::collection::vec(0.1..1.0_f64, 18),
        which in 0..7_usize,
    ) {
        let tree = Tree::of(&racks);
        let (rates, goal) = (&rates[..tree.links()], goal(which, tree.machines()));
        let found = check(&tree, rates, goal)?;
        let root = if let Goal::Broadcast { root } = goal { root } else { 0 };
        let times: Vec<Vec<f64>> = every_tree(&tree, root).iter().map(|edges| {
            let loads = tree.loads(goal.transfers(edges));
            loads.iter().zip(rates).map(|(load, rate)| load / rate).collect()
        }).collect();
        let best = best_mix(&times);
        prop_assert!((found.time - best).abs() < 2e-4 * best, "{} instead of {best}", found.time);
        let (low, high) = bounds(&times);
        prop_assert!(found.time >= low * (1.0 - 1e-6), "{} below the bound {low}", found.time);
        prop_assert!(found.time <= high * (1.0 + 2e-4), "{} above a mix that takes {high}", found.time);
        prop_assert!(high - low < 0.25 * high, "the bounds {low} and {high} say little");
    }

    #[test]
    fn larger_groups_have_whole_trees(
        racks in prop::collection::vec(0..9_u8, 1..=48),
        rates in prop::collection::vec(0.0..1.0_f64, 120),
        which in 0..49_usize,
    ) {
        let tree = Tree::of(&racks);
        let goal = goal(which, tree.machines());
        let found = check(&tree, &rates[..tree.links()], goal)?;
        if tree.machines() > 1 {
            let ring = ring(&tree, &rates[..tree.links()], 0).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let one = match goal {
                Goal::AllReduce => ring.all_reduce,
                Goal::Broadcast { root: 0 } => ring.broadcast,
                Goal::Broadcast { .. } => f64::INFINITY,
            };
            let is_ring = matches!(goal, Goal::Broadcast { .. });
            prop_assert!(!is_ring || found.time <= one * (1.0 + 2e-4), "{} above {one} of a ring", found.time);
        }
    }

    #[test]
    fn rings_cross_each_rack_once(racks in prop::collection::vec(0..5_u8, 1..=12), root in 0..12_usize) {
        let tree = Tree::of(&racks);
        let root = root % tree.machines();
        let ring = ring(&tree, &vec![1.0; tree.links()], root).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(ring.order[0], root);
        prop_assert_eq!(ring.order.iter().collect::<BTreeSet<_>>().len(), tree.machines());
        let edges: Vec<(usize, usize)> = ring.order.windows(2).map(|pair| (pair[0], pair[1])).collect();
        prop_assert!(crosses_once(&tree, &edges));
    }
}

#[test]
fn even_networks_are_used_evenly() {
    // Four racks of four: 2 (m - 1) / m within a rack, 2 (R - 1) / R between racks, spread over the machines of a rack.
    let racks: Vec<usize> = (0..16).map(|machine| machine / 4).collect();
    let tree = Tree::of(&racks);
    let found = schedule(&tree, &vec![1.0; tree.links()], Goal::AllReduce).expect("it has a schedule");
    assert!((found.time - (1.5 + 1.5 / 4.0)).abs() < 1e-6, "{}", found.time);
    let loads = found.loads(&tree, Goal::AllReduce);
    let racks = &loads[32..];
    assert!(racks.iter().all(|load| (load - 1.5).abs() < 1e-6), "racks are used evenly, too: {racks:?}");
    let scaled = schedule(&tree, &vec![12.5e9; tree.links()], Goal::AllReduce).expect("it has a schedule");
    assert!((scaled.time * 12.5e9 - found.time).abs() < 1e-6, "units do not matter: {}", scaled.time);
}

#[test]
fn wrong_input_is_rejected() {
    let (tree, rates) = figure();
    let broadcast = |rates: &[f64], root| schedule(&tree, rates, Goal::Broadcast { root }).map(|_| ());
    assert_eq!(broadcast(&rates, 4), Err(ScheduleError::Root { root: 4, machines: 4 }));
    assert_eq!(broadcast(&rates[1..], 0), Err(ScheduleError::Rates { rates: 11, links: 12 }));
    assert_eq!(broadcast(&[0.0; 12], 0), Err(ScheduleError::NoRate));
    assert_eq!(broadcast(&[f64::NAN; 12], 0), Err(ScheduleError::NoRate));
    let mut dead = rates;
    dead[tree.id(Link::Rack(1, Direction::Down))] = 0.0;
    let found = schedule(&tree, &dead, Goal::AllReduce).expect("it has a schedule");
    assert_eq!(found.time, f64::INFINITY, "a link without a rate");
    assert_eq!(schedule(&Tree::of::<u8>(&[]), &[], Goal::AllReduce).map(|found| found.time), Ok(0.0));
}
