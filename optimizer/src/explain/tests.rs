use super::*;
use crate::assemble::tests::{Case, INFRASTRUCTURE, PROFILE, WORKFLOW};
use crate::check::check;
use crate::generator::{small_problem, small_problem_with_devices};
use crate::planner::Planner;
use crate::planners::exact::Exact;

fn problem(workflow: &str) -> Problem {
    Case::new(workflow, INFRASTRUCTURE, PROFILE).assembled().problem
}

fn limits() -> SearchLimits {
    SearchLimits { wall_seconds: None, ..SearchLimits::default() }
}

fn found(problem: &Problem) -> Vec<Relaxation> {
    let outcome = Exact.plan(problem, &limits()).expect("plans");
    assert_eq!(outcome.solution, None);
    relaxations(problem, &limits()).expect("plans")
}

/// Without a bound on latency: workers may wait.
fn without_latency() -> String {
    WORKFLOW.replace(", latency: {percentile: p99, below: 800ms}", "")
}

#[test]
fn an_accuracy_out_of_reach_gives_way_to_the_best_there_is() {
    let mut problem = problem(&without_latency());
    problem.limits.accuracy = Some(70.0);
    let all = found(&problem);
    assert_eq!(all[0].relaxed, Relaxed::Accuracy { from: 70.0, to: 65.0 });
    assert!((all[0].relative - 5.0 / 70.0).abs() < 1e-12);
    assert_eq!(all.len(), 1, "nothing else helps: {all:?}");
}

#[test]
fn a_rate_out_of_reach_gives_way_to_the_largest() {
    let mut problem = with_rate(&problem(&without_latency()), 100.0);
    problem.limits.accuracy = None;
    problem.routes[0][1].as_mut().expect("a link").bandwidth = None;
    let all = found(&problem);
    let factor = all.iter().find_map(|relaxation| match relaxation.relaxed {
        Relaxed::Rate { factor } => Some(factor),
        _ => None,
    });
    let factor = factor.expect("a lower rate helps");
    assert!(Exact.plan(&with_rate(&problem, factor), &limits()).expect("plans").solution.is_some());
    assert!(Exact.plan(&with_rate(&problem, factor * 1.01), &limits()).expect("plans").solution.is_none());
    let workers = all.iter().find(|relaxation| matches!(relaxation.relaxed, Relaxed::Workers(_)));
    let Some(Relaxed::Workers(missing)) = workers.map(|relaxation| &relaxation.relaxed) else {
        panic!("more machines help: {all:?}");
    };
    let mut more = problem.clone();
    for add in missing {
        more.worker_classes[add.class].count += add.count;
    }
    assert!(Exact.plan(&more, &limits()).expect("plans").solution.is_some(), "{missing:?}");
}

#[test]
fn a_latency_out_of_reach_gives_way_to_one_that_can_be_kept() {
    let workflow = WORKFLOW.replace("below: 800ms", "below: 60ms");
    let problem = problem(&workflow);
    let all = found(&problem);
    let to = all.iter().find_map(|relaxation| match relaxation.relaxed {
        Relaxed::Latency { to, .. } => Some(to),
        _ => None,
    });
    let to = to.expect("more time helps");
    let kept =
        Exact.plan(&with_latency(&problem, |_| to), &limits()).expect("plans").solution.expect("a plan");
    assert_eq!(check(&with_latency(&problem, |_| to), &kept), []);
}

#[test]
fn a_full_link_gives_way_to_a_wider_one() {
    let mut problem = problem(&without_latency());
    problem.limits.accuracy = None;
    // The little workers cannot run speech, and its records are too large for the link.
    problem.operators[1].variants[0].modes[0].clear();
    problem.routes[0][1].as_mut().expect("a link").bandwidth = Some(1e6);
    let all = found(&problem);
    let factor = all.iter().find_map(|relaxation| match relaxation.relaxed {
        Relaxed::Bandwidth { factor } => Some(factor),
        _ => None,
    });
    // 40 records of 100 kB a second and little else.
    assert!(factor.is_some_and(|factor| factor > 3.9 && factor < 5.0), "{all:?}");
    assert!(
        all.windows(2).all(
            |pair| pair[0].relative <= pair[1].relative || matches!(pair[1].relaxed, Relaxed::Workers(_))
        )
    );
}

#[test]
fn a_plan_is_explained() {
    let problem = problem(&without_latency());
    let outcome = Exact.plan(&problem, &limits()).expect("plans");
    let explained = explain(&problem, &outcome, 40.0, &[], &limits(), &mut |_| {}).expect("plans");
    // Only the large model is accurate enough; the small one would be cheaper or cost as much.
    assert!(
        explained.binding.iter().any(|binding| matches!(binding, Binding::Accuracy { .. })),
        "{explained:?}"
    );
    let accuracy = explained.prices.iter().find(|price| matches!(price.change, LevelChange::Accuracy(_)));
    assert!(accuracy.is_some_and(|price| price.price.is_some()), "61 % is within 65 %");
    for rejected in &explained.rejected {
        match rejected.reason {
            Reason::Accuracy(found) => assert!(found < problem.limits.accuracy),
            Reason::Dearer(more) => assert!(more >= -1e-9),
            Reason::Latency(_) => panic!("no latency is asked for"),
        }
    }
}

/// Each named level must be relaxed, and all of them together suffice.
#[test]
fn levels_that_are_wrong_at_once_give_way_together() {
    let limits = limits();
    let inaccurate = |factor: f64, workflow: &str| {
        let mut problem = with_rate(&problem(workflow), factor);
        problem.limits.accuracy = Some(70.0);
        problem.routes[0][1].as_mut().expect("a link").bandwidth = None;
        // Waits do not matter here, and searching for them takes half a minute.
        problem.limits.wait_levels = problem.limits.waits();
        problem
    };
    let hasty = WORKFLOW.replace("below: 800ms", "below: 60ms");
    for (problem, count) in [(inaccurate(100.0, &without_latency()), 2), (inaccurate(100.0, &hasty), 3)] {
        assert_eq!(found(&problem), [], "no single change does");
        let together = combination(&problem, &limits).expect("plans");
        assert_eq!(together.len(), count, "{together:?}");
        let with = |all: &[&Relaxation]| {
            let changed = all.iter().fold(problem.clone(), |problem, relaxation| match relaxation.relaxed {
                Relaxed::Rate { factor } => with_rate(&problem, factor),
                Relaxed::Accuracy { to, .. } => with_accuracy(&problem, Some(to)),
                Relaxed::Latency { to, .. } => with_latency(&problem, |_| to),
                _ => panic!("no service level: {relaxation:?}"),
            });
            Exact.plan(&changed, &limits).expect("plans").solution.is_some()
        };
        let all: Vec<&Relaxation> = together.iter().collect();
        assert!(with(&all), "{together:?}");
        for (at, left_out) in together.iter().enumerate() {
            let mut others = all.clone();
            others.remove(at);
            assert!(!with(&others), "without {left_out:?}");
        }
    }
}

/// The questions of an explanation as searches from nothing: cost with other variants, and with each operator's other kind.
fn from_nothing(problem: &Problem, solution: &Solution) -> (Option<f64>, Vec<Option<f64>>) {
    let excluded = [solution.variants.clone()];
    let others = Exact.plan_without(problem, &limits(), &excluded).expect("plans").cost;
    let is_remote = |operator: usize| {
        let mut own = solution.hostings.iter().filter(|hosting| hosting.operator == operator);
        own.any(|hosting| hosting.device.is_some())
    };
    let operators =
        (0..problem.operators.len()).filter(|operator| devices::has_both_kinds(problem, *operator));
    let of_kind = |operator: usize| {
        let kind = problem.with_modes(operator, |mode| mode.remote.is_some() != is_remote(operator));
        Exact.plan(&kind, &limits()).expect("plans").cost
    };
    (others, operators.map(of_kind).collect())
}

/// Known plans and bounds change the effort, not the answers: fewer searches than questions, and the same costs.
#[test]
fn answers_from_known_plans_are_those_of_searches_from_nothing() {
    let (mut asked, mut searched, mut compared) = (0, 0, 0);
    for problem in (1..=30).flat_map(|seed| [small_problem(seed), small_problem_with_devices(seed)]) {
        let outcome = Exact.plan(&problem, &limits()).expect("plans");
        let Some(solution) = &outcome.solution else { continue };
        let mut calls = 0;
        let mut seen = |so_far: &Explanation| {
            calls += 1;
            assert!(so_far.effort.answered <= so_far.questions, "{so_far:?}");
        };
        let explained = explain(&problem, &outcome, 10.0, &[], &limits(), &mut seen).expect("plans");
        assert!(calls > explained.prices.len() && explained.open.is_empty(), "{explained:?}");
        let effort = explained.effort;
        assert!(effort.cut == 0 && effort.answered == explained.questions, "{effort:?}");
        (asked, searched) = (asked + effort.answered, searched + effort.searches);
        let (others, of_kinds) = from_nothing(&problem, solution);
        let dearer =
            explained.rejected.iter().filter(|rejected| matches!(rejected.reason, Reason::Dearer(_)));
        let first = dearer.map(|rejected| rejected.cost).next();
        if explained.rejected.len() < 3 || first.is_some() {
            assert_near(&problem, first, others);
        }
        for (reason, cost) in explained.devices.iter().zip(&of_kinds) {
            let own = reason.other.as_ref().map(|other| other.cost.total());
            assert_near(&problem, own, *cost);
            let least = own.map_or(f64::INFINITY, |own| own - PRINTED);
            assert!(reason.least >= least, "{}: {reason:?}", problem.name);
            compared += 1;
        }
        assert_eq!(explained.devices.len(), of_kinds.len());
    }
    println!("{searched} searches for {asked} questions, {compared} kinds compared");
    assert!(compared > 20 && 10 * searched < 9 * asked, "{searched} of {asked}, {compared} compared");
}

fn assert_near(problem: &Problem, own: Option<f64>, other: Option<f64>) {
    let is_near = match (own, other) {
        (Some(own), Some(other)) => (own - other).abs() < PRINTED.max(1e-5 * other),
        (own, other) => own == other,
    };
    assert!(is_near, "{}: {own:?} instead of {other:?}", problem.name);
}

/// A time limit of nothing leaves the questions that known plans answer, and says that the others are open.
#[test]
fn what_the_time_limit_cuts_is_said() {
    let none = SearchLimits { wall_seconds: Some(0.0), ..SearchLimits::default() };
    let (mut cut, mut open) = (0, 0);
    for problem in (1..=30).map(small_problem_with_devices) {
        let outcome = Exact.plan(&problem, &limits()).expect("plans");
        if outcome.solution.is_none() {
            continue;
        }
        let explained = explain(&problem, &outcome, 10.0, &[], &none, &mut |_| {}).expect("plans");
        assert_eq!((explained.effort.searches, explained.effort.nodes), (0, 0), "{}", problem.name);
        let devices = explained.devices.iter().filter(|reason| reason.is_cut);
        for reason in devices {
            assert!(reason.least <= outcome.cost.unwrap_or(0.0), "{reason:?}");
            cut += 1;
        }
        open += explained.open.len();
        let by_answer = explained.devices.iter().filter(|reason| reason.is_cut).count()
            + explained.prices.iter().filter(|price| price.is_cut).count()
            + explained.rejected.iter().filter(|rejected| rejected.is_cut).count()
            + explained.open.len();
        assert_eq!(explained.effort.cut, by_answer, "{explained:?}");
    }
    assert!(cut > 0 && open > 0, "{cut} cut, {open} open");
}
