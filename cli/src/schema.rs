//! `tidemill schema`: what editors check files with.
use crate::arguments::{SchemaArguments, SchemaFile};
use crate::exit::Exit;
use crate::preparation::registry;
use schemars::Schema;
use std::io::Write;
use tidemill_operators::registry::Role;
use tidemill_spec::schema::{self, Section};

/// Prints a schema.
pub(crate) fn print(arguments: &SchemaArguments) -> anyhow::Result<Exit> {
    let mut out = crate::answer::out();
    out.write_all(text(arguments.file).as_bytes())?;
    out.flush()?;
    Ok(Exit::Success)
}

/// The schema of a kind of file, as JSON.
pub(crate) fn text(file: SchemaFile) -> String {
    if file == SchemaFile::Workflow {
        return schema::to_text(&workflow());
    }
    let found = schema::all().into_iter().find(|(name, _)| *name == file.name());
    found.map_or_else(String::new, |(_, schema)| schema::to_text(&schema))
}

/// The schema of workflows with the options of all kinds that this program has.
fn workflow() -> Schema {
    let kinds: Vec<(Section, &str, Schema)> = registry()
        .kinds()
        .into_iter()
        .map(|info| {
            let section = match info.role {
                Role::Source => Section::Sources,
                Role::Operator => Section::Operators,
                Role::Sink => Section::Sinks,
            };
            (section, info.kind, info.options)
        })
        .collect();
    schema::workflow(&kinds)
}
