//! The kind `python` of sinks: a function, or an object with a method `write`.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort, SinkKind, Step};
//! use tidemill_python::PythonSink;
//! use tidemill_spec::span::{SourceFile, Span};
//! use tidemill_spec::types::{Column, ColumnType, StreamType};
//! let stream = StreamType::new([Column::new("celsius", ColumnType::Float64)]);
//! let port = InputPort { from: "readings".into(), stream, span: Span::nowhere() };
//! let options = tidemill_spec::yaml::parse(&SourceFile::new("workflow.yaml", "{module: ops.py, function: send}"))?;
//! let id = "send".into();
//! let context = EndContext { step: Step::Check, ..EndContext::new(&id, std::path::Path::new(".")) };
//! assert!(PythonSink::default().bind(&context, &port, &options)?.files.is_empty());
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use crate::interpreter;
use crate::launch::Launch;
use crate::process::Process;
use crate::protocol::Role;
use crate::source::{RESTART, parameters, target};
use crate::started::{Names, Starts, are_there, not_started};
use crate::writer::{Target, Writer};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tidemill_operators::api::{BoundSink, OperatorError, Sink};
use tidemill_operators::kind::{EndContext, InputPort, SinkKind};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;
use tidemill_spec::span::Located;
use tidemill_spec::types::StreamType;
use tidemill_spec::units::TimeSpan;
use tidemill_spec::value::Value;

/// Time for a batch, if the options do not say it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The kind; see the module.
#[derive(Clone, Default)]
pub struct PythonSink {
    starts: Starts,
}

/// Options of the sink.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// A file in Python, relative to the workflow file, or the name of a module. Default: none; the rows go to the program that runs
    /// the workflow, `tidemill.run(workflow)`.
    #[serde(default)]
    module: Option<Located<String>>,
    /// Further files and folders that the module needs, relative to the workflow file: they go to the workers of a cluster with it.
    #[serde(default)]
    files: Vec<Located<String>>,
    /// Name of a function of the module: it gets one record, or a batch.
    #[serde(default)]
    function: Option<Located<String>>,
    /// Name of a class of the module, instead of `function`: its object has a method `write`, and may have `commit`, `committed` and
    /// `close`.
    #[serde(default)]
    class: Option<Located<String>>,
    /// Keyword arguments of the class.
    #[serde(default)]
    arguments: BTreeMap<String, serde_json::Value>,
    /// Whether it gets batches; its annotation can say that too. Default: false.
    #[serde(default)]
    batch: bool,
    /// The interpreter, or the folder of a virtual environment, relative to the workflow file. Default: python3.
    #[serde(default)]
    python: Option<Located<String>>,
    /// Longest time for a batch or a commit; then the process is ended. Default: 60s.
    #[serde(default)]
    timeout: Option<Located<TimeSpan>>,
    /// Faults in a row after which the run stops. Default: 3.
    #[serde(default)]
    restart: Option<u32>,
}

impl SinkKind for PythonSink {
    fn kind(&self) -> &'static str {
        "python"
    }

    fn summary(&self) -> &'static str {
        "Gives the rows to a function or an object in Python, in a process of its own."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SinkFacts {
        SinkFacts {
            publication: Publication::EachEpoch,
            writes: &[],
            reads: &["module", "files"],
            ..SinkFacts::DEFAULT
        }
    }

    fn bind(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: &Value,
    ) -> Result<BoundSink, Diagnostics> {
        let written: Options = options.deserialize_into()?;
        let Some(module) = &written.module else {
            let text = format!(
                "sink `{}` has no `module`: its rows go to a program in Python, `for record in tidemill.run(workflow)`",
                context.id
            );
            let make = Arc::new(move || Err(OperatorError::new(text.clone())));
            return Ok(context.sink("python", input, Vec::new(), make));
        };
        let (target, is_class) = target(module, written.function.as_ref(), written.class.as_ref())?;
        if !context.opens() {
            let text = format!("`{}` was checked, but its module is not opened here", context.id);
            let make = Arc::new(move || Err(OperatorError::new(text.clone())));
            return Ok(context.sink("python", input, Vec::new(), make));
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
            role: Role::Sink,
            parameters: parameters(&written.arguments),
            input: input.stream.clone(),
            output: Some(StreamType::default()),
            timeout: written
                .timeout
                .as_ref()
                .map_or(TIMEOUT, |timeout| Duration::from_nanos(timeout.value.0)),
        };
        let names = Names { module, target, python: written.python.as_ref() };
        let started = self.starts.start(&launch).map_err(|error| not_started(context.id, &names, &error))?;
        let greeting = started.greeting.clone();
        let open = move || {
            let ready = started.first.lock().unwrap_or_else(PoisonError::into_inner).take();
            ready.map_or_else(|| Process::start(&launch), Ok)
        };
        let to = Arc::new(Target {
            id: context.id.value.clone(),
            open: Arc::new(open),
            restart: written.restart.unwrap_or(RESTART),
            is_caller: false,
        });
        let exactly_once = greeting.has_commit && greeting.committed.is_some();
        let first = Arc::clone(&to);
        let make = Arc::new(move || Ok(Box::new(Writer::new(Arc::clone(&first), None)?) as Box<dyn Sink>));
        let mut bound = context.sink("python", input, Vec::new(), make);
        if exactly_once {
            bound.durable = Some(Arc::new(move |token: Option<&[u8]>| {
                Ok(Box::new(Writer::new(Arc::clone(&to), token)?) as Box<dyn Sink>)
            }));
        }
        Ok(bound)
    }
}
