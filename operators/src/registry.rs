//! The kinds of operators, sources and sinks that a workflow can name.
//!
//! A new kind is one file with a type that implements [`OperatorKind`], [`SourceKind`] or [`SinkKind`], and one line
//! in [`Registry::builtin`] (or a call of `register_operator` where the registry is made).
//!
//! ```
//! use tidemill_operators::registry::Registry;
//! let registry = Registry::builtin();
//! assert!(registry.operator("filter").is_some());
//! assert!(registry.source("csv").is_some());
//! for kind in registry.kinds() {
//!     println!("{} {}: {}", kind.role, kind.kind, kind.summary);
//! }
//! ```
use crate::api::{BoundOperator, BoundSink, BoundSource};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::value::Value;

/// What an operator kind knows about the operator that is bound.
#[derive(Debug, Clone, Copy)]
pub struct OperatorContext<'a> {
    /// Operator id in the workflow, with its place.
    pub id: &'a Located<String>,
    /// Folder of the workflow file; relative paths in the options start there.
    pub base: &'a Path,
    /// Manifest paths as written in the workflow (relative to `base`); empty for operators without models.
    pub variants: &'a [Located<String>],
    /// Which variant to bind: the path as written or the manifest's id; `None` is the first of `variants`.
    pub variant: Option<&'a str>,
    /// Which backend to bind (`rten`, `ort`, `auto`); `None` leaves it to the kind.
    pub backend: Option<&'a str>,
}

/// What a source or sink kind knows about the source or sink that is bound.
#[derive(Debug, Clone, Copy)]
pub struct EndContext<'a> {
    /// Id in the workflow, with its place.
    pub id: &'a Located<String>,
    /// Folder of the workflow file; relative paths in the options start there.
    pub base: &'a Path,
}

impl EndContext<'_> {
    /// A path from the options, relative to the workflow file.
    pub fn path(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }
}

/// One input of an operator or sink: what arrives there and where the workflow says so.
#[derive(Debug, Clone)]
pub struct InputPort {
    /// Id of the source or operator that sends.
    pub from: String,
    /// What it sends.
    pub stream: StreamType,
    /// Where the input stands in the workflow file.
    pub span: Span,
}

impl InputPort {
    /// Position of the column `name` in the payload, if it is there and `accepts` its type.
    ///
    /// # Errors
    /// `E0605` if there is no such column; `E0601`, naming both ports, what was found and what is expected
    /// (`expected`, in words), if it has another type.
    pub fn column(
        &self,
        receiver: &str,
        port: usize,
        name: &Located<String>,
        expected: &str,
        accepts: impl Fn(&ColumnType) -> bool,
    ) -> Result<(usize, &Column), Diagnostic> {
        let Some(index) = self.stream.index_of(name) else {
            let names = self.stream.columns.iter().map(|c| c.name.as_str());
            return Err(Diagnostic::error(
                "E0605",
                format!("there is no column `{name}` in what `{receiver}` receives from `{}`", self.from),
            )
            .at(self.place(&name.span))
            .with_label(format!("`{}` sends {}", self.from, self.stream))
            .with_help(tidemill_spec::diagnostic::suggestion(
                name,
                names,
                &format!("columns of `{}`", self.from),
            )));
        };
        let column = &self.stream.columns[index];
        if accepts(&column.column_type) {
            return Ok((index, column));
        }
        let found = &column.column_type;
        let error = Diagnostic::error(
            "E0601",
            format!(
                "output of `{}` does not fit input {port} of `{receiver}`: column `{name}` is {found}, \
                 expected {expected}",
                self.from
            ),
        )
        .at(self.span.clone())
        .with_label(format!("`{}` sends {}", self.from, self.stream))
        .with_help(self.conversion_help(receiver, name, expected, &accepts));
        Err(match name.span.source() {
            Some(_) => error.with_related(name.span.clone(), format!("`{receiver}` needs {expected} here")),
            None => error,
        })
    }

    /// The place in the options if it is known, else that of the input.
    fn place(&self, option: &Span) -> Span {
        if option.source().is_some() { option.clone() } else { self.span.clone() }
    }

    fn conversion_help(
        &self,
        receiver: &str,
        name: &str,
        expected: &str,
        accepts: &impl Fn(&ColumnType) -> bool,
    ) -> String {
        let fitting: Vec<String> = self
            .stream
            .columns
            .iter()
            .filter(|c| accepts(&c.column_type))
            .map(|c| format!("`{}`", c.name))
            .collect();
        let convert = [
            (ColumnType::Text, "string"),
            (ColumnType::Int64, "int"),
            (ColumnType::Float64, "double"),
            (ColumnType::Bool, "bool"),
        ]
        .into_iter()
        .find(|(column_type, _)| accepts(column_type));
        let scalar = self.stream.column(name).is_some_and(|c| {
            matches!(c.column_type, ColumnType::Text | ColumnType::Int64 | ColumnType::Float64)
        });
        match (fitting.is_empty(), convert) {
            (false, _) => format!("columns of `{}` that fit: {}", self.from, fitting.join(", ")),
            (true, Some((_, function))) if scalar => format!(
                "put a `map` between them: options: {{columns: {{{name}: \"{function}({name})\"}}}}, \
                 or connect `{receiver}` to an operator that sends {expected}"
            ),
            _ => format!("connect `{receiver}` to a source or operator that sends {expected}"),
        }
    }
}

/// A kind of operator.
pub trait OperatorKind: Send + Sync {
    /// Name in workflow files.
    fn kind(&self) -> &'static str;
    /// One sentence for lists of kinds.
    fn summary(&self) -> &'static str;
    /// Schema of the options, for editors and documentation.
    fn options_schema(&self) -> schemars::Schema;
    /// How many inputs it takes.
    fn inputs(&self) -> std::ops::RangeInclusive<usize> {
        1..=1
    }
    /// Checks options and input types. `inputs` has a length that [`OperatorKind::inputs`] allows.
    ///
    /// # Errors
    /// Everything that is wrong with the options or the inputs, each at its place in the workflow.
    fn bind(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: &Value,
    ) -> Result<BoundOperator, Diagnostics>;
}

/// A kind of source. What all sources have in common (`key`, `rate`, `repeat`) is added by the caller.
pub trait SourceKind: Send + Sync {
    /// Name in workflow files.
    fn kind(&self) -> &'static str;
    /// One sentence for lists of kinds.
    fn summary(&self) -> &'static str;
    /// Schema of the options, for editors and documentation.
    fn options_schema(&self) -> schemars::Schema;
    /// Checks the options; `key`, `rate_per_second` of the result are not set.
    ///
    /// # Errors
    /// Everything that is wrong with the options, each at its place in the workflow.
    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics>;
}

/// A kind of sink. Ground truth is added by the caller.
pub trait SinkKind: Send + Sync {
    /// Name in workflow files.
    fn kind(&self) -> &'static str;
    /// One sentence for lists of kinds.
    fn summary(&self) -> &'static str;
    /// Schema of the options, for editors and documentation.
    fn options_schema(&self) -> schemars::Schema;
    /// Checks the options and the type of the input; writes nothing.
    ///
    /// # Errors
    /// Everything that is wrong with the options or the input, each at its place in the workflow.
    fn bind(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: &Value,
    ) -> Result<BoundSink, Diagnostics>;
}

/// What a kind is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads records.
    Source,
    /// Computes.
    Operator,
    /// Takes results.
    Sink,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Source => "source",
            Role::Operator => "operator",
            Role::Sink => "sink",
        })
    }
}

/// One entry of [`Registry::kinds`].
#[derive(Debug, Clone, serde::Serialize)]
pub struct KindInfo {
    /// Source, operator or sink.
    pub role: Role,
    /// Name in workflow files.
    pub kind: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// JSON schema of the options.
    pub options: schemars::Schema,
}

/// The known kinds.
#[derive(Clone, Default)]
pub struct Registry {
    operators: BTreeMap<&'static str, Arc<dyn OperatorKind>>,
    sources: BTreeMap<&'static str, Arc<dyn SourceKind>>,
    sinks: BTreeMap<&'static str, Arc<dyn SinkKind>>,
}

impl Registry {
    /// A registry without any kind.
    pub fn empty() -> Self {
        Self::default()
    }

    /// All kinds that need no model.
    pub fn builtin() -> Self {
        let mut registry = Self::empty();
        registry.register_source(crate::sources::image_directory::ImageDirectory);
        registry.register_source(crate::sources::wav_directory::WavDirectory);
        registry.register_source(crate::sources::csv::Csv);
        registry.register_source(crate::sources::jsonl::Jsonl);
        registry.register_operator(crate::relational::filter::Filter);
        registry.register_operator(crate::relational::map::Map);
        registry.register_operator(crate::relational::join::Join);
        registry.register_operator(crate::relational::window::Window);
        registry.register_sink(crate::sinks::jsonl::Jsonl);
        registry.register_sink(crate::sinks::csv::Csv);
        registry.register_sink(crate::sinks::stdout::Stdout);
        registry
    }

    /// Adds an operator kind; one of the same name is replaced.
    pub fn register_operator(&mut self, kind: impl OperatorKind + 'static) {
        self.operators.insert(kind.kind(), Arc::new(kind));
    }

    /// Adds a source kind; one of the same name is replaced.
    pub fn register_source(&mut self, kind: impl SourceKind + 'static) {
        self.sources.insert(kind.kind(), Arc::new(kind));
    }

    /// Adds a sink kind; one of the same name is replaced.
    pub fn register_sink(&mut self, kind: impl SinkKind + 'static) {
        self.sinks.insert(kind.kind(), Arc::new(kind));
    }

    /// The operator kind of that name.
    pub fn operator(&self, kind: &str) -> Option<&dyn OperatorKind> {
        self.operators.get(kind).map(AsRef::as_ref)
    }

    /// The source kind of that name.
    pub fn source(&self, kind: &str) -> Option<&dyn SourceKind> {
        self.sources.get(kind).map(AsRef::as_ref)
    }

    /// The sink kind of that name.
    pub fn sink(&self, kind: &str) -> Option<&dyn SinkKind> {
        self.sinks.get(kind).map(AsRef::as_ref)
    }

    /// Every kind with its summary and the schema of its options: sources, operators, sinks, each by name.
    pub fn kinds(&self) -> Vec<KindInfo> {
        let sources = self.sources.values().map(|k| KindInfo {
            role: Role::Source,
            kind: k.kind(),
            summary: k.summary(),
            options: k.options_schema(),
        });
        let operators = self.operators.values().map(|k| KindInfo {
            role: Role::Operator,
            kind: k.kind(),
            summary: k.summary(),
            options: k.options_schema(),
        });
        let sinks = self.sinks.values().map(|k| KindInfo {
            role: Role::Sink,
            kind: k.kind(),
            summary: k.summary(),
            options: k.options_schema(),
        });
        sources.chain(operators).chain(sinks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_summary_and_a_schema_without_unknown_keys() {
        let kinds = Registry::builtin().kinds();
        assert_eq!(kinds.len(), 11);
        for kind in kinds {
            assert!(kind.summary.ends_with('.'), "{}", kind.kind);
            let schema = kind.options.as_value();
            assert_eq!(schema["additionalProperties"], false, "{} {schema}", kind.kind);
            for (name, property) in schema["properties"].as_object().unwrap() {
                assert!(property["description"].is_string(), "{} {name}", kind.kind);
            }
        }
    }

    #[test]
    fn a_column_of_another_type_names_both_ports_and_a_fix() {
        let port = InputPort {
            from: "readings".into(),
            stream: StreamType::new([Column::new("v", ColumnType::Text)]),
            span: Span::nowhere(),
        };
        let error = port
            .column("by_v", 0, &"v".into(), "int64 or float64", |t| *t == ColumnType::Float64)
            .unwrap_err();
        assert_eq!(error.code, "E0601");
        assert_eq!(
            error.message,
            "output of `readings` does not fit input 0 of `by_v`: column `v` is text, expected int64 or float64"
        );
        assert!(error.help.unwrap().contains("double(v)"));
        assert_eq!(port.column("by_v", 0, &"w".into(), "text", |_| true).unwrap_err().code, "E0605");
    }
}
