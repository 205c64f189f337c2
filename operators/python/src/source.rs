//! The kind `python` of sources: a generator function, or an object that can be iterated.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, SourceKind, Step};
//! use tidemill_python::PythonSource;
//! use tidemill_spec::span::SourceFile;
//! let yaml = "{module: ops.py, function: readings, output: {celsius: float64}}";
//! let options = tidemill_spec::yaml::parse(&SourceFile::new("workflow.yaml", yaml))?;
//! let id = "readings".into();
//! let context = EndContext { step: Step::Check, ..EndContext::new(&id, std::path::Path::new(".")) };
//! let bound = PythonSource::default().bind(&context, &options)?;
//! assert_eq!(bound.output.to_string(), "{celsius: float64}");
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use crate::interpreter;
use crate::launch::Launch;
use crate::options::Declared;
use crate::process::Process;
use crate::protocol::Role;
use crate::reader::{Origin, Reader};
use crate::started::{Names, Starts, are_there, not_started, output_type};
use crate::times::{TimeUnit, Times};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tidemill_operators::api::{BoundSource, OperatorError, Source};
use tidemill_operators::kind::{EndContext, SourceKind};
use tidemill_operators::record::payload_schema;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::StreamType;
use tidemill_spec::units::TimeSpan;
use tidemill_spec::value::Value;

/// Faults in a row, if the options do not say it.
pub(crate) const RESTART: u32 = 3;
/// Time for an answer of the process beside the time that it may wait for records.
pub(crate) const ANSWER: Duration = Duration::from_secs(60);

/// The kind; see the module.
#[derive(Clone, Default)]
pub struct PythonSource {
    starts: Starts,
}

/// Options of the source.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// A file in Python, relative to the workflow file, or the name of a module. Default: none; the records come from the program
    /// that runs the workflow, `tidemill.run(workflow, inputs={...})`.
    #[serde(default)]
    module: Option<Located<String>>,
    /// Further files and folders that the module needs, relative to the workflow file: they go to the workers of a cluster with it.
    #[serde(default)]
    files: Vec<Located<String>>,
    /// Name of a generator function of the module: it yields records or batches.
    #[serde(default)]
    function: Option<Located<String>>,
    /// Name of a class of the module, instead of `function`: its object can be iterated. With `position` and `seek` its records can
    /// be read again after a fault.
    #[serde(default)]
    class: Option<Located<String>>,
    /// Keyword arguments of the function or class.
    #[serde(default)]
    arguments: BTreeMap<String, serde_json::Value>,
    /// Columns with their types, as in `{camera: text, score: float64}`. Default: those of the annotation of the function's result.
    #[serde(default)]
    output: Option<Declared>,
    /// Whether dictionaries that are yielded are columns of many records; an annotation can say that too. Default: false.
    #[serde(default)]
    batch: bool,
    /// The interpreter, or the folder of a virtual environment, relative to the workflow file. Default: python3.
    #[serde(default)]
    python: Option<Located<String>>,
    /// Longest time without a record; then the process is ended. Default: none.
    #[serde(default)]
    timeout: Option<Located<TimeSpan>>,
    /// Faults in a row after which the run stops, for a class with `position` and `seek`. Default: 3.
    #[serde(default)]
    restart: Option<u32>,
    /// Column with the event time, of type int64 or float64. Default: none; record number i has the time i / `rate`, or i
    /// milliseconds without a rate.
    #[serde(default)]
    event_time: Option<Located<String>>,
    /// Unit of event times, counted from 1970: s, ms, us or ns. Default: ms.
    #[serde(default)]
    time_unit: Option<TimeUnit>,
    /// Longest time by which a record may be older than the newest event time. Default: 0s.
    #[serde(default)]
    out_of_order: TimeSpan,
}

impl SourceKind for PythonSource {
    fn kind(&self) -> &'static str {
        "python"
    }

    fn summary(&self) -> &'static str {
        "Records that a generator in Python yields, in a process of its own."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { reads: &["module", "files"], ..SourceFacts::DEFAULT }
    }

    fn shown_by_opening(&self) -> &'static str {
        "starts"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let written: Options = options.deserialize_into()?;
        let declared = written.output.as_ref().map(Declared::stream).transpose()?;
        let Some(module) = &written.module else { return given(context, &written, declared) };
        let (target, is_class) = target(module, written.function.as_ref(), written.class.as_ref())?;
        let names = Names { module, target, python: written.python.as_ref() };
        if !context.opens() {
            let Some(output) = declared else {
                let text = format!(
                    "the columns that `{}` gives are not known here: no Python is started for this check",
                    context.id
                );
                let help = "add `output` with the columns and their types, such as `output: {camera: text, score: float64}`";
                return Err(Diagnostic::error("E0617", text).at(module.span.clone()).with_help(help).into());
            };
            let times = written.times(&output)?;
            return Ok(bound(context, output, times.is_some(), &written, unopened(context)));
        }
        are_there(context.base, &written.files)?;
        let launch = Launch {
            operator: context.id.value.clone(),
            interpreter: interpreter::find(written.python.as_deref().map(String::as_str), context.base),
            arguments: None,
            folder: context.base.to_owned(),
            module: module.value.clone(),
            name: target.value.clone(),
            is_class,
            batch: written.batch,
            role: Role::Source,
            parameters: parameters(&written.arguments),
            input: StreamType::default(),
            output: declared.clone(),
            timeout: ANSWER,
        };
        let started = self.starts.start(&launch).map_err(|error| not_started(context.id, &names, &error))?;
        let output = output_type(context.id, &names, (written.output.as_ref(), declared), &started.greeting)?;
        let times = written.times(&output)?;
        let has_position = started.greeting.has_position;
        let launch = Launch { output: Some(output.clone()), ..launch };
        let open = move || {
            let ready = started.first.lock().unwrap_or_else(PoisonError::into_inner).take();
            ready.map_or_else(|| Process::start(&launch), Ok)
        };
        let origin = Arc::new(Origin {
            id: context.id.value.clone(),
            schema: payload_schema(&output),
            output: output.clone(),
            times,
            open: Arc::new(open),
            restart: written.restart.unwrap_or(RESTART),
            timeout: written.timeout.as_ref().map(|timeout| Duration::from_nanos(timeout.value.0)),
            has_position,
        });
        let make = Arc::new(move || Ok(Box::new(Reader::new(Arc::clone(&origin))) as Box<dyn Source>));
        let mut bound = bound(context, output, times.is_some(), &written, make);
        if !has_position {
            bound.stream = Some(format!("what `{target}` of `{module}` yields"));
        }
        Ok(bound)
    }
}

impl Options {
    fn times(&self, output: &StreamType) -> Result<Option<Times>, Diagnostic> {
        let unit = self.time_unit.unwrap_or_default();
        self.event_time.as_ref().map(|name| Times::of(name, unit, output)).transpose()
    }
}

/// A source whose records the program gives that runs the workflow: it is attached instead of this one's instances.
fn given(
    context: &EndContext<'_>,
    written: &Options,
    declared: Option<StreamType>,
) -> Result<BoundSource, Diagnostics> {
    let Some(output) = declared else {
        let text = format!("source `{}` has neither `module` nor `output`", context.id);
        let help = "add `module: ops.py` and `function: NAME`; or, for records that `tidemill.run(inputs={...})` gives, \
                    `output: {site: text, celsius: float64}`";
        return Err(Diagnostic::error("E0606", text).at(context.id.span.clone()).with_help(help).into());
    };
    let times = written.times(&output)?;
    let text = format!(
        "source `{0}` has no `module`: its records come from a program in Python, `tidemill.run(workflow, \
         inputs={{\"{0}\": records}})`",
        context.id
    );
    let make = Arc::new(move || Err(OperatorError::new(text.clone())));
    let mut bound = bound(context, output, times.is_some(), written, make);
    bound.stream = Some("what the program gives that runs the workflow".to_owned());
    Ok(bound)
}

fn bound(
    context: &EndContext<'_>,
    output: StreamType,
    has_event_times: bool,
    written: &Options,
    make: tidemill_operators::api::MakeSource,
) -> BoundSource {
    let mut bound = context.source("python", output, make);
    bound.has_event_times = has_event_times;
    bound.out_of_order_microseconds = i64::try_from(written.out_of_order.0 / 1000).unwrap_or(i64::MAX);
    bound
}

fn unopened(context: &EndContext<'_>) -> tidemill_operators::api::MakeSource {
    let text = format!("`{}` was checked, but its module is not opened here", context.id);
    Arc::new(move || Err(OperatorError::new(text.clone())))
}

/// The function or class, and whether it is a class.
pub(crate) fn target<'a>(
    module: &Located<String>,
    function: Option<&'a Located<String>>,
    class: Option<&'a Located<String>>,
) -> Result<(&'a Located<String>, bool), Diagnostic> {
    match (function, class) {
        (Some(function), None) => Ok((function, false)),
        (None, Some(class)) => Ok((class, true)),
        (Some(_), Some(class)) => {
            let text = "a function or a class is called, and both are given";
            let help = "remove `function`, or `class`";
            Err(Diagnostic::error("E0606", text).at(class.span.clone()).with_help(help))
        }
        (None, None) => {
            let text = format!("nothing says what of `{module}` to call");
            let help = "add `function: NAME`, or `class: NAME`";
            Err(Diagnostic::error("E0606", text).at(module.span.clone()).with_help(help))
        }
    }
}

/// Keyword arguments as an object in JSON.
pub(crate) fn parameters(arguments: &BTreeMap<String, serde_json::Value>) -> serde_json::Value {
    serde_json::Value::Object(arguments.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}
