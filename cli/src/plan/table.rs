//! A plan for people.
use super::relaxed::is_proven;
use super::{Answer, Planned, dollars, engine, predicted_times};
use crate::table::{Side, Table, paragraph};
use std::io::{self, Write};
use tidemill_app::expectation::{Contradiction, Expectation};
use tidemill_app::figures::{bytes, milliseconds};
use tidemill_app::weak_figures::{AccuracyInterval, weak_figures, weak_lines};
use tidemill_optimizer::problem::{Problem, Sends};
use tidemill_optimizer::solution::Status;
use tidemill_optimizer::summary::PathLatency;
use tidemill_spec::plan::LatencyBasis;

/// Route classes that are listed.
const CLASSES_SHOWN: usize = 12;
/// Text for the slack if the simulation contradicts the level.
const DENIED: &str = "none: contradicted by the simulation";

/// Number of workers, or places of an operator, with equal lines above which they are merged.
const ALIKE_SHOWN: usize = 40;

/// Merges names with equal values: the first stands for all, with the number of others.
fn gathered<T: PartialEq>(all: Vec<(String, T)>) -> Vec<(String, T)> {
    let alike = |said: &T| all.iter().filter(|(_, other)| other == said).count();
    let counts: Vec<usize> = all.iter().map(|(_, said)| alike(said)).collect();
    let mut shown: Vec<(String, T)> = Vec::new();
    for ((name, said), count) in all.into_iter().zip(counts) {
        if count <= ALIKE_SHOWN {
            shown.push((name, said));
        } else if shown.iter().all(|(_, other)| *other != said) {
            shown.push((format!("{name} and {} more, each", count - 1), said));
        }
    }
    shown
}

/// Writes the whole answer.
///
/// # Errors
/// Errors of `out`.
pub(super) fn write(answer: &Answer<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Some(planned) = answer.planned else { return without_plan(answer, out) };
    let problem = &answer.assembly.problem;
    let cost = &planned.summary.cost;
    writeln!(
        out,
        "{} on {}: {} at {}, by {}\n",
        answer.case.workflow.name,
        answer.case.infrastructure.name,
        dollars(cost.total()),
        rate(answer.assembly.rate),
        answer.outcome.planner
    )?;
    variants(answer, planned, out)?;
    workers(answer, planned, out)?;
    classes(planned, out)?;
    costs(problem, planned, out)?;
    latencies(answer, planned, out)?;
    expected(answer, out)?;
    levels(answer, planned, out)?;
    survival(answer, planned, out)?;
    predictions(answer, planned, out)?;
    proof(answer, out)?;
    answer.what_if.map_or(Ok(()), |what_if| what_if.write(out))
}

/// States what a plan that survives losses does not cover.
fn survival(answer: &Answer<'_>, planned: &Planned, out: &mut dyn Write) -> io::Result<()> {
    let losses = answer.assembly.problem.limits.survive;
    if losses == 0 {
        return Ok(());
    }
    let workflow = &answer.case.workflow;
    let sinks = workflow.sinks.iter().map(|sink| &sink.id.value);
    let places = sinks.filter_map(|sink| {
        let stage = planned.plan.stages.iter().find(|stage| stage.operator == *sink)?;
        Some(format!("`{sink}` on {}", stage.worker))
    });
    let sources: Vec<String> = workflow.sources.iter().map(|source| format!("`{}`", source.id)).collect();
    let restarting: Vec<String> = answer
        .assembly
        .problem
        .operators
        .iter()
        .filter(|operator| operator.survive < losses && !operator.weightless)
        .map(|operator| format!("`{}`", operator.id))
        .collect();
    let restarting = match restarting.is_empty() {
        true => String::new(),
        false => format!(
            "; where they are lost, these restart from the last checkpoint: {}",
            restarting.join(", ")
        ),
    };
    paragraph(
        out,
        &format!(
            "after the loss of any {losses} of {}, the others keep the levels{restarting}. A sink starts again on another worker, and files that it wrote stay where they are ({}). The machine of a source ({}) takes its own records with it: the levels hold for what remains",
            workers_text(planned.workers.len()),
            places.collect::<Vec<_>>().join(", "),
            sources.join(", ")
        ),
    )?;
    writeln!(out)
}

fn workers_text(count: usize) -> String {
    format!("{count} worker{}", if count == 1 { "" } else { "s" })
}

/// Lists predicted and weak times used by a plan.
fn predictions(answer: &Answer<'_>, planned: &Planned, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for one in predicted_times(answer.case, &planned.plan) {
        let within = one.within.map_or_else(String::new, |factor| format!(" (within a factor of {factor})"));
        let what = format!("{} on {}", one.variant.unwrap_or(one.operator), one.worker_type);
        match lines.iter_mut().find(|(known, _)| *known == within) {
            Some((_, all)) => all.push(what),
            None => lines.push((within, vec![what])),
        }
    }
    for (within, what) in &lines {
        paragraph(out, &format!("predicted, not measured{within}: times of {}", what.join(", ")))?;
    }
    let weak = weak_lines(&weak_figures(answer.case, &planned.plan));
    for line in &weak {
        paragraph(out, line)?;
    }
    if lines.is_empty() && weak.is_empty() { Ok(()) } else { writeln!(out) }
}

/// `40/s`.
pub(crate) fn rate(value: f64) -> String {
    format!("{}/s", trimmed(value, 3))
}

/// Formats with at most `places` decimals.
pub(super) fn trimmed(value: f64, places: usize) -> String {
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// `12.5 %`.
pub(super) fn percent(part: f64) -> String {
    format!("{} %", trimmed(part * 100.0, 1))
}

fn variants(answer: &Answer<'_>, planned: &Planned, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("operator", Side::Left),
        ("variant", Side::Left),
        ("records", Side::Right),
        ("with it", Side::Left),
        ("on", Side::Left),
    ]);
    let problem = &*answer.assembly.problem.at(&planned.solution.variants);
    for (index, operator) in problem.operators.iter().enumerate() {
        let places = planned.solution.hostings.iter().filter(|hosting| hosting.operator == index);
        let places = places.map(|hosting| {
            let place = match hosting.worker {
                Some(worker) => planned.workers[worker].clone(),
                None => problem.locations[hosting.location].name.clone(),
            };
            let place = match hosting.device {
                Some(device) => {
                    let remote = problem.remote_of(&planned.solution, hosting);
                    let rows = remote.is_some_and(|remote| remote.sends == Sends::Rows);
                    let what = if rows { "rows to" } else { "model on" };
                    format!("{place} ({what} {})", planned.workers[device.worker])
                }
                None => place,
            };
            let class = hosting.worker.map(|worker| planned.summary.workers[worker].class);
            let share = if hosting.share > 1.0 - 1e-9 {
                String::new()
            } else {
                format!(" {}", percent(hosting.share))
            };
            (place, (class, share))
        });
        let places =
            gathered(places.collect()).into_iter().map(|(name, (_, share))| format!("{name}{share}"));
        let with_model = answer.case.models.contains_key(&operator.id);
        let variant = &operator.variants[planned.solution.variants[index]].id;
        table.row([
            operator.id.clone(),
            if with_model { variant.clone() } else { "-".to_owned() },
            rate(operator.rate),
            operator.fused.join(", "),
            places.collect::<Vec<_>>().join(", "),
        ]);
    }
    table.write(out)?;
    writeln!(out)
}

fn workers(answer: &Answer<'_>, planned: &Planned, out: &mut dyn Write) -> io::Result<()> {
    let problem = &answer.assembly.problem;
    let mut table = Table::new(&[
        ("worker", Side::Left),
        ("type", Side::Left),
        ("price", Side::Right),
        ("busy", Side::Right),
        ("with", Side::Left),
    ]);
    let all = planned.workers.iter().zip(&planned.summary.workers).map(|(name, load)| {
        let parts = load
            .parts
            .iter()
            .map(|(operator, _, part)| format!("{} {}", problem.operators[*operator].id, percent(*part)));
        let loads = (percent(load.utilization), parts.collect::<Vec<_>>().join(", "));
        (name.clone(), (load.class, loads))
    });
    for (name, (class, (busy, parts))) in gathered(all.collect()) {
        let class = &problem.worker_classes[class];
        table.row([name, class.worker_type.clone(), dollars(class.price), busy, parts]);
    }
    table.write(out)?;
    writeln!(out)
}

fn classes(planned: &Planned, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[("class", Side::Right), ("keys", Side::Right), ("route", Side::Left)]);
    let all = &planned.plan.classes;
    for class in all.iter().take(CLASSES_SHOWN) {
        // Only differences between the classes are informative.
        let stages = planned.plan.stages.iter().filter(|stage| {
            let here = class.route.get(&stage.operator) == Some(&stage.id);
            here && (all.len() == 1 || stage.share < 1.0 - 1e-9)
        });
        let stages: Vec<&str> = stages.map(|stage| stage.id.as_str()).collect();
        table.row([class.id.to_string(), percent(class.share), stages.join(", ")]);
    }
    table.write(out)?;
    if all.len() > CLASSES_SHOWN {
        writeln!(out, "and {} classes more, all in the plan file", all.len() - CLASSES_SHOWN)?;
    }
    writeln!(out)
}

fn costs(problem: &Problem, planned: &Planned, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[("cost", Side::Left), ("$/h", Side::Right), ("for", Side::Left)]);
    let cost = &planned.summary.cost;
    let count = planned.workers.len();
    let row = |name: &str, value: f64, what: String| [name.to_owned(), format!("{value:.4}"), what];
    table.row(row("compute", cost.compute, workers_text(count)));
    let ways =
        planned.summary.traffic.iter().filter(|traffic| traffic.bytes_per_second > 0.0).map(|traffic| {
            let full = traffic
                .utilization
                .map(|part| format!(", {} of the link", percent(part)))
                .unwrap_or_default();
            format!(
                "{} -> {} {}/s{full}",
                problem.locations[traffic.from].name,
                problem.locations[traffic.to].name,
                bytes(traffic.bytes_per_second.round() as u64)
            )
        });
    table.row(row("network", cost.network, ways.collect::<Vec<_>>().join("; ")));
    table.row(row("total", cost.total(), String::new()));
    table.write(out)?;
    writeln!(out)
}

fn latencies(answer: &Answer<'_>, planned: &Planned, out: &mut dyn Write) -> io::Result<()> {
    let problem = &answer.assembly.problem;
    let mut table = Table::new(&[
        ("path", Side::Left),
        ("service", Side::Right),
        ("waiting", Side::Right),
        ("batching", Side::Right),
        ("transfer", Side::Right),
        ("ticks", Side::Right),
        ("publish", Side::Right),
        ("sum", Side::Right),
    ]);
    for path in &planned.summary.paths {
        let time = |seconds: f64| milliseconds(seconds * 1e3);
        let waiting = if path.is_bounded { time(path.waiting) } else { "not bounded".to_owned() };
        let sum =
            if path.is_bounded { time(path.total()) } else { format!("{} + waiting", time(path.total())) };
        table.row([
            path_name(problem, path),
            time(path.service),
            waiting,
            time(path.batching),
            time(path.transfer),
            time(path.ticks),
            time(path.publication),
            sum,
        ]);
    }
    table.write(out)?;
    if planned.summary.paths.iter().any(|path| path.is_bounded) && !problem.limits.latency.is_empty() {
        let room = match answer.basis() {
            LatencyBasis::Guaranteed => "; room is the level less the sum of these bounds",
            LatencyBasis::Expected => "",
        };
        let text =
            "waiting is a bound that the workers keep at the percentile of the level, not an expectation";
        paragraph(out, &format!("{text}{room}"))?;
    }
    writeln!(out)
}

/// Writes the results of a short simulation, beside the bounds.
fn expected(answer: &Answer<'_>, out: &mut dyn Write) -> io::Result<()> {
    let guarantee = match answer.basis().is_guaranteed() {
        true => "guarantee: the sums above",
        false => "guarantee: none",
    };
    match answer.expectation {
        None => return Ok(()),
        Some(Expectation::Known {
            sink, latency, seconds, utilization, contradictions, with_engine, ..
        }) => {
            // A median between two peaks is not informative.
            let (from, to) = latency.middle;
            let between = match to > 1.5 * from {
                true => format!(" (between {} and {})", milliseconds(from * 1e3), milliseconds(to * 1e3)),
                false => String::new(),
            };
            let busiest = utilization.iter().max_by(|a, b| a.1.total_cmp(b.1));
            let busy = busiest
                .map_or(String::new(), |(worker, part)| format!(", {worker} {:.0} % busy", 100.0 * part));
            let engine = match with_engine {
                true => "",
                false => ", without the engine's own time, which the profile lacks",
            };
            let text = format!(
                "{guarantee}; expectation: mean {}, p50 {}{between}, p90 {}, p99 {} at {sink}{busy} ({} simulated{engine})",
                milliseconds(latency.mean * 1e3),
                milliseconds(latency.p50 * 1e3),
                milliseconds(latency.p90 * 1e3),
                milliseconds(latency.p99 * 1e3),
                tidemill_app::figures::seconds(*seconds)
            );
            paragraph(out, &text)?;
            for one in contradictions {
                paragraph(out, &format!("the simulation contradicts the guarantee: {}", one.text()))?;
            }
        }
        Some(Expectation::Unknown(why)) => {
            paragraph(out, &format!("{guarantee}; expectation: none, {why}"))?;
        }
    }
    writeln!(out)
}

/// `images > features > answer`.
pub(super) fn path_name(problem: &Problem, path: &PathLatency) -> String {
    let operators = path.operators.iter().map(|operator| problem.operators[*operator].id.as_str());
    let all: Vec<&str> = std::iter::once(problem.sources[path.source].id.as_str()).chain(operators).collect();
    all.join(" > ")
}

fn levels(answer: &Answer<'_>, planned: &Planned, out: &mut dyn Write) -> io::Result<()> {
    let problem = &answer.assembly.problem;
    let mut table = Table::new(&[
        ("level", Side::Left),
        ("wanted", Side::Right),
        ("plan", Side::Right),
        ("room", Side::Left),
    ]);
    let most = planned.summary.headroom.map(|factor| answer.assembly.rate * factor);
    let wanted = answer.assembly.rate;
    let denied = answer.denied();
    let is_latency_denied = denied.iter().any(|one| matches!(one, Contradiction::Latency { .. }));
    let is_rate_denied = denied.iter().any(|one| !matches!(one, Contradiction::Latency { .. }));
    table.row([
        "rate".to_owned(),
        rate(wanted),
        most.map_or_else(
            || "any".to_owned(),
            |most| {
                format!(
                    "up to {}{}",
                    rate(most),
                    if problem.limits.survive > 0 { " before a loss" } else { "" }
                )
            },
        ),
        match is_rate_denied {
            true => DENIED.to_owned(),
            false => most.map_or_else(String::new, |most| rate((most - wanted).max(0.0))),
        },
    ]);
    let percents = |value: f64| format!("{} %", trimmed(value, 2));
    let accuracy = planned.summary.accuracy;
    if problem.limits.accuracy.is_some() || accuracy.is_some() {
        let room = problem
            .limits
            .accuracy
            .zip(accuracy)
            .map(|(limit, has)| format!("{} points", trimmed(has - limit, 2)));
        table.row([
            "accuracy".to_owned(),
            problem.limits.accuracy.map_or_else(|| "-".to_owned(), percents),
            accuracy.map_or_else(
                || "not known".to_owned(),
                |accuracy| {
                    let interval = AccuracyInterval::of(answer.case, &planned.plan);
                    percents(accuracy) + &interval.map(|interval| interval.text()).unwrap_or_default()
                },
            ),
            room.unwrap_or_default(),
        ]);
    }
    if problem.limits.survive > 0 {
        let (losses, fallbacks) = (problem.limits.survive, planned.plan.fallbacks.len());
        table.row([
            "survival".to_owned(),
            format!("{losses} lost at a time"),
            format!("{fallbacks} of {fallbacks} losses"),
            format!("{} after each", rate(wanted)),
        ]);
    }
    let expected = answer.expectation.and_then(Expectation::slowest_level);
    for limit in &problem.limits.latency {
        let wanted = format!("p{} below {}", limit.percentile, milliseconds(limit.seconds * 1e3));
        if let (LatencyBasis::Expected, Some(expected)) = (answer.basis(), expected) {
            table.row([
                "latency".to_owned(),
                wanted,
                format!("{} expected", milliseconds(expected.seconds * 1e3)),
                format!("{}, not guaranteed", milliseconds((limit.seconds - expected.seconds) * 1e3)),
            ]);
            continue;
        }
        let slowest = planned.summary.slowest().map_or(0.0, PathLatency::total);
        table.row([
            "latency".to_owned(),
            wanted,
            milliseconds(slowest * 1e3),
            match is_latency_denied {
                true => DENIED.to_owned(),
                false => milliseconds((limit.seconds - slowest) * 1e3),
            },
        ]);
    }
    table.write(out)?;
    writeln!(out)
}

fn proof(answer: &Answer<'_>, out: &mut dyn Write) -> io::Result<()> {
    let outcome = answer.outcome;
    if !answer.denied().is_empty() {
        paragraph(
            out,
            "by the planner's bounds, which the simulation contradicts: plan with more room \
             (`--max-utilization`, `--slo`), or measure longer (`tidemill profile`)",
        )?;
    }
    if let Some(simulated) = answer.search {
        let text = format!(
            "latency is expected, not guaranteed: {} simulated, this one with several seeds",
            plans(simulated.plans)
        );
        paragraph(out, &text)?;
    }
    let engine = engine(outcome).map(|engine| format!(", {engine}")).unwrap_or_default();
    let text = match (outcome.status, outcome.bound, outcome.gap) {
        (Status::Optimal, Some(bound), gap) => {
            let gap = gap.filter(|gap| *gap > 1e-5).map_or_else(|| "0 %".to_owned(), percent);
            format!("optimal: no plan costs less than {} (gap {gap}{engine})", dollars(bound))
        }
        (_, Some(bound), Some(gap)) if answer.search.is_some() => format!(
            "not proven to be the cheapest: without a level on latency no plan costs less than {} (gap {}{engine})",
            dollars(bound),
            percent(gap)
        ),
        (Status::TimeLimited, Some(bound), Some(gap)) => format!(
            "time limit: no plan costs less than {} (gap {}{engine}); a longer `--time-limit` may help",
            dollars(bound),
            percent(gap)
        ),
        (_, Some(bound), Some(gap)) => {
            format!("best found: no plan costs less than {} (gap {}{engine})", dollars(bound), percent(gap))
        }
        _ => "best found: it keeps all levels, with no proof about its cost (`--planner exact` gives one)"
            .to_owned(),
    };
    paragraph(out, &text)
}

/// `1 plan`.
fn plans(count: usize) -> String {
    format!("{count} plan{}", if count == 1 { "" } else { "s" })
}

/// Writes the answer without a plan.
fn without_plan(answer: &Answer<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (workflow, infrastructure) = (&answer.case.workflow.name, &answer.case.infrastructure.name);
    if let Some(simulated) = answer.search.filter(|simulated| simulated.plans > 0) {
        let all = plans(simulated.plans);
        let text = format!(
            "{workflow} on {infrastructure}: found no plan that keeps all service levels in a simulation"
        );
        paragraph(out, &text)?;
        let nearest = simulated.nearest.map(|nearest| {
            let seconds = milliseconds(nearest.seconds * 1e3);
            format!("; the nearest has p{} {seconds} and costs {}", nearest.percentile, dollars(nearest.cost))
        });
        return paragraph(out, &format!("{all} simulated{}", nearest.unwrap_or_default()));
    }
    let in_its_way = |out: &mut dyn Write| match answer.obstacle() {
        Some(obstacle) => {
            paragraph(out, &format!("obstacle: {}", obstacle.text(&answer.assembly.problem)))?;
            writeln!(out)
        }
        None => Ok(()),
    };
    let Some(give_way) = answer.give_way else {
        let text = match answer.outcome.status {
            Status::TimeLimited => format!(
                "{workflow} on {infrastructure}: no plan found within the time limit; a longer `--time-limit` may help"
            ),
            _ => format!(
                "{workflow} on {infrastructure}: {} found no plan; `--planner exact` may find one, or prove that there is none",
                answer.outcome.planner
            ),
        };
        paragraph(out, &text)?;
        return in_its_way(out);
    };
    let found = match is_proven(answer.outcome) {
        true => "infeasible, no plan keeps all service levels",
        false => "no plan found, which is no proof that there is none",
    };
    writeln!(out, "{workflow} on {infrastructure}: {found}\n")?;
    in_its_way(out)?;
    give_way.write(answer.case, answer.assembly, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_are_alike_are_one_line() {
        let all = |count: usize| (0..count).map(|n| (format!("w-{n}"), if n == 1 { 2 } else { 1 })).collect();
        assert_eq!(gathered::<i32>(all(ALIKE_SHOWN + 1)).len(), ALIKE_SHOWN + 1);
        let expected = [("w-0 and 40 more, each".to_owned(), 1), ("w-1".to_owned(), 2)];
        assert_eq!(gathered::<i32>(all(ALIKE_SHOWN + 2)), expected);
    }
}
