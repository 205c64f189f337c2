//! `tidemill graph`: draws a workflow or a plan.
use crate::arguments::{GraphArguments, GraphFormat};
use crate::choice;
use crate::drawing;
use crate::exit::Exit;
use crate::outline;
use crate::preparation::load_plan;
use std::io::{self, Write};
use tidemill_spec::workflow::Workflow;

/// Prints a drawing.
pub(crate) fn graph(arguments: &GraphArguments) -> anyhow::Result<Exit> {
    let workflow = Workflow::load(&arguments.workflow)?;
    let outline = match &arguments.plan {
        Some(file) => {
            outline::of_plan(&workflow, &load_plan(file, &workflow, &choice::candidates(&workflow)?)?)
        }
        None => outline::of_workflow(&workflow),
    };
    let text = match arguments.format {
        GraphFormat::Ascii => drawing::ascii(&outline),
        GraphFormat::Mermaid => drawing::mermaid(&outline),
        GraphFormat::Dot => drawing::dot(&outline),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Success)
}
