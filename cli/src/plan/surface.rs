//! `tidemill plan --pareto cost,accuracy,latency`: the plans that no other dominates in all three.
mod drawing;

use super::{dollars, status_word};
use crate::arguments::{PlanArguments, PlanOutput};
use crate::exit::Exit;
use crate::status_line::StatusLine;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::milliseconds;
use tidemill_app::output_file::OutputFile;
use tidemill_app::planning::{Case, failed, tell};
use tidemill_optimizer::assemble::Level;
use tidemill_optimizer::explain::{Surface, SurfacePoint, latency_front};
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::Status;
use tidemill_spec::units::{Percentile, TimeSpan};
use tidemill_spec::workflow::LatencySlo;

/// Ratio of a limit on latency to the largest bound under the previous one.
const RATIO: f64 = 0.8;
/// The bounded percentile without a service level.
const PERCENTILE: Percentile = Percentile(99.0);
/// An infinite limit: only its percentile matters.
const NO_LIMIT: TimeSpan = TimeSpan(u64::MAX / 2);

/// Plans for all accuracies and latencies, and prints the non-dominated ones.
pub(super) fn surface(
    arguments: &PlanArguments,
    case: &mut Case,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    let svg = arguments.svg.as_deref().map(OutputFile::create).transpose()?;
    // Figures needed only for latency are left out of a problem without a limit on it.
    let asked = case.options.latency.as_ref().or(case.workflow.slo.latency.as_ref());
    let percentile = asked.map_or(PERCENTILE, |slo| slo.percentile.value);
    case.options.latency = Some(LatencySlo { percentile: percentile.into(), below: NO_LIMIT.into() });
    case.options.without.remove(&Level::Latency);
    // Latency is an objective too, so checkpoints should delay readers as little as possible.
    case.options.checkpoint_every = Some(1);
    let assembly = case.assemble()?;
    tell(&assembly.notes, terminal);
    let planner = arguments.planner.planner()?;
    let mut line = StatusLine::new(*terminal);
    let found =
        latency_front(&assembly.problem, planner.as_ref(), &case.limits, RATIO, &mut |plans, limit| {
            line.show(|_| format!("{plans} plans, now within {}", limit_text(limit)));
        });
    line.finish();
    let surface = found.map_err(failed)?;
    if surface.points.is_empty() {
        let message = "no plan of known accuracy: nothing to compare with cost and latency";
        return Err(Failure::new(Kind::No, message)
            .with_help("`tidemill plan` without `--pareto` prints which levels to relax")
            .into());
    }
    if let Some(file) = svg {
        let text = drawing::drawn(&case.workflow.name.value, &surface, percentile.0);
        file.write(|out| out.write_all(text.as_bytes()))?;
    }
    let mut out = crate::answer::out();
    match arguments.output {
        PlanOutput::Json => {
            let document = document(case, &assembly.problem, &surface, percentile.0);
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
        PlanOutput::Yaml => {
            let document = document(case, &assembly.problem, &surface, percentile.0);
            out.write_all(tidemill_spec::yaml::print(&document)?.as_bytes())?;
        }
        PlanOutput::Table => {
            write_table(case, &assembly.problem, &surface, percentile.0, &mut out)?;
        }
    }
    out.flush()?;
    Ok(Exit::Success)
}

/// The first limit is none.
fn limit_text(limit: f64) -> String {
    if limit >= 3600.0 { "any time".to_owned() } else { milliseconds(limit * 1e3) }
}

fn variants(case: &Case, problem: &Problem, point: &SurfacePoint) -> Map<String, Value> {
    let chosen = problem.operators.iter().zip(&point.solution.variants);
    let with_models = chosen.filter(|(operator, _)| case.models.contains_key(&operator.id));
    with_models.map(|(operator, &m)| (operator.id.clone(), json!(operator.variants[m].id))).collect()
}

/// Describes the proof of a point.
fn proof(point: &SurfacePoint) -> String {
    let least = |gap: f64| dollars(point.cost * (1.0 - gap));
    match (point.status, point.gap) {
        (Status::Optimal, _) => "cheapest".to_owned(),
        (Status::TimeLimited, Some(gap)) => format!("best found, none below {}; time limit", least(gap)),
        (_, Some(gap)) => format!("best found, none below {}", least(gap)),
        (_, None) => "nothing proven".to_owned(),
    }
}

fn write_table(
    case: &Case,
    problem: &Problem,
    surface: &Surface,
    percentile: f64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut table = Table::new(&[
        ("accuracy", Side::Right),
        ("bound", Side::Right),
        ("cost", Side::Right),
        ("proof", Side::Left),
        ("variants", Side::Left),
    ]);
    for point in &surface.points {
        let names = variants(case, problem, point);
        table.row([
            format!("{:.2} %", point.accuracy),
            milliseconds(point.latency * 1e3),
            dollars(point.cost),
            proof(point),
            names.values().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        ]);
    }
    table.write(out)?;
    let limits: Vec<String> = surface.limits.iter().map(|limit| limit_text(*limit)).collect();
    writeln!(
        out,
        "\nbound: p{percentile} of the latency, at most; {} plans within {}",
        surface.plans,
        limits.join(", ")
    )?;
    match surface.refused {
        Some((limit, true)) => writeln!(out, "within {}: proven that there is no plan", limit_text(limit)),
        Some((limit, false)) => {
            writeln!(out, "within {}: none found, which is no proof that there is none", limit_text(limit))
        }
        None => Ok(()),
    }
}

fn document(case: &Case, problem: &Problem, surface: &Surface, percentile: f64) -> Value {
    let milliseconds = |seconds: f64| (seconds < 3600.0).then_some(seconds * 1e3);
    let points = surface.points.iter().map(|point| {
        json!({
            "accuracy": point.accuracy,
            "latency_bound_ms": point.latency * 1e3,
            "cost": point.cost,
            "status": status_word(point.status),
            "gap": point.gap,
            "planned_within_ms": milliseconds(point.limit),
            "variants": variants(case, problem, point),
        })
    });
    json!({
        "version": 1,
        "percentile": percentile,
        "front": points.collect::<Vec<_>>(),
        "limits_ms": surface.limits.iter().map(|limit| milliseconds(*limit)).collect::<Vec<_>>(),
        "plans": surface.plans,
        "refused": surface.refused.map(|(limit, proven)| json!({"limit_ms": milliseconds(limit), "proven": proven})),
    })
}
