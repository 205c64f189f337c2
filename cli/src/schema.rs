//! `tidemill schema`: JSON schemas for editors.
use crate::arguments::{SchemaArguments, SchemaFile};
use crate::exit::Exit;
use schemars::Schema;
use std::io::Write;
use tidemill_app::preparation::registry;
use tidemill_inference::backend::registered;
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
    found.map_or_else(String::new, |(_, mut schema)| {
        schema::name_backends(&mut schema, &backends());
        schema::to_text(&schema)
    })
}

/// All backends of this program, each with its description.
fn backends() -> Vec<(&'static str, &'static str)> {
    registered().map(|backend| (backend.name, backend.summary)).collect()
}

/// The schema of workflows with the options of all kinds of this program.
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
    let mut schema = schema::workflow(&kinds);
    schema::name_backends(&mut schema, &backends());
    schema
}
