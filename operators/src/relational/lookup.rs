//! `lookup`: adds columns of a table to rows. The table is a file that may change while the workflow runs.
//!
//! ```yaml
//! - id: named
//!   kind: lookup
//!   input: detections
//!   options:
//!     path: cameras.csv                  # or .jsonl; relative to the workflow file
//!     key: camera                        # text, int64 or bool; a list for several columns
//!     table_key: id                      # the columns of the table, if their names differ
//!     columns: {zone: text, price: float64}
//!     missing: keep                      # keep (empty values), drop or dead_letter
//!     reload: 1s                         # time between two looks at the file
//!     max_table: 64MiB                   # bytes of its values
//! ```
//! Output: the columns of the input, then those of the table. Event time and number of the rows stay. A row whose key is not in the
//! table, or has an empty part, is `unmatched`: `missing` says what happens to it. Two rows of the table with one key are an error,
//! as is one that cannot be read: a table is used as a whole or not at all.
//!
//! A thread looks at the file every `reload`. If its time, size or number has changed and stays so for a second look, the file is
//! read; if it is not right, or changes meanwhile, the table before stays, a warning says why, and the rows are counted with the
//! remark `outdated_table`.
//!
//! The table changes between two epochs and is part of the state: snapshots have it, and its changes are among the calls that the
//! engine repeats. So a slot that restarts gives each row the table that it had before. A process that continues from a state has the
//! table of the checkpoint, and may see a newer one for the rows after that. Every stage changes its table by itself.
//!
//! ```
//! use std::path::Path;
//! use tidemill_operators::kind::{InputPort, OperatorContext};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("cameras.csv"), "camera,zone\nnorth,gate\n").unwrap();
//! let stream = StreamType::new([Column::new("camera", ColumnType::Text), Column::new("n", ColumnType::Int64)]);
//! let detections = InputPort { from: "detections".into(), stream, span: Span::nowhere() };
//! let id = "named".into();
//! let context = OperatorContext::new(&id, folder.path());
//! let options = "{path: cameras.csv, key: camera, columns: {zone: text}}";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", options)).unwrap();
//! let named = Registry::builtin().operator("lookup").unwrap().bind(&context, &[detections], &options).unwrap();
//! assert_eq!(named.output.to_string(), "{camera: text, n: int64, zone: text}");
//! ```
use super::keys::is_key_type;
use super::lookup_state::{Running, Setup};
use super::lookup_table::{Place, Stamp, Table};
use super::lookup_watch::Watch;
use crate::api::{Computation, Instance, MakeInstance, OperatorError};
use crate::columns::{DeclaredType, OneOrMany};
use crate::kind::{InputPort, OperatorContext, Step, TypedOperatorKind};
use crate::record::{operator_number, payload_schema, record_schema};
use crate::sources::table::{Form, declared_columns};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, StreamType};
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::Value;

/// Shortest time between two looks: the times of files are not finer.
const SHORTEST: TimeSpan = TimeSpan(10_000_000);
/// Largest `max_table`, far below the 2 GiB limit of offsets in a column.
const LARGEST: Bytes = Bytes(1 << 30);

/// The kind `lookup`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Lookup;

/// Options of `lookup`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The file with the table, `.csv` or `.jsonl`, relative to the workflow file, plain or compressed with gzip or zstd. It may be
    /// replaced while the workflow runs.
    path: Located<String>,
    /// Key column of the input, or a list of columns: text, int64 or bool. The table has columns of the same names.
    key: Located<OneOrMany>,
    /// Key columns of the table, if their names differ.
    #[serde(default)]
    table_key: Option<Located<OneOrMany>>,
    /// Columns of the table to add, each with its type: int64, float64, text or bool.
    #[schemars(with = "BTreeMap<String, DeclaredType>")]
    columns: Value,
    /// Treatment of rows whose key is not in the table. Default: keep.
    #[serde(default)]
    missing: Missing,
    /// Time between two looks whether the file has changed; at least 10ms. A change counts when the next look finds it again. Default: 1s.
    #[serde(default = "second")]
    reload: Located<TimeSpan>,
    /// Most bytes of the values of the table, at most 1GiB. Memory may hold three tables while one changes. Default: 64MiB.
    #[serde(default = "default_max_table")]
    max_table: Located<Bytes>,
}

fn second() -> Located<TimeSpan> {
    Located::new(TimeSpan(1_000_000_000), Default::default())
}

fn default_max_table() -> Located<Bytes> {
    Located::new(Bytes(64 << 20), Default::default())
}

/// Treatment of rows whose key is not in the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Missing {
    /// They stay, with empty values.
    #[default]
    Keep,
    /// They are dropped and counted: `unmatched`.
    Drop,
    /// They are dead letters: `unmatched`.
    DeadLetter,
}

impl TypedOperatorKind for Lookup {
    type Options = Options;
    const KIND: &'static str = "lookup";
    const SUMMARY: &'static str = "Adds columns of a table to rows; the file of the table may change.";
    const FACTS: OperatorFacts = OperatorFacts {
        computation: Computation::Stateful,
        gives_at_once: true,
        reads: &["path"],
        ..OperatorFacts::DEFAULT
    };

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let options = options.value;
        let port = &inputs[0];
        let (keys, place) = place(context, port, &options)?;
        let added = place.columns[place.keys..].iter().cloned();
        let output = StreamType::new(port.stream.columns.iter().cloned().chain(added));
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            id: context.id.value.clone(),
            written: options.path.value.clone(),
            keys,
            missing: options.missing,
            table: payload_schema(&StreamType::new(place.columns.clone())),
            output: record_schema(&output),
        });
        if context.step == Step::Check {
            let make: MakeInstance =
                Arc::new(move || Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup), None)))));
            return Ok((output, make));
        }
        let (table, stamp) = place.read().map_err(|error| {
            Diagnostic::error("E0609", format!("lookup `{}`: {error}", context.id))
                .at(options.path.span.clone())
                .with_help(error.help())
        })?;
        let tables = Arc::new(Tables {
            operator: context.id.value.clone(),
            place: Arc::new(place),
            first: (Arc::new(table), stamp),
            every: Duration::from_nanos(options.reload.value.0),
            watch: Mutex::default(),
        });
        let make: MakeInstance = Arc::new(move || {
            let watch = Some(tables.watch()?);
            Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup), watch))))
        });
        Ok((output, make))
    }
}

/// The tables of the instances of one operator, which share them.
struct Tables {
    operator: String,
    place: Arc<Place>,
    /// The table when the workflow was checked.
    first: (Arc<Table>, Stamp),
    every: Duration,
    watch: Mutex<Weak<Watch>>,
}

impl Tables {
    fn watch(&self) -> Result<Arc<Watch>, OperatorError> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = watch.upgrade() {
            return Ok(running);
        }
        let first = (Arc::clone(&self.first.0), self.first.1);
        let started = Watch::start(&self.operator, Arc::clone(&self.place), first, self.every);
        let started = Arc::new(started.map_err(|error| {
            OperatorError::new(format!("lookup: no thread can be started: {error}; end other programs"))
        })?);
        *watch = Arc::downgrade(&started);
        Ok(started)
    }
}

/// Returns the key columns of the input, and the place of the table.
fn place(
    context: &OperatorContext<'_>,
    port: &InputPort,
    options: &Options,
) -> Result<(Vec<usize>, Place), Diagnostics> {
    let mut errors = Diagnostics::new();
    let mut wrong = |span, message: String, help: &str| {
        errors.push(Diagnostic::error("E0606", message).at(span).with_help(help));
    };
    let path = &options.path;
    let form = Form::of(path).unwrap_or_else(|| {
        let help = "write the path of a file whose name ends in .csv or .jsonl (also .csv.gz, .csv.zst)";
        wrong(path.span.clone(), format!("`{path}` is neither a .csv nor a .jsonl file"), help);
        Form::Csv
    });
    let (most, every) = (&options.max_table, &options.reload);
    if every.value < SHORTEST {
        let message = format!("`reload` of {} is too short", every.value);
        wrong(every.span.clone(), message, "write at least `10ms`");
    }
    if !(1..=LARGEST.0).contains(&most.value.0) {
        let message = format!("`max_table` of {} is not possible", most.value);
        wrong(most.span.clone(), message, "write more than 0B and at most `1GiB`");
    }
    let names = &options.key.value.0;
    let table_key = options.table_key.as_ref().unwrap_or(&options.key);
    let table_names = &table_key.value.0;
    if names.is_empty() || names.len() != table_names.len() {
        let (here, there) = (names.len(), table_names.len());
        let message = format!("lookup `{}` compares {here} columns with {there} of the table", context.id);
        let help = "write as many columns as `table_key` has in `key`, at least one";
        wrong(table_key.span.clone(), message, help);
    }
    for (at, name) in table_names.iter().enumerate() {
        if table_names[..at].iter().any(|before| before.value == name.value) {
            let message = format!("`{name}` is twice in the key of the table");
            wrong(name.span.clone(), message, "name each column once");
        }
    }
    let added = declared_columns(&options.columns).unwrap_or_else(|found| {
        errors.append(found);
        Vec::new()
    });
    for column in &added {
        let entry = options.columns.entry(&column.name);
        let span = entry.map_or(&options.columns.span, |entry| &entry.key.span);
        let name = &column.name;
        let error = if port.stream.column(name).is_some() {
            let message =
                format!("lookup `{}` adds a column `{name}`, which `{}` has too", context.id, port.from);
            let help = format!("rename that of `{}` before with a `map`, or the one in the table", port.from);
            Diagnostic::error("E0606", message).with_help(help)
        } else if table_names.iter().any(|key| key.value == *name) {
            let message = format!("`{name}` is a key of the table, so its value is in the input already");
            Diagnostic::error("E0606", message).with_help("leave it out of `columns`")
        } else {
            continue;
        };
        errors.push(error.at(span.clone()));
    }
    let (mut keys, mut columns) = (Vec::new(), Vec::new());
    for (name, table_name) in names.iter().zip(table_names) {
        match port.column(context.id, 0, name, "text, int64 or bool", is_key_type) {
            Ok((index, column)) => {
                keys.push(index);
                columns.push(Column::new(table_name.value.clone(), column.column_type.clone()));
            }
            Err(error) => errors.push(error),
        }
    }
    columns.extend(added);
    errors.into_result(())?;
    let place = Place {
        written: path.value.clone(),
        path: context.base.join(&path.value),
        form,
        columns,
        keys: keys.len(),
        most: most.value,
    };
    Ok((keys, place))
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
