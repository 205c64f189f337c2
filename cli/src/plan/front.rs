//! `tidemill plan --pareto`: the best plans for all accuracies.
use super::dollars;
use super::steps::{self, Curve};
use crate::arguments::{PlanArguments, PlanOutput};
use crate::exit::Exit;
use crate::table::{Side, Table};
use serde_json::{Value, json};
use std::io::Write;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::output_file::OutputFile;
use tidemill_app::planning::{Case, failed};
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::explain::{FrontPoint, accuracy_front};
use tidemill_optimizer::problem::Problem;

/// Plans for every accuracy, and prints the non-dominated ones.
pub(super) fn front(arguments: &PlanArguments, case: &Case, assembly: &Assembly) -> anyhow::Result<Exit> {
    let problem = &assembly.problem;
    let svg = arguments.svg.as_deref().map(OutputFile::create).transpose()?;
    let planner = arguments.planner.planner()?;
    let points = accuracy_front(problem, planner.as_ref(), &case.limits).map_err(failed)?;
    if points.is_empty() {
        let message = "no plan of known accuracy: nothing to compare with cost";
        return Err(Failure::new(Kind::No, message)
            .with_help("`tidemill plan` without `--pareto` prints which levels to relax")
            .into());
    }
    if let Some(file) = svg {
        let heading = format!("{}: cost against accuracy", case.workflow.name.value);
        let points = points.iter().map(|point| (point.accuracy, point.cost)).collect();
        let text = steps::drawn(&heading, None, &[Curve { name: String::new(), points }]);
        file.write(|out| out.write_all(text.as_bytes()))?;
    }
    let mut out = crate::answer::out();
    match arguments.output {
        PlanOutput::Json => {
            serde_json::to_writer_pretty(&mut out, &document(case, problem, &points))?;
            writeln!(out)?;
        }
        PlanOutput::Yaml => {
            out.write_all(tidemill_spec::yaml::print(&document(case, problem, &points))?.as_bytes())?;
        }
        PlanOutput::Table => {
            let mut table =
                Table::new(&[("accuracy", Side::Right), ("cost", Side::Right), ("variants", Side::Left)]);
            for point in &points {
                let names = variants(case, problem, point);
                let names = names.values().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
                table.row([format!("{:.2} %", point.accuracy), dollars(point.cost), names]);
            }
            table.write(&mut out)?;
        }
    }
    out.flush()?;
    Ok(Exit::Success)
}

fn document(case: &Case, problem: &Problem, points: &[FrontPoint]) -> Value {
    let all: Vec<Value> = points
        .iter()
        .map(|point| json!({"cost": point.cost, "accuracy": point.accuracy, "variants": variants(case, problem, point)}))
        .collect();
    json!({"version": 1, "front": all})
}

fn variants(case: &Case, problem: &Problem, point: &FrontPoint) -> serde_json::Map<String, Value> {
    let chosen = problem.operators.iter().zip(&point.solution.variants);
    let with_models = chosen.filter(|(operator, _)| case.models.contains_key(&operator.id));
    with_models.map(|(operator, &m)| (operator.id.clone(), json!(operator.variants[m].id))).collect()
}
