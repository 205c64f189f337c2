//! `tidemill requirements`: the links over which the models of a workflow may be remote.
mod document;
mod table;

use crate::arguments::{OutputForm, RequirementsArguments};
use crate::exit::Exit;
use crate::terminal::Terminal;
use std::io::Write;
use tidemill_app::requirements::requirements as judged;

/// Executes the verb.
pub(crate) fn requirements(arguments: &RequirementsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let found = judged(&arguments.workflow, &arguments.asked(), terminal)?;
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Table => table::write(&found, arguments, &mut out)?,
        OutputForm::Json => {
            serde_json::to_writer_pretty(&mut out, &document::document(&found))?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    Ok(if found.is_no() { Exit::No } else { Exit::Success })
}
