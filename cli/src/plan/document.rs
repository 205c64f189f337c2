//! A plan for programs.
use super::expected::Nearest;
use super::table::path_name;
use super::{Answer, Planned, engine, predicted_times, status_word};
use serde_json::{Map, Value, json};
use tidemill_app::expectation::{Contradiction, Expectation};
use tidemill_app::weak_figures::{AccuracyInterval, weak_figures, weak_value};
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::Status;
use tidemill_optimizer::summary::PathLatency;
use tidemill_simulator::LimitOutcome;

/// Returns the whole answer.
pub(super) fn document(answer: &Answer<'_>) -> Value {
    let (outcome, assembly) = (answer.outcome, answer.assembly);
    let problem = &assembly.problem;
    let mut all = Map::new();
    let mut add = |key: &str, value: Value| drop(all.insert(key.to_owned(), value));
    add("version", json!(1));
    add("workflow", json!(answer.case.workflow.name.value));
    add("infrastructure", json!(answer.case.infrastructure.name.value));
    add("planner", json!(outcome.planner));
    add("engine", json!(engine(outcome)));
    // Failing simulated plans prove nothing about the level; a failure without the level does.
    let is_searched = answer.search.is_some_and(|search| search.plans > 0) && answer.planned.is_none();
    let is_unproven = outcome.status == Status::Infeasible && outcome.bound != Some(f64::INFINITY);
    let is_not_found = is_searched || is_unproven;
    add("status", json!(if is_not_found { "not_found" } else { status_word(outcome.status) }));
    add("bound", json!(outcome.bound.filter(|bound| bound.is_finite())));
    add("gap", json!(outcome.gap));
    add("planning_seconds", json!(outcome.seconds));
    add("nodes", json!(outcome.nodes));
    add("percentile", json!(problem.limits.percentile));
    add(
        "rate",
        json!({"wanted": assembly.rate, "up_to": answer.planned.and_then(|planned| up_to(answer, planned))}),
    );
    if let Some(planned) = answer.planned {
        let cost = &planned.summary.cost;
        add(
            "cost",
            json!({"total": cost.total(), "compute": cost.compute, "network": cost.network, "unit": "$/h"}),
        );
        add("accuracy", json!(planned.summary.accuracy));
        let interval = AccuracyInterval::of(answer.case, &planned.plan);
        add("accuracy_interval", json!(interval.map(|interval| interval.value())));
        add("accuracy_wanted", json!(problem.limits.accuracy));
        add("latency", latency(problem, planned));
        add("latency_basis", json!(answer.basis()));
        add("expectation", expectation(answer));
        add("predicted_times", json!(predicted_times(answer.case, &planned.plan)));
        add("weak_figures", weak_value(&weak_figures(answer.case, &planned.plan)));
        add("variants", variants(answer, planned));
        add("workers", workers(problem, planned));
        add("traffic", traffic(problem, planned));
        add("classes", json!(planned.plan.classes.len()));
        add("survive", json!({"losses": problem.limits.survive, "fallbacks": planned.plan.fallbacks.len()}));
        if let Some(what_if) = answer.what_if {
            add("what_if", what_if.value());
        }
        add("plan_workers", json!(planned.plan.workers.iter().map(|w| &w.id).collect::<Vec<_>>()));
    }
    if let Some(give_way) = answer.give_way {
        for (key, value) in give_way.values(assembly) {
            add(key, value);
        }
    }
    if let Some(obstacle) = answer.obstacle() {
        add("obstacle", json!(obstacle.text(problem)));
    }
    if let Some(simulated) = answer.search {
        add("plans_simulated", json!(simulated.plans));
        add("nearest", json!(simulated.nearest.as_ref().map(Nearest::value)));
    }
    add("notes", json!(assembly.notes));
    Value::Object(all)
}

fn up_to(answer: &Answer<'_>, planned: &Planned) -> Option<f64> {
    planned.summary.headroom.map(|factor| answer.assembly.rate * factor)
}

fn latency(problem: &Problem, planned: &Planned) -> Value {
    let paths = planned.summary.paths.iter().map(|path| {
        json!({
            "path": path_name(problem, path),
            "service_ms": path.service * 1e3,
            "waiting_ms": path.is_bounded.then_some(path.waiting * 1e3),
            "batching_ms": path.batching * 1e3,
            "transfer_ms": path.transfer * 1e3,
            "ticks_ms": path.ticks * 1e3,
            "publication_ms": path.publication * 1e3,
            "sum_ms": path.total() * 1e3,
        })
    });
    let limits = problem.limits.latency.iter();
    let limits = limits.map(|limit| json!({"percentile": limit.percentile, "below_ms": limit.seconds * 1e3}));
    json!({
        "sum_ms": planned.summary.slowest().map(|path| path.total() * 1e3),
        "is_bounded": planned.summary.slowest().is_some_and(|path: &PathLatency| path.is_bounded),
        "wanted": limits.collect::<Vec<_>>(),
        "paths": paths.collect::<Vec<_>>(),
    })
}

/// Results of a short simulation, beside the bounds of `latency`.
fn expectation(answer: &Answer<'_>) -> Value {
    match answer.expectation {
        None => Value::Null,
        Some(Expectation::Unknown(why)) => json!({"p50_ms": null, "p99_ms": null, "why_not": why}),
        Some(Expectation::Known {
            sink,
            latency,
            seconds,
            utilization,
            levels,
            contradictions,
            with_engine,
        }) => json!({
            "mean_ms": latency.mean * 1e3,
            "p50_ms": latency.p50 * 1e3,
            "p45_ms": latency.middle.0 * 1e3,
            "p55_ms": latency.middle.1 * 1e3,
            "p90_ms": latency.p90 * 1e3,
            "p99_ms": latency.p99 * 1e3,
            "sink": sink,
            "utilization": utilization,
            "levels": levels.iter().map(level).collect::<Vec<_>>(),
            "simulated_seconds": seconds,
            "with_engine": with_engine,
            "contradictions": contradictions.iter().map(contradiction).collect::<Vec<_>>(),
        }),
    }
}

/// A latency level, with the expectation.
fn level(one: &LimitOutcome) -> Value {
    json!({"percentile": one.percentile, "below_ms": one.limit * 1e3, "expected_ms": one.seconds * 1e3})
}

/// A guarantee of the plan that the simulation contradicts.
fn contradiction(one: &Contradiction) -> Value {
    let mut value = match one {
        Contradiction::Saturated { worker, expected, planned } => {
            json!({"what": "worker", "worker": worker, "utilization": expected, "planned_utilization": planned})
        }
        Contradiction::Rate { achieved } => json!({"what": "rate", "achieved_share": achieved}),
        Contradiction::Latency { sink, percentile, limit, expected } => json!({
            "what": "latency",
            "sink": sink,
            "percentile": percentile,
            "below_ms": limit * 1e3,
            "expected_ms": expected * 1e3,
        }),
    };
    value["text"] = json!(one.text());
    value
}

fn variants(answer: &Answer<'_>, planned: &Planned) -> Value {
    let chosen = answer.assembly.problem.operators.iter().zip(&planned.solution.variants);
    let with_models = chosen.filter(|(operator, _)| answer.case.models.contains_key(&operator.id));
    let all = with_models.map(|(operator, &m)| (operator.id.clone(), json!(operator.variants[m].id)));
    Value::Object(all.collect())
}

fn workers(problem: &Problem, planned: &Planned) -> Value {
    let all = planned.workers.iter().zip(&planned.summary.workers).map(|(name, load)| {
        let class = &problem.worker_classes[load.class];
        let parts = load.parts.iter().map(|(operator, share, part)| {
            json!({"operator": problem.operators[*operator].id, "share": share, "utilization": part})
        });
        json!({
            "id": name,
            "worker_type": class.worker_type,
            "location": problem.locations[class.location].name,
            "price": class.price,
            "utilization": load.utilization,
            "waiting_ms": load.wait_seconds.map(|seconds| seconds * 1e3),
            "operators": parts.collect::<Vec<_>>(),
        })
    });
    Value::Array(all.collect())
}

fn traffic(problem: &Problem, planned: &Planned) -> Value {
    let all = planned.summary.traffic.iter().map(|traffic| {
        json!({
            "from": problem.locations[traffic.from].name,
            "to": problem.locations[traffic.to].name,
            "bytes_per_second": traffic.bytes_per_second,
            "cost": traffic.cost,
            "utilization": traffic.utilization,
        })
    });
    Value::Array(all.collect())
}
