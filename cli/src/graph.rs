//! `tidemill graph`: draws a workflow or a plan.
use crate::arguments::{GraphArguments, GraphFormat};
use crate::drawing::{self, picture};
use crate::exit::Exit;
use crate::outline;
use std::io::Write;
use tidemill_app::choice;
use tidemill_app::preparation::{Scope, check, load_plan};
use tidemill_spec::workflow::Workflow;

/// Prints a drawing.
pub(crate) fn graph(arguments: &GraphArguments) -> anyhow::Result<Exit> {
    let workflow = Workflow::load(&arguments.workflow)?;
    tidemill_inference::backend::check_workflow(&workflow).into_result(())?;
    let plan = match &arguments.plan {
        Some(file) => Some(load_plan(file, &workflow, &choice::candidates(&workflow)?)?),
        None => None,
    };
    let outline = match &plan {
        Some(plan) => outline::of_plan(&workflow, plan),
        None => outline::of_workflow(&workflow),
    };
    let text = match arguments.format {
        GraphFormat::Ascii => drawing::ascii(&outline),
        GraphFormat::Mermaid => drawing::mermaid(&outline),
        GraphFormat::Dot => drawing::dot(&outline),
        GraphFormat::Svg => {
            // Types are drawn where they are known: an invalid workflow can be drawn too.
            let bound = check(&workflow, Scope::Files, |_| {}).ok();
            let types = |id: &str| bound.as_ref()?.0.output(id).cloned();
            drawing::svg::file(&match &plan {
                Some(plan) => picture::of_plan(&workflow, plan, &outline, &types),
                None => picture::of_workflow(&workflow, &outline, &types),
            })
        }
    };
    let mut out = crate::answer::out();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Success)
}
