//! Explains in words why a plan was chosen, and why there is none.
use super::Taken;
use std::collections::BTreeMap;
use tidemill_app::expectation::Expectation;
use tidemill_app::figures::{dollars, milliseconds};
use tidemill_app::planned::Planned;
use tidemill_app::planning::Case;
use tidemill_app::relaxation;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::explain::{Relaxation, Relaxed, relaxations};
use tidemill_optimizer::planner::SearchLimits;
use tidemill_optimizer::solution::{Outcome, Status};

/// Seconds that one question about levels to relax may take.
const QUESTION_SECONDS: f64 = 2.0;

/// One line for the plan's result, one for each worker, one for each omission or assumption.
pub(super) fn explained(
    case: &Case,
    assembly: &Assembly,
    outcome: &Outcome,
    planned: &Planned,
    expectation: &Expectation,
    notes: &[String],
) -> Vec<String> {
    let summary = &planned.summary;
    let accuracy =
        summary.accuracy.map_or_else(String::new, |accuracy| format!(", accuracy {accuracy:.1} %"));
    let latency = match expectation {
        Expectation::Known { latency, .. } => format!(", p99 {} expected", milliseconds(latency.p99 * 1e3)),
        Expectation::Unknown(why) => format!(", latency not known: {why}"),
    };
    let room = summary
        .headroom
        .map_or_else(String::new, |factor| format!(", room up to {:.1}/s", factor * assembly.rate));
    let proof = match (outcome.status, outcome.bound) {
        (Status::Optimal, _) => "no plan costs less".to_owned(),
        (_, Some(bound)) => format!("no plan costs less than {}", dollars(bound)),
        (_, None) => "no proof about the cost of other plans".to_owned(),
    };
    let mut lines = vec![format!(
        "planned {} for {}: {} more, {}/s{accuracy}{latency}{room}; {proof}",
        case.workflow.name,
        case.infrastructure.name,
        dollars(summary.cost.total()),
        assembly.rate
    )];
    for (name, load) in planned.workers.iter().zip(&summary.workers) {
        let class = &assembly.problem.worker_classes[load.class];
        let parts = load.parts.iter().map(|(operator, share, _)| {
            let of = &assembly.problem.operators[*operator];
            let variant = &of.variants[planned.solution.variants[*operator]].id;
            match case.models.contains_key(&of.id) {
                true => format!("{} with {variant} {:.0} %", of.id, 100.0 * share),
                false => format!("{} {:.0} %", of.id, 100.0 * share),
            }
        });
        let parts: Vec<String> = parts.collect();
        let own = load.utilization / assembly.slowdown(load.class);
        let others = match assembly.busy.get(load.class) {
            Some(busy) if *busy > 0.0 => format!(", {:.0} % is used by others", 100.0 * busy),
            _ => String::new(),
        };
        lines.push(format!(
            "{name} ({}, {}): {}; busy {:.0} %{others}",
            class.worker_type,
            dollars(class.price),
            parts.join(", "),
            100.0 * own
        ));
    }
    lines.extend(
        expectation
            .contradictions()
            .iter()
            .map(|one| format!("the simulation of this plan contradicts its guarantee: {}", one.text())),
    );
    lines.extend(notes.iter().cloned());
    lines
}

/// Explains why there is no plan: levels to relax, and usage of the workers by other runs.
pub(super) fn refused(
    case: &Case,
    assembly: &Assembly,
    outcome: &Outcome,
    taken: &BTreeMap<String, Taken>,
    notes: &[String],
) -> String {
    let mut text = match outcome.status {
        Status::TimeLimited => {
            "no plan found within the time limit of the search (`--time-limit`)".to_owned()
        }
        Status::Infeasible if outcome.bound != Some(f64::INFINITY) => {
            "no plan found for the free capacity of the workers, which is no proof that there is none"
                .to_owned()
        }
        _ => "no plan keeps the service levels on the free capacity of the workers".to_owned(),
    };
    let mut part = |head: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text.push_str(&format!("\n{head}\n  {}", lines.join("\n  ")));
        }
    };
    let limits = SearchLimits {
        wall_seconds: Some(
            case.limits.wall_seconds.map_or(QUESTION_SECONDS, |wall| wall.min(QUESTION_SECONDS)),
        ),
        ..case.limits
    };
    let give_way = match outcome.status {
        // Each of many questions takes about as long as this search, up to a limit.
        Status::Infeasible if outcome.seconds < QUESTION_SECONDS => {
            relaxations(&assembly.problem, &limits).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    part(
        "each of these changes alone makes a plan possible:",
        give_way.iter().map(|one| gives_way(case, assembly, one)).collect(),
    );
    part(
        "other runs have:",
        taken.iter().map(|(worker, taken)| format!("{worker}: {}", taken.text())).collect(),
    );
    // Shared workers are listed above.
    part("noted:", notes.iter().filter(|note| !note.contains(" is shared and costs ")).cloned().collect());
    text
}

fn gives_way(case: &Case, assembly: &Assembly, one: &Relaxation) -> String {
    let Relaxed::Workers(missing) = &one.relaxed else { return relaxation::in_words(case, assembly, one) };
    let problem = &assembly.problem;
    let all = missing.iter().map(|missing| {
        let class = &problem.worker_classes[missing.class];
        format!(
            "{} more `{}` in {}",
            missing.count, class.worker_type, problem.locations[class.location].name
        )
    });
    format!("workers: {} that join", all.collect::<Vec<_>>().join(", "))
}
