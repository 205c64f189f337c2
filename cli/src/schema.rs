//! `tidemill schema`: what editors check files with.
use crate::arguments::{SchemaArguments, SchemaFile};
use crate::exit::Exit;
use crate::preparation::registry;
use schemars::Schema;
use std::io::{self, Write};
use tidemill_operators::registry::Role;
use tidemill_spec::schema::{self, Section};

/// Prints a schema.
pub(crate) fn print(arguments: &SchemaArguments) -> anyhow::Result<Exit> {
    let text = match arguments.file {
        SchemaFile::Workflow => schema::to_text(&workflow()),
        SchemaFile::Infrastructure => named("infrastructure"),
        SchemaFile::Plan => named("plan"),
        SchemaFile::Model => named("model"),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Success)
}

fn named(name: &str) -> String {
    schema::all()
        .into_iter()
        .find(|(found, _)| *found == name)
        .map_or_else(String::new, |(_, s)| schema::to_text(&s))
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
