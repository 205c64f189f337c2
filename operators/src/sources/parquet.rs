//! `parquet`: the rows of an Apache Parquet file, as pandas, Polars, DuckDB, Spark and the sink `parquet` write it.
//!
//! ```yaml
//! - id: embeddings
//!   kind: parquet
//!   options:
//!     path: data/embeddings.parquet
//!     columns:
//!       key: text
//!       vector: tensor<float32>[384]
//! ```
//! Declared columns are found by name, others are not read. The file may have these types:
//!
//! | declared | in the file |
//! |---|---|
//! | int64 | whole numbers with and without sign of 8, 16, 32 and 64 bits; beyond int64: `bad_value` |
//! | float64 | floats of 16, 32 and 64 bits, whole numbers of up to 32 bits |
//! | text, bool | string, boolean |
//! | tensor | lists, fixed-size lists and lists in lists, of values that the type holds exactly: its own type, a narrower float, narrower whole numbers |
//!
//! A null is an empty value. A list of another length and a null in a list are dead letters `bad_value`, each
//! with its row, counted from 1. Another type in the file is an error before the run. Options `event_time`,
//! `time_unit`,
//! `time_zone` and `out_of_order` are those of [`super::csv`]. A run continues at a row without reading those before it
//! again, as far as the pages of the file allow it.
//!
//! ```
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let id = "embeddings".into();
//! let context = EndContext::new(&id, std::path::Path::new("/nowhere"));
//! let yaml = "path: e.parquet\ncolumns: {key: text}";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", yaml)).unwrap();
//! let error = Registry::builtin().source("parquet").unwrap().bind(&context, &options).err().unwrap();
//! assert!(error.to_string().contains("source `embeddings`"));
//! ```
#[cfg(feature = "formats")]
mod reader;
#[cfg(feature = "formats")]
mod values;

use super::jump::MaxJump;
use super::table;
use crate::api::BoundSource;
use crate::columns::DeclaredType;
use crate::kind::{EndContext, SourceKind};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::Value;

/// The kind `parquet`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Parquet;

/// Options of `parquet`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The file, relative to the workflow file.
    path: Located<String>,
    /// Columns to read, each with its type: int64, float64, text, bool or a tensor such as
    /// "tensor<float32>[8]".
    #[schemars(with = "BTreeMap<String, DeclaredType>")]
    columns: Value,
    /// Column with the event time, of type int64 or float64, or of type text with times such as
    /// `2026-03-29T01:59:59Z`. Default: none; record number i has the time i / `rate`, or i milliseconds
    /// without a rate.
    #[serde(default)]
    event_time: Option<Located<String>>,
    /// Unit of event times that are numbers, counted from 1970: s, ms, us or ns. Default: ms.
    #[serde(default)]
    time_unit: Option<Located<super::event_time::TimeUnit>>,
    /// Zone of event times in text without a zone: an offset such as `+01:00`, or `Z` for UTC. Default: none;
    /// a time without a zone is a dead letter.
    #[serde(default)]
    time_zone: Option<Located<String>>,
    /// Longest time by which a record may be older than the newest event time. Default: 0s.
    #[serde(default)]
    out_of_order: TimeSpan,
}

impl SourceKind for Parquet {
    fn kind(&self) -> &'static str {
        "parquet"
    }

    fn summary(&self) -> &'static str {
        "The rows of an Apache Parquet file."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn shown_by_opening(&self) -> &'static str {
        "is there, and has the declared columns in types that fit"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let read: Options = options.deserialize_into()?;
        table::have_event_time(options)?;
        let Options { path, columns, event_time, time_unit, time_zone, out_of_order } = read;
        let options = table::Options {
            path,
            stream: None,
            columns,
            event_time,
            time_unit,
            time_zone,
            out_of_order,
            max_jump: MaxJump::default(),
            max_line: Bytes(0),
        };
        bound(context, &options)
    }
}

#[cfg(feature = "formats")]
use reader::bound;

/// Refuses the source in a build without the reader.
#[cfg(not(feature = "formats"))]
fn bound(context: &EndContext<'_>, _: &table::Options) -> Result<BoundSource, Diagnostics> {
    let message = format!("source `{}`: this build lacks the kind `parquet`", context.id);
    let help = "build the command with `cargo build -p tidemill --features formats`, or write the rows as `jsonl` or `csv`";
    Err(tidemill_spec::diagnostic::Diagnostic::error("E0604", message)
        .at(context.id.span.clone())
        .with_help(help)
        .into())
}
