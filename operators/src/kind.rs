//! Kinds of operators, sources and sinks: names, options, types, and binding.
//!
//! Most kinds have options of a fixed form and implement [`TypedOperatorKind`] or [`TypedSinkKind`].
use crate::api::{BoundOperator, BoundSink, BoundSource, GroundTruth, MakeInstance, MakeSink, MakeSource};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::{OperatorFacts, SinkFacts, SourceFacts, Spread};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::value::Value;

/// The two steps of binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Checked by the workflow's own files: the workflow, and the manifests of its models. Files of data, models and
    /// programs are not read. The result has its types and guarantees, and cannot run.
    Check,
    /// Checked and opened on the host that runs it, with all its files.
    Open,
}

/// Context of an operator that is bound.
#[derive(Debug, Clone, Copy)]
pub struct OperatorContext<'a> {
    /// Operator id in the workflow, with its position.
    pub id: &'a Located<String>,
    /// Folder of the workflow file; relative paths in the options start there.
    pub base: &'a Path,
    /// Manifest paths as written in the workflow (relative to `base`); empty for operators without models.
    pub variants: &'a [Located<String>],
    /// The variant to bind: the path as written or the manifest's id; `None` is the first of `variants`.
    pub variant: Option<&'a str>,
    /// The backend to bind, or `auto`; `None` leaves it to the kind.
    pub backend: Option<&'a str>,
    /// Whether its model may be read.
    pub step: Step,
}

impl<'a> OperatorContext<'a> {
    /// Creates the context of an operator without models, which is opened.
    pub fn new(id: &'a Located<String>, base: &'a Path) -> Self {
        Self { id, base, variants: &[], variant: None, backend: None, step: Step::Open }
    }
}

/// Context of a source or sink that is bound.
#[derive(Debug, Clone, Copy)]
pub struct EndContext<'a> {
    /// Id in the workflow, with its position.
    pub id: &'a Located<String>,
    /// Folder of the workflow file; relative paths in the options start there.
    pub base: &'a Path,
    /// Whether its files may be read.
    pub step: Step,
    /// Right answers of a sink, if the workflow names some.
    pub truth: Option<&'a GroundTruth>,
}

impl<'a> EndContext<'a> {
    /// Creates the context of a source or sink that is opened.
    pub fn new(id: &'a Located<String>, base: &'a Path) -> Self {
        Self { id, base, step: Step::Open, truth: None }
    }

    /// Whether its files may be read.
    pub fn opens(&self) -> bool {
        self.step == Step::Open
    }

    /// Resolves a path from the options relative to the workflow file.
    pub fn path(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }

    /// A bound source that can be read again, without other known properties.
    pub fn source(&self, kind: &str, output: StreamType, make: MakeSource) -> BoundSource {
        BoundSource {
            id: self.id.value.clone(),
            kind: kind.to_owned(),
            output,
            key: None,
            rate_per_second: None,
            out_of_order_microseconds: 0,
            live: false,
            waits_for_all: false,
            rereads: false,
            has_event_times: false,
            at_one_time: 1,
            stream: None,
            journalled: None,
            input: None,
            journal: None,
            feeds: None,
            requests: None,
            make,
        }
    }

    /// A bound sink without ground truth, which the caller of the kind adds, and that no other process can continue.
    pub fn sink(&self, kind: &str, input: &InputPort, files: Vec<PathBuf>, make: MakeSink) -> BoundSink {
        BoundSink {
            id: self.id.value.clone(),
            kind: kind.to_owned(),
            input: input.stream.clone(),
            ground_truth: None,
            files,
            is_standard_output: false,
            answers: None,
            repeats: false,
            make,
            durable: None,
        }
    }
}

/// One input of an operator or sink, with its type and position.
#[derive(Debug, Clone)]
pub struct InputPort {
    /// Id of the sender.
    pub from: String,
    /// Type of its rows.
    pub stream: StreamType,
    /// Position of the input in the workflow file.
    pub span: Span,
}

impl InputPort {
    /// Returns the position of the column `name` in the payload, if it exists and `accepts` its type.
    ///
    /// # Errors
    /// `E0605` if there is no such column; `E0601` if it has another type, with both ports, the found type and the expected
    /// one (`expected`, in words).
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
                format!(
                    "there is no column `{name}` in the records that `{receiver}` receives from `{}`",
                    self.from
                ),
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

    /// Returns the position in the options if known, else that of the input.
    fn place(&self, option: &Span) -> Span {
        if option.source().is_some() { option.clone() } else { self.span.clone() }
    }

    /// Refuses a stream whose rows may be taken back; `others` are kinds that take them.
    ///
    /// # Errors
    /// `E0620`, at the input.
    pub(crate) fn only_adds(
        &self,
        receiver: &str,
        kind: &str,
        others: impl Fn() -> String,
    ) -> Result<(), Diagnostic> {
        if !self.stream.revised {
            return Ok(());
        }
        let message =
            format!("`{}` can retract rows, but `{receiver}` (kind `{kind}`) only adds them", self.from);
        let help = format!("connect it to an operator or sink that accepts retractions: {}", others());
        Err(Diagnostic::error("E0620", message).at(self.span.clone()).with_help(help))
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
            _ if expected.starts_with("tensor")
                && self
                    .stream
                    .column(name)
                    .is_some_and(|c| matches!(c.column_type, ColumnType::Tensor { .. })) =>
            {
                "`slices` makes windows of a number of samples, `stack` windows of the rows of tensors"
                    .to_owned()
            }
            _ if expected.starts_with("tensor") => format!(
                "tensors come from models: connect `{receiver}` to an operator of kind `ml` with an output of {expected}"
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
    /// Permitted number of inputs.
    fn inputs(&self) -> RangeInclusive<usize> {
        1..=1
    }
    /// Whether its inputs may contain retractions ([`StreamType::revised`]); false for kinds that only add.
    fn accepts_revisions(&self) -> bool {
        false
    }
    /// Facts about it that its options do not change. One that runs models says so, and only then `variants`, `backend` and
    /// `batching` mean something.
    fn facts(&self) -> OperatorFacts {
        OperatorFacts::default()
    }
    /// Facts about an operator with these options. Default: those of the kind. A kind overrides it if its options decide whether it
    /// keeps a state.
    fn facts_of(&self, options: &Value) -> OperatorFacts {
        let _ = options;
        self.facts()
    }
    /// How an operator with these options may be spread over several stages.
    fn spread(&self, options: &Value) -> Spread {
        let _ = options;
        Spread::Any
    }
    /// Checks options and input types; how the result computes and may be spread follows from the facts. `inputs` has a length that [`OperatorKind::inputs`] allows. The type of the output is the same
    /// in both [steps](Step): it follows from the options and, of a model, from its manifest.
    ///
    /// # Errors
    /// All errors in the options or the inputs, each at its position in the workflow.
    fn bind(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: &Value,
    ) -> Result<BoundOperator, Diagnostics>;
}

/// An operator kind with its own type of options; it implements [`OperatorKind`].
pub trait TypedOperatorKind: Send + Sync {
    /// Its options, read from the workflow file; each field's comment explains it to the user.
    type Options: DeserializeOwned + JsonSchema;
    /// See [`OperatorKind::kind`].
    const KIND: &'static str;
    /// See [`OperatorKind::summary`].
    const SUMMARY: &'static str;
    /// See [`OperatorKind::inputs`].
    const INPUTS: RangeInclusive<usize> = 1..=1;
    /// See [`OperatorKind::accepts_revisions`].
    const ACCEPTS_REVISIONS: bool = false;
    /// See [`OperatorKind::facts`].
    const FACTS: OperatorFacts = OperatorFacts::DEFAULT;
    /// See [`OperatorKind::spread`]. Of options that cannot be read, all records meet in one stage.
    fn spread(options: &Self::Options) -> Spread {
        let _ = options;
        Spread::Any
    }
    /// See [`OperatorKind::bind`]; the options come with their place in the file. Gives the type of the output, and what makes
    /// instances.
    ///
    /// # Errors
    /// See [`OperatorKind::bind`].
    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Self::Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics>;
}

impl<T: TypedOperatorKind> OperatorKind for T {
    fn kind(&self) -> &'static str {
        T::KIND
    }

    fn summary(&self) -> &'static str {
        T::SUMMARY
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(T::Options)
    }

    fn inputs(&self) -> RangeInclusive<usize> {
        T::INPUTS
    }

    fn accepts_revisions(&self) -> bool {
        T::ACCEPTS_REVISIONS
    }

    fn facts(&self) -> OperatorFacts {
        T::FACTS
    }

    fn spread(&self, options: &Value) -> Spread {
        options.deserialize_into().map_or(Spread::One, |options| T::spread(&options))
    }

    fn bind(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: &Value,
    ) -> Result<BoundOperator, Diagnostics> {
        let read: T::Options = options.deserialize_into()?;
        let spread = T::spread(&read);
        let (output, make) = self.bind_typed(context, inputs, Located::new(read, options.span.clone()))?;
        Ok(BoundOperator {
            id: context.id.value.clone(),
            kind: T::KIND.to_owned(),
            output,
            computation: T::FACTS.computation,
            spread,
            model: None,
            make,
        })
    }
}

/// A kind of source. The caller adds the common settings of all sources (`key`, `rate`, `repeat`).
pub trait SourceKind: Send + Sync {
    /// Name in workflow files.
    fn kind(&self) -> &'static str;
    /// One sentence for lists of kinds.
    fn summary(&self) -> &'static str;
    /// Schema of the options, for editors and documentation.
    fn options_schema(&self) -> schemars::Schema;
    /// Facts about it.
    fn facts(&self) -> SourceFacts {
        SourceFacts::default()
    }
    /// Returns the facts about the `path` of the options that only opening shows, as the end of a sentence after "whether it".
    fn shown_by_opening(&self) -> &'static str {
        "is there and can be read"
    }
    /// Checks the options, and their files if the context [opens](Step::Open) them; `key`, `rate_per_second` of the result
    /// are not set. The type of the output is equal in both steps: it follows from the options.
    ///
    /// # Errors
    /// All errors in the options, each at its position in the workflow.
    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics>;
}

/// A kind of sink. The caller adds ground truth.
pub trait SinkKind: Send + Sync {
    /// Name in workflow files.
    fn kind(&self) -> &'static str;
    /// One sentence for lists of kinds.
    fn summary(&self) -> &'static str;
    /// Schema of the options, for editors and documentation.
    fn options_schema(&self) -> schemars::Schema;
    /// Whether it can write retractions. Default: no.
    fn accepts_revisions(&self) -> bool {
        false
    }
    /// Facts about it.
    fn facts(&self) -> SinkFacts {
        SinkFacts::default()
    }
    /// Checks the options and the type of the input; writes nothing.
    ///
    /// # Errors
    /// All errors in the options or the input, each at its position in the workflow.
    fn bind(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: &Value,
    ) -> Result<BoundSink, Diagnostics>;
}

/// A sink kind with its own type of options; it implements [`SinkKind`].
pub trait TypedSinkKind: Send + Sync {
    /// Its options, read from the workflow file; each field's comment explains it to the user.
    type Options: DeserializeOwned + JsonSchema;
    /// See [`SinkKind::kind`].
    const KIND: &'static str;
    /// See [`SinkKind::summary`].
    const SUMMARY: &'static str;
    /// See [`SinkKind::accepts_revisions`].
    const ACCEPTS_REVISIONS: bool = false;
    /// See [`SinkKind::facts`].
    const FACTS: SinkFacts = SinkFacts::DEFAULT;
    /// See [`SinkKind::bind`].
    ///
    /// # Errors
    /// See [`SinkKind::bind`].
    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Self::Options,
    ) -> Result<BoundSink, Diagnostics>;
}

impl<T: TypedSinkKind> SinkKind for T {
    fn kind(&self) -> &'static str {
        T::KIND
    }

    fn summary(&self) -> &'static str {
        T::SUMMARY
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(T::Options)
    }

    fn accepts_revisions(&self) -> bool {
        T::ACCEPTS_REVISIONS
    }

    fn facts(&self) -> SinkFacts {
        T::FACTS
    }

    fn bind(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: &Value,
    ) -> Result<BoundSink, Diagnostics> {
        self.bind_typed(context, input, options.deserialize_into()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_not_looked_for_at_sources() {
        let port = InputPort {
            from: "readings".into(),
            stream: StreamType::new([Column::new("v", ColumnType::Int64)]),
            span: Span::nowhere(),
        };
        let tensor = |t: &ColumnType| matches!(t, ColumnType::Tensor { .. });
        let error = port.column("emb", 0, &"v".into(), "tensor<int64>[8]", tensor).unwrap_err();
        let help = error.help.unwrap();
        assert!(help.contains("operator of kind `ml` with an output of tensor<int64>[8]"), "{help}");
        assert!(!help.contains("source"), "{help}");
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
