//! The kind: options and types are checked, the step is started and asked for its annotations.
//!
//! ```
//! use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind, Step};
//! use tidemill_python::PythonKind;
//! use tidemill_spec::span::{SourceFile, Span};
//! use tidemill_spec::types::{Column, ColumnType, StreamType};
//! let stream = StreamType::new([Column::new("celsius", ColumnType::Float64)]);
//! let port = InputPort { from: "readings".into(), stream, span: Span::nowhere() };
//! let yaml = "{module: ops.py, function: warm, output: {fahrenheit: float64}}";
//! let options = tidemill_spec::yaml::parse(&SourceFile::new("workflow.yaml", yaml))?;
//! let id = "warm".into();
//! let context = OperatorContext { step: Step::Check, ..OperatorContext::new(&id, std::path::Path::new(".")) };
//! let bound = PythonKind::default().bind(&context, &[port], &options)?;
//! assert_eq!(bound.output.to_string(), "{fahrenheit: float64}");
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use crate::caller::{Caller, Setup};
use crate::function::Function;
use crate::interpreter;
use crate::launch::Launch;
use crate::object::Object;
use crate::options::{Declared, Options};
use crate::protocol::Role;
use crate::started::{Started, Starts, are_there, not_started, output_type};
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::{
    BoundOperator, Computation, Concurrency, Instance, MakeInstance, OperatorError, Spread,
};
use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind, Step};
use tidemill_operators::record::record_schema;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::{Columns, OperatorFacts};
use tidemill_spec::span::Located;
use tidemill_spec::types::StreamType;
use tidemill_spec::value::Value;

/// Time for a record or batch, if the options do not say it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Records in a row that may end their process, if the options do not say it.
const RESTART: u32 = 3;

/// The kind `python`; see the crate. Clones share the processes that were started to check steps.
#[derive(Clone, Default)]
pub struct PythonKind {
    starts: Starts,
}

impl OperatorKind for PythonKind {
    fn kind(&self) -> &'static str {
        "python"
    }

    fn summary(&self) -> &'static str {
        "Calls a function or an object in Python with every record, in a process of its own."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> OperatorFacts {
        OperatorFacts {
            computation: Computation::Inference,
            reads: &["module", "files"],
            ..OperatorFacts::DEFAULT
        }
    }

    fn facts_of(&self, options: &Value) -> OperatorFacts {
        match options.get("class") {
            Some(_) => OperatorFacts { computation: Computation::Stateful, ..self.facts() },
            None => self.facts(),
        }
    }

    fn spread(&self, options: &Value) -> Spread {
        match (options.get("class"), options.get("group").and_then(Value::as_str)) {
            // Any column may be computed, also one with the name of a column of the input.
            (None, _) => Spread::Computes(Columns { computed: Vec::new(), sent: Some(Vec::new()) }),
            (Some(_), group) => Spread::by_group(group),
        }
    }

    fn bind(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: &Value,
    ) -> Result<BoundOperator, Diagnostics> {
        let (computation, spread) = (self.facts_of(options).computation, self.spread(options));
        let written: Options = options.deserialize_into()?;
        let (target, is_class) = written.target(&written.module)?;
        let port = &inputs[0];
        no_models(context)?;
        let declared = written.output.as_ref().map(Declared::stream).transpose()?;
        if let Some(output) = &declared {
            written.check_group(context.id, port, output)?;
        }
        let (output, make) = match context.step {
            Step::Check => {
                let output = declared.ok_or_else(|| unknown_types(context, &written.module))?;
                (output, unopened(context))
            }
            Step::Open => {
                are_there(context.base, &written.files)?;
                let launch = Launch {
                    operator: context.id.value.clone(),
                    interpreter: interpreter::find(
                        written.python.as_deref().map(String::as_str),
                        context.base,
                    ),
                    arguments: None,
                    folder: context.base.to_owned(),
                    module: written.module.value.clone(),
                    name: target.value.clone(),
                    is_class,
                    batch: written.batch,
                    role: Role::Step,
                    parameters: serde_json::Value::Null,
                    input: port.stream.clone(),
                    output: declared.clone(),
                    timeout: written.timeout.as_ref().map_or(TIMEOUT, |it| Duration::from_nanos(it.value.0)),
                };
                let started = self
                    .starts
                    .start(&launch)
                    .map_err(|error| not_started(context.id, &written.names(), &error))?;
                let output = output_type(
                    context.id,
                    &written.names(),
                    (written.output.as_ref(), declared),
                    &started.greeting,
                )?;
                written.check_group(context.id, port, &output)?;
                (output.clone(), make(launch, &written, output, started))
            }
        };
        Ok(BoundOperator {
            id: context.id.value.clone(),
            kind: self.kind().to_owned(),
            output,
            computation,
            spread,
            model: None,
            make,
        })
    }
}

/// Makes instances: each takes the process that is ready, or starts one.
fn make(launch: Launch, options: &Options, output: StreamType, started: Arc<Started>) -> MakeInstance {
    let concurrency = Concurrency {
        copies: options.processes.as_ref().map_or(1, |number| number.value as usize),
        in_flight: options.max_in_flight.as_ref().map(|number| number.value as usize),
        is_ordered: options.ordered.as_ref().is_none_or(|ordered| ordered.value),
    };
    let (is_class, has_advance, has_state) =
        (launch.is_class, started.greeting.has_advance, started.greeting.has_state);
    let setup = Arc::new(Setup {
        launch: Launch { output: Some(output.clone()), ..launch },
        schema: record_schema(&output),
        output,
        restart: options.restart.unwrap_or(RESTART),
        on_error: options.on_error,
        first: Arc::clone(&started.first),
    });
    Arc::new(move || {
        // The bound operator keeps what was found at the start.
        let _ = &started;
        let caller = Caller::new(Arc::clone(&setup))?;
        Ok(match is_class {
            true => Instance::Stateful(Box::new(Object::new(caller, has_state, has_advance))),
            false => Instance::Inference(Box::new(Function { caller, concurrency })),
        })
    })
}

fn unopened(context: &OperatorContext<'_>) -> MakeInstance {
    let text = format!("`{}` was checked, but its module is not opened here", context.id);
    Arc::new(move || Err(OperatorError::new(text.clone())))
}

fn no_models(context: &OperatorContext<'_>) -> Result<(), Diagnostic> {
    let Some(variant) = context.variants.first() else { return Ok(()) };
    let text = format!("`{}` runs a step in Python: `variants` has no effect on kind `python`", context.id);
    Err(Diagnostic::error("E0613", text)
        .at(variant.span.clone())
        .with_help("remove `variants`, or write `kind: ml`"))
}

/// The error for a step whose types only its annotations say, where it is not started.
fn unknown_types(context: &OperatorContext<'_>, module: &Located<String>) -> Diagnostic {
    let text = format!(
        "the columns that `{}` gives are not known here: no Python is started for this check",
        context.id
    );
    Diagnostic::error("E0617", text).at(module.span.clone()).with_help(
        "add `output` with the columns and their types, such as `output: {camera: text, score: float64}`",
    )
}
