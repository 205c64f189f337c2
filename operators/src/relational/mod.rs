//! Operators on columns: `filter`, `map`, `join`, `window`.
pub mod exact_sum;
pub mod expression;
pub mod filter;

pub mod map;

mod typing;

use crate::api::DeadLetter;
use crate::record::Metadata;
use crate::registry::InputPort;
use arrow_array::RecordBatch;
use expression::ExpressionError;
use tidemill_spec::diagnostic::Diagnostic;
use tidemill_spec::span::Span;

/// The dead letter of one row.
fn dead_row(batch: &RecordBatch, row: usize, reason: &'static str, detail: String) -> DeadLetter {
    let metadata = Metadata::of(batch);
    DeadLetter { id: Some(metadata.id(row)), time: Some(metadata.times.value(row)), reason, detail }
}

/// An expression's error at its place in the workflow.
fn expression_diagnostic(
    error: ExpressionError,
    operator: &str,
    port: &InputPort,
    span: &Span,
) -> Diagnostic {
    let code = if error.message.starts_with("there is no column") { "E0605" } else { "E0607" };
    let diagnostic = Diagnostic::error(code, format!("{} in `{operator}`", error.message))
        .at(span.clone())
        .with_label(format!("`{}` sends {}", port.from, port.stream));
    match error.help {
        Some(help) => diagnostic.with_help(help),
        None => diagnostic,
    }
}

#[cfg(test)]
pub(crate) mod test {
    use crate::api::{BoundOperator, Instance, Output};
    use crate::registry::{InputPort, OperatorContext, OperatorKind};
    use crate::testing::{id, options};
    use arrow_array::RecordBatch;
    use std::path::Path;
    use tidemill_spec::diagnostic::Diagnostics;
    use tidemill_spec::span::Span;
    use tidemill_spec::types::StreamType;

    /// Binds an operator `op` whose inputs come from `input0`, `input1`.
    pub(crate) fn bind(
        kind: &dyn OperatorKind,
        inputs: &[StreamType],
        yaml: &str,
    ) -> Result<BoundOperator, Diagnostics> {
        let ports: Vec<InputPort> = inputs
            .iter()
            .enumerate()
            .map(|(i, stream)| InputPort {
                from: format!("input{i}"),
                stream: stream.clone(),
                span: Span::nowhere(),
            })
            .collect();
        let id = id("op");
        let context =
            OperatorContext { id: &id, base: Path::new("."), variants: &[], variant: None, backend: None };
        kind.bind(&context, &ports, &options(yaml))
    }

    /// Runs a stateless operator on one batch.
    pub(crate) fn run_stateless(bound: &BoundOperator, batch: &RecordBatch) -> Output {
        let Ok(Instance::Stateless(mut instance)) = (bound.make)() else { panic!("a stateless operator") };
        let mut output = Output::default();
        instance.process(batch, &mut output).unwrap();
        for batch in &output.batches {
            assert_eq!(batch.schema(), crate::record::record_schema(&bound.output));
        }
        output
    }
}
