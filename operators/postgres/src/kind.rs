//! `postgres`: rows into a table of PostgreSQL, exactly once.
//!
//! ```yaml
//! - id: latest
//!   kind: postgres
//!   input: readings
//!   options:
//!     server: postgres://tidemill@db.local/plant?sslmode=verify-full&sslrootcert=/etc/db.pem
//!     password_env: PLANT_PASSWORD
//!     table: latest
//!     key: [sensor]
//!     create: true
//! ```
//! A row replaces the one with the same `key`. Rows become visible with the checkpoint, all rows of a checkpoint in one
//! transaction, which also records the commit in the table `tidemill_commits` of the first schema of the user's search
//! path: a process that continues the run after its predecessor was killed repeats nothing and leaves nothing out. Until the checkpoint
//! rows wait in memory. While the server cannot be reached, a commit is tried again for as long as `retry`; then the run
//! fails, and continues from its state. A row whose values the table does not take is a dead letter (`refused`).
//!
//! Before the run the columns are compared with the table, which needs a primary key or another unique index of just the
//! columns of `key`.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort, Step};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::types::{Column, ColumnType, StreamType};
//! use tidemill_spec::{span::{SourceFile, Span}, yaml};
//! let mut registry = Registry::builtin();
//! tidemill_postgres_sink::register(&mut registry);
//! let stream = StreamType::new([Column::new("sensor", ColumnType::Text), Column::new("t", ColumnType::Float64)]);
//! let port = InputPort { from: "readings".into(), stream, span: Span::nowhere() };
//! let id = "latest".into();
//! // Checked, not connected.
//! let context = EndContext { step: Step::Check, ..EndContext::new(&id, std::path::Path::new(".")) };
//! let text = "server: 'postgres://me@localhost/plant'\ntable: latest\nkey: [sensor]";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
//! let latest = registry.sink("postgres").unwrap().bind(&context, &port, &options).unwrap();
//! assert!(latest.durable.is_some());
//! ```
use crate::sink::{PostgresSink, Settings};
use crate::table::{SinkColumn, Table, types_of};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_operators::api::{BoundSink, MakeDurableSink, Sink};
use tidemill_operators::kind::{EndContext, InputPort, TypedSinkKind};
use tidemill_postgres::Address;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::Column;
use tidemill_spec::units::TimeSpan;

/// The kind `postgres`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Postgres;

/// Options of the sink `postgres`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// `postgres://USER@HOST/DATABASE`, without a password; over a network with `?sslmode=verify-full&sslrootcert=FILE`,
    /// or `?sslmode=disable` where the network is trusted.
    server: Located<String>,
    /// Variable of the environment with the password. Default: none.
    #[serde(default)]
    password_env: Option<Located<String>>,
    /// Name of the table, with its schema if it is not in the search path: `latest`, `plant.latest`.
    table: Located<String>,
    /// Columns that identify a row: a new row replaces the one with the same values.
    key: Vec<Located<String>>,
    /// Columns to write. Default: all.
    #[serde(default)]
    columns: Option<Vec<Located<String>>>,
    /// Whether a table that is missing is made. Default: false.
    #[serde(default)]
    create: bool,
    /// Time for which a commit is tried again while the server cannot be reached. Default: 60s.
    #[serde(default = "default_retry")]
    retry: TimeSpan,
}

fn default_retry() -> TimeSpan {
    TimeSpan(60 * 1_000_000_000)
}

fn wrong(text: impl Into<String>, help: &str) -> Diagnostic {
    Diagnostic::error("E0606", text).with_help(help)
}

impl TypedSinkKind for Postgres {
    type Options = Options;
    const KIND: &'static str = "postgres";
    const SUMMARY: &'static str = "Rows into a table of PostgreSQL, exactly once.";
    const FACTS: SinkFacts =
        SinkFacts { writes: &[], free: &["create", "retry", "password_env"], ..SinkFacts::DEFAULT };

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let mut errors = Diagnostics::new();
        let address = address(context, &options).map_err(|error| errors.push(error)).ok();
        let table = table(context, input, &options, &mut errors);
        errors.into_result(())?;
        let (Some(address), Some(table)) = (address, table) else { return Err(Diagnostics::new()) };
        let settings = Arc::new(Settings {
            id: context.id.value.clone(),
            address,
            table,
            create: options.create,
            attempts: options.retry.0 / 200_000_000 + 1,
        });
        if context.opens() {
            check(&settings, &options)?;
        }
        let durable: MakeDurableSink =
            Arc::new(move |token| Ok(Box::new(PostgresSink::open(&settings, token)?) as Box<dyn Sink>));
        let make = Arc::clone(&durable);
        let bound = context.sink(Self::KIND, input, Vec::new(), Arc::new(move || make(None)));
        Ok(BoundSink { durable: Some(durable), ..bound })
    }
}

/// The server, with its password where the context opens the sink.
fn address(context: &EndContext<'_>, options: &Options) -> Result<Address, Diagnostic> {
    let address: Address =
        options.server.value.parse().map_err(|error: tidemill_postgres::AddressError| {
            let text = error.to_string();
            let (found, help) = text.split_once(": write ").unwrap_or((&text, "check it"));
            // Its line may have a password.
            wrong(format!("`server` of sink `{}`: {found}", context.id), &format!("write {help}"))
        })?;
    if address.has_password() {
        let text = format!("`server` of sink `{}` has a password", context.id);
        return Err(wrong(text, "leave it out, and write `password_env` with a variable that has it"));
    }
    match &options.password_env {
        Some(variable) if context.opens() => match std::env::var(&variable.value) {
            Ok(password) => Ok(address.with_password(&password)),
            Err(_) => Err(wrong(
                format!("the variable `{variable}` of the environment is not set"),
                "set it to the password where the run writes",
            )
            .at(variable.span.clone())),
        },
        _ => Ok(address),
    }
}

fn table(
    context: &EndContext<'_>,
    input: &InputPort,
    options: &Options,
    errors: &mut Diagnostics,
) -> Option<Table> {
    let before = errors.len();
    let mut columns: Vec<SinkColumn> = Vec::new();
    let mut add = |index: usize, column: &Column, errors: &mut Diagnostics, place: &Located<String>| {
        if types_of(&column.column_type).is_none() {
            let text =
                format!("column `{}` is {}, which no column of a table has", column.name, column.column_type);
            errors.push(wrong(text, "name the columns to write in `columns`").at(place.span.clone()));
        }
        columns.push(SinkColumn {
            name: column.name.clone(),
            index,
            column_type: column.column_type.clone(),
            is_key: options.key.iter().any(|key| key.value == column.name),
        });
    };
    match &options.columns {
        None => input.stream.columns.iter().enumerate().for_each(|(index, column)| {
            add(index, column, errors, &options.table);
        }),
        Some(names) => {
            for name in names {
                match input.column(context.id, 0, name, "any type", |_| true) {
                    Ok((index, column)) => add(index, column, errors, name),
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    if options.key.is_empty() {
        let help = "write the columns that identify a row, such as `key: [sensor]`";
        errors.push(wrong(format!("sink `{}` has no key", context.id), help).at(options.table.span.clone()));
    }
    for key in &options.key {
        match input.column(context.id, 0, key, "any type", |_| true) {
            Err(error) => errors.push(error),
            Ok(_) if !columns.iter().any(|column| column.name == key.value) => errors.push(
                wrong(format!("the key `{key}` is not among the `columns` to write"), "add it there")
                    .at(key.span.clone()),
            ),
            Ok(_) => {}
        }
    }
    let (schema, name) = match options.table.split_once('.') {
        Some((schema, name)) => (Some(schema.to_owned()), name.to_owned()),
        None => (None, options.table.value.clone()),
    };
    if name.is_empty() || schema.as_ref().is_some_and(String::is_empty) {
        let text = format!("`{}` is not the name of a table", options.table);
        errors.push(
            wrong(text, "write `latest`, or `plant.latest` with its schema").at(options.table.span.clone()),
        );
    }
    (errors.len() == before).then_some(Table { schema, name, columns })
}

/// Compares the table with the columns.
fn check(settings: &Settings, options: &Options) -> Result<(), Diagnostic> {
    let unusable = |text: String| {
        Diagnostic::error("E0609", format!("sink `{}`: {text}", settings.id))
            .with_help("check the address of the server, the user and the password")
    };
    let mut client = settings.address.connect().map_err(|error| unusable(error.to_string()))?;
    let failed = |error: postgres::Error| unusable(tidemill_postgres::in_words(&error));
    if !settings.table.exists(&mut client).map_err(failed)? {
        if options.create {
            return Ok(());
        }
        let text = format!("sink `{}`: there is no table {}", settings.id, settings.table.quoted());
        let help = format!("write `create: true`, or make it: {}", settings.table.creation());
        return Err(Diagnostic::error("E0609", text).at(options.table.span.clone()).with_help(help));
    }
    match settings.table.finding(&mut client).map_err(failed)? {
        None => Ok(()),
        Some((finding, help)) => {
            Err(Diagnostic::error("E0601", format!("sink `{}`: {finding}", settings.id))
                .at(options.table.span.clone())
                .with_help(help))
        }
    }
}
