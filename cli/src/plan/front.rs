//! `tidemill plan --pareto`: the best plans for all accuracies.
use super::dollars;
use crate::arguments::{PlanArguments, PlanOutput};
use crate::exit::{Exit, Failure};
use crate::markup::{Attribute, Markup, Short};
use crate::output_file::OutputFile;
use crate::planning::{Case, failed, planner};
use crate::table::{Side, Table};
use serde_json::{Value, json};
use std::io::Write;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::explain::{FrontPoint, accuracy_front};
use tidemill_optimizer::problem::Problem;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
/// Room around the plot: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 20.0, 34.0, 46.0);

/// Plans for every accuracy, and tells those that nothing beats in both.
pub(super) fn front(arguments: &PlanArguments, case: &Case, assembly: &Assembly) -> anyhow::Result<Exit> {
    let problem = &assembly.problem;
    let svg = arguments.svg.as_deref().map(OutputFile::create).transpose()?;
    let planner = planner(arguments.planner)?;
    let points = accuracy_front(problem, planner.as_ref(), &case.limits).map_err(failed)?;
    if points.is_empty() {
        let message = "no plan of known accuracy: there is nothing to weigh against cost";
        return Err(Failure::new(Exit::No, message)
            .with_help("`tidemill plan` without `--pareto` says what has to give way")
            .into());
    }
    if let Some(file) = svg {
        let text = drawn(&case.workflow.name.value, &points);
        file.write(|out| out.write_all(text.as_bytes()))?;
    }
    let mut out = crate::answer::out();
    match arguments.output {
        PlanOutput::Json => {
            let all: Vec<Value> = points
                .iter()
                .map(|point| json!({"cost": point.cost, "accuracy": point.accuracy, "variants": variants(case, problem, point)}))
                .collect();
            serde_json::to_writer_pretty(&mut out, &json!({"version": 1, "front": all}))?;
            writeln!(out)?;
        }
        PlanOutput::Table | PlanOutput::Yaml => {
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

fn variants(case: &Case, problem: &Problem, point: &FrontPoint) -> serde_json::Map<String, Value> {
    let chosen = problem.operators.iter().zip(&point.solution.variants);
    let with_models = chosen.filter(|(operator, _)| case.models.contains_key(&operator.id));
    with_models.map(|(operator, &m)| (operator.id.clone(), json!(operator.variants[m].id))).collect()
}

/// Steps: up to a point's accuracy its plan is the cheapest.
fn drawn(title: &str, points: &[FrontPoint]) -> String {
    let (left, right, top, bottom) = MARGIN;
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let pad = ((high - low) * 0.08).max(high.abs() * 0.01).max(1e-6);
        (low - pad, high + pad)
    };
    let across = range(&mut points.iter().map(|point| point.accuracy));
    let (_, most) = range(&mut points.iter().map(|point| point.cost));
    let x = |accuracy: f64| left + (accuracy - across.0) / (across.1 - across.0) * (WIDTH - left - right);
    let y = |cost: f64| HEIGHT - bottom - cost / most * (HEIGHT - top - bottom);
    let mut markup = Markup::new();
    let view = format!("0 0 {WIDTH} {HEIGHT}");
    let attributes: [Attribute<'_>; 5] = [
        ("xmlns", &"http://www.w3.org/2000/svg"),
        ("viewBox", &view),
        ("font-family", &"system-ui, sans-serif"),
        ("font-size", &"12"),
        ("fill", &"#1f2937"),
    ];
    markup.element("svg", &attributes, |svg| {
        svg.empty("rect", &[("width", &WIDTH), ("height", &HEIGHT), ("fill", &"#ffffff")]);
        svg.leaf(
            "text",
            &[("x", &left), ("y", &20.0), ("font-weight", &"600")],
            &format!("{title}: cost against accuracy"),
        );
        let mut line = |from: (f64, f64), to: (f64, f64), colour: &str| {
            let (x1, y1, x2, y2) = (Short(from.0), Short(from.1), Short(to.0), Short(to.1));
            svg.empty("line", &[("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2), ("stroke", &colour)]);
        };
        line((left, HEIGHT - bottom), (WIDTH - right, HEIGHT - bottom), "#9ca3af");
        line((left, top), (left, HEIGHT - bottom), "#9ca3af");
        for pair in points.windows(2) {
            line((x(pair[0].accuracy), y(pair[0].cost)), (x(pair[0].accuracy), y(pair[1].cost)), "#2563eb");
            line((x(pair[0].accuracy), y(pair[1].cost)), (x(pair[1].accuracy), y(pair[1].cost)), "#2563eb");
        }
        for point in points {
            let (cx, cy) = (Short(x(point.accuracy)), Short(y(point.cost)));
            svg.empty("circle", &[("cx", &cx), ("cy", &cy), ("r", &4.0), ("fill", &"#2563eb")]);
        }
        for (value, anchor) in
            points.first().into_iter().map(|p| (p, "start")).chain(points.last().map(|p| (p, "end")))
        {
            let at: [Attribute<'_>; 3] = [
                ("x", &Short(x(value.accuracy))),
                ("y", &(HEIGHT - bottom + 18.0)),
                ("text-anchor", &anchor),
            ];
            svg.leaf("text", &at, &format!("{:.2} %", value.accuracy));
            let at: [Attribute<'_>; 3] =
                [("x", &(left - 6.0)), ("y", &Short(y(value.cost) + 4.0)), ("text-anchor", &"end")];
            svg.leaf("text", &at, &format!("{:.3}", value.cost));
        }
        let middle = (left + WIDTH - right) / 2.0;
        svg.leaf(
            "text",
            &[("x", &middle), ("y", &(HEIGHT - 8.0)), ("text-anchor", &"middle")],
            "accuracy in percent",
        );
        svg.leaf("text", &[("x", &8.0), ("y", &(top - 2.0))], "$/h");
    });
    markup.finish()
}
