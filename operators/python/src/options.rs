//! Options of the kind, and the names of types in them.
use crate::started::Names;
use schemars::JsonSchema;
use serde::Deserialize;
use tidemill_operators::kind::InputPort;
use tidemill_spec::diagnostic::Diagnostic;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_spec::units::TimeSpan;
use tidemill_spec::value::{Node, Value};

/// Reaction to a record that fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnError {
    /// It becomes a dead letter.
    #[default]
    DeadLetter,
    /// It is tried again, as often as `restart` says, and then becomes a dead letter.
    Retry,
    /// The run stops.
    Stop,
}

/// Options of `python`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// A file in Python, relative to the workflow file, or the name of a module.
    pub(crate) module: Located<String>,
    /// Further files and folders that the module needs, relative to the workflow file: they go to the workers of a cluster with it.
    #[serde(default)]
    pub(crate) files: Vec<Located<String>>,
    /// Name of a function of the module: it gets one record, or a batch, and keeps nothing.
    #[serde(default)]
    pub(crate) function: Option<Located<String>>,
    /// Name of a class of the module, instead of `function`: its object has a method `process` and may keep a state.
    #[serde(default)]
    pub(crate) class: Option<Located<String>>,
    /// Columns of the output with their types, as in `{camera: text, score: float64}`. Default: those of the annotation of the
    /// function's result.
    #[serde(default)]
    pub(crate) output: Option<Declared>,
    /// Whether the function gets batches; its annotation can say that too. Default: false.
    #[serde(default)]
    pub(crate) batch: bool,
    /// The interpreter, or the folder of a virtual environment, relative to the workflow file. Default: python3.
    #[serde(default)]
    pub(crate) python: Option<Located<String>>,
    /// Processes that compute batches of a function at once. Default: 1.
    #[serde(default)]
    pub(crate) processes: Option<Located<u32>>,
    /// Most batches of a function that are computed or wait for earlier ones. Default: as many as the engine finds useful.
    #[serde(default)]
    pub(crate) max_in_flight: Option<Located<u32>>,
    /// Whether results of several processes leave in the order of the records. Default: true.
    #[serde(default)]
    pub(crate) ordered: Option<Located<bool>>,
    /// Longest time for a record, or for a batch of a function over batches; then the process is ended. Default: 60s.
    #[serde(default)]
    pub(crate) timeout: Option<Located<TimeSpan>>,
    /// Records in a row that may end their process before the run stops; with `on_error: retry` also the number of further tries.
    /// Default: 3.
    #[serde(default)]
    pub(crate) restart: Option<u32>,
    /// Reaction to a record that fails: `dead_letter`, `retry`, `stop`. Default: dead_letter.
    #[serde(default)]
    pub(crate) on_error: OnError,
    /// For a class: a text, int64 or bool column of input and output. Records with the same value meet in one object, so that several
    /// stages can share the work. Default: none; all records meet.
    #[serde(default)]
    pub(crate) group: Option<Located<String>>,
}

/// Columns with their types, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Declared(pub(crate) Vec<(Located<String>, Located<String>)>);

impl<'de> Deserialize<'de> for Declared {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let wrong = |value: &Value| {
            let found = value.kind();
            serde::de::Error::custom(format!(
                "found {found}, expected columns with their types, such as `{{camera: text, score: float64}}`"
            ))
        };
        let Node::Map(entries) = &value.node else { return Err(wrong(&value)) };
        let column = |entry: &tidemill_spec::value::Entry| {
            let text = entry.value.as_str().ok_or_else(|| wrong(&entry.value))?;
            let name = Located::new(entry.key.value.clone(), entry.key.span.clone());
            Ok((name, Located::new(text.to_owned(), entry.value.span.clone())))
        };
        entries.iter().map(column).collect::<Result<_, _>>().map(Self)
    }
}

impl JsonSchema for Declared {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Declared".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "additionalProperties": {
                "type": "string",
                "pattern": r"^(text|int64|float64|bool|image|audio|bytes|tensor<(float32|float16|float64|int64|int32|int8|uint8)>\[[0-9, ]*\])$"
            }
        })
    }
}

impl Declared {
    /// The columns of the output.
    ///
    /// # Errors
    /// Names that no column can have, types that do not exist, each at its place.
    pub(crate) fn stream(&self) -> Result<StreamType, tidemill_spec::diagnostic::Diagnostics> {
        let mut errors = tidemill_spec::diagnostic::Diagnostics::new();
        let mut columns = Vec::new();
        for (name, written) in &self.0 {
            if name.is_empty() || name.starts_with('_') {
                let text = format!("`{name}` cannot be the name of a column");
                let help = "choose a name that does not start with `_`, such as `value`";
                errors.push(Diagnostic::error("E0606", text).at(name.span.clone()).with_help(help));
            }
            match ColumnType::named(written).filter(is_known) {
                Some(column_type) => columns.push(Column::new(name.value.clone(), column_type)),
                None => errors.push(
                    Diagnostic::error("E0606", format!("`{written}` is no type of a column"))
                        .at(written.span.clone())
                        .with_help(
                            "write text, int64, float64, bool, image, audio, bytes or tensor<float32>[2, 3]",
                        ),
                ),
            }
        }
        errors.into_result(StreamType::new(columns))
    }
}

/// Whether the package for Python has this type.
fn is_known(column_type: &ColumnType) -> bool {
    !matches!(column_type, ColumnType::Tensor { element: ElementType::Bool | ElementType::Text, .. })
}

impl Options {
    /// The options that name the code.
    pub(crate) fn names(&self) -> Names<'_> {
        let target = self.function.as_ref().or(self.class.as_ref()).unwrap_or(&self.module);
        Names { module: &self.module, target, python: self.python.as_ref() }
    }

    /// Name of the function or class, and whether it is a class.
    ///
    /// # Errors
    /// Both or neither is given, or options of the other one.
    pub(crate) fn target(&self, module: &Located<String>) -> Result<(&Located<String>, bool), Diagnostic> {
        let target = match (&self.function, &self.class) {
            (Some(function), None) => (function, false),
            (None, Some(class)) => (class, true),
            (Some(_), Some(class)) => {
                let text = "a step is a function or a class, and both are given";
                let help = "remove `function`, or `class`";
                return Err(Diagnostic::error("E0606", text).at(class.span.clone()).with_help(help));
            }
            (None, None) => {
                let text = format!("nothing says what of `{module}` to call");
                let help = "add `function: NAME`, or `class: NAME` for a step with a state";
                return Err(Diagnostic::error("E0606", text).at(module.span.clone()).with_help(help));
            }
        };
        let of_functions = [
            ("processes", self.processes.as_ref().map(|option| &option.span)),
            ("max_in_flight", self.max_in_flight.as_ref().map(|option| &option.span)),
            ("ordered", self.ordered.as_ref().map(|option| &option.span)),
        ];
        if target.1
            && let Some((key, span)) = of_functions.into_iter().find_map(|(key, span)| Some((key, span?)))
        {
            let text = format!("`{key}` is for functions, and `{}` is a class with a state", target.0);
            let help = format!(
                "remove `{key}`; `group: COLUMN` lets several stages of a plan share the work by that column"
            );
            return Err(Diagnostic::error("E0606", text).at(span.clone()).with_help(help));
        }
        if let Some(group) = self.group.as_ref().filter(|_| !target.1) {
            let text =
                format!("`group` is for classes, and `{}` is a function, which keeps nothing", target.0);
            return Err(Diagnostic::error("E0606", text).at(group.span.clone()).with_help("remove `group`"));
        }
        for count in [&self.processes, &self.max_in_flight].into_iter().flatten() {
            if count.value == 0 || count.value > 1024 {
                let text = format!("{} is not possible here", count.value);
                let help = "write a number from 1 to 1024";
                return Err(Diagnostic::error("E0606", text).at(count.span.clone()).with_help(help));
            }
        }
        if let Some(timeout) = self.timeout.as_ref().filter(|timeout| timeout.value.0 < 1_000_000) {
            let text = format!("a `timeout` of {} is too short for any process", timeout.value);
            let help = "write at least 1ms, for instance 30s";
            return Err(Diagnostic::error("E0606", text).at(timeout.span.clone()).with_help(help));
        }
        Ok(target)
    }

    /// Checks the column by which an object's records meet.
    ///
    /// # Errors
    /// It is not in the input or not in the output, or no key.
    pub(crate) fn check_group(
        &self,
        id: &str,
        port: &InputPort,
        output: &StreamType,
    ) -> Result<(), Diagnostic> {
        let Some(group) = &self.group else { return Ok(()) };
        let is_key =
            |found: &ColumnType| matches!(found, ColumnType::Text | ColumnType::Int64 | ColumnType::Bool);
        let (_, column) = port.column(id, 0, group, "text, int64 or bool", is_key)?;
        if output.column(group).is_some_and(|sent| sent.column_type == column.column_type) {
            return Ok(());
        }
        let text =
            format!("`{id}` groups by `{group}`, which is not in its output as {}", column.column_type);
        let help =
            format!("add `{group}: {}` to `output`, and give the value of the input", column.column_type);
        Err(Diagnostic::error("E0606", text).at(group.span.clone()).with_help(help))
    }
}
