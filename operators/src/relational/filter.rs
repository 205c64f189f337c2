//! `filter`: keeps the rows for which an expression holds.
//!
//! ```yaml
//! - {id: warm, kind: filter, input: readings, options: {where: "temperature > 20 && site == 'north'"}}
//! ```
//! The expression must be a bool (see [`super::expression`] for the language). Rows for which it is false or empty
//! are counted as drops `filtered`; rows for which it fails (division by zero, an empty value) become dead letters
//! `expression_failed`. Columns and event time stay as they are. Measured: see [`super::map`].
//!
//! ```
//! use std::path::Path;
//! use tidemill_operators::kind::{InputPort, OperatorContext};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let registry = Registry::builtin();
//! let readings = InputPort {
//!     from: "readings".into(),
//!     stream: StreamType::new([Column::new("temperature", ColumnType::Float64)]),
//!     span: Span::nowhere(),
//! };
//! let id = "warm".into();
//! let context = OperatorContext::new(&id, Path::new("."));
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "where: temperature > 20")).unwrap();
//! let warm = registry.operator("filter").unwrap().bind(&context, &[readings], &options).unwrap();
//! assert_eq!(warm.output.to_string(), "{temperature: float64}");
//! ```
use super::expression::{Evaluated, Expression};
use super::{dead_row, expression_diagnostic};
use crate::api::{Instance, MakeInstance, OperatorError, Output, Stateless};
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{derive_metadata, operator_number};
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_select::filter::filter_record_batch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::types::{ColumnType, StreamType};

/// The kind `filter`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Filter;

/// Options of `filter`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Expression of type bool over the columns of the input: keeps the rows for which it is true.
    r#where: Located<String>,
}

impl TypedOperatorKind for Filter {
    type Options = Options;
    const KIND: &'static str = "filter";
    const ACCEPTS_REVISIONS: bool = true;
    const SUMMARY: &'static str = "Keeps the rows for which an expression is true.";

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let port = &inputs[0];
        let condition = Expression::compile(&options.r#where, &port.stream)
            .map_err(|e| expression_diagnostic(e, context.id, port, &options.r#where.span))?;
        if condition.result() != Some(ColumnType::Bool) {
            let found = condition.result().map_or("null".into(), |t| t.to_string());
            return Err(Diagnostic::error(
                "E0607",
                format!("`where` of `{}` must be a bool, `{}` is {found}", context.id, options.r#where),
            )
            .at(options.r#where.span.clone())
            .with_help("write a comparison, such as `temperature > 20`")
            .into());
        }
        let operator = operator_number(context.id);
        Ok((
            port.stream.clone(),
            Arc::new(move || {
                Ok(Instance::Stateless(Box::new(Running { operator, condition: condition.clone() })))
            }),
        ))
    }
}

struct Running {
    operator: u64,
    condition: Expression,
}

impl Stateless for Running {
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let Evaluated { column, failed } = self.condition.evaluate(batch, &ColumnType::Bool);
        let kept = filter_record_batch(batch, column.as_boolean())
            .map_err(|e| OperatorError::new(format!("filter: {e}")))?;
        output.drop_rows("filtered", (batch.num_rows() - kept.num_rows() - failed.len()) as u64);
        for (row, why) in failed {
            output.dead_letters.push(dead_row(batch, row, "expression_failed", why));
        }
        if kept.num_rows() == 0 {
            return Ok(());
        }
        let mut columns = derive_metadata(&kept, self.operator);
        columns.extend(kept.columns()[columns.len()..].iter().cloned());
        output.push(
            RecordBatch::try_new(kept.schema(), columns).map_err(|e| OperatorError::new(e.to_string()))?,
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Metadata, derive_id, source_id};
    use crate::relational::test::{bind, run_stateless};
    use crate::testing::{batch, only};
    use serde_json::json;
    use tidemill_spec::types::{Column, StreamType};

    fn readings() -> StreamType {
        StreamType::new([
            Column::new("temperature", ColumnType::Float64),
            Column::new("site", ColumnType::Text),
        ])
    }

    #[test]
    fn keeps_drops_and_buries() {
        let bound = bind(&Filter, &[readings()], "where: temperature * 2 > 40").unwrap();
        let rows = batch(
            &readings(),
            &[json!({"temperature": 21.0, "site": "a"}), json!({"temperature": 20.0}), json!({"site": "b"})],
        );
        let output = run_stateless(&bound, &rows);
        assert_eq!(output.batches.len(), 1);
        let kept = &output.batches[0];
        assert_eq!(kept.num_rows(), 1);
        assert_eq!(Metadata::of(kept).id(0), derive_id(operator_number("op"), &[source_id(0, 0)], 0));
        assert_eq!(output.drops, [("filtered".into(), 1)]);
        assert_eq!(output.dead_letters.len(), 1);
        let dead = &output.dead_letters[0];
        assert_eq!(
            (&*dead.reason, dead.id, dead.time),
            ("expression_failed", Some(source_id(0, 2)), Some(2))
        );
        assert_eq!(dead.detail, "column `temperature` is empty (null)");
    }

    #[test]
    fn nothing_kept_is_no_batch() {
        let bound = bind(&Filter, &[readings()], "where: 'false'").unwrap();
        let output = run_stateless(&bound, &batch(&readings(), &[json!({"temperature": 1.0})]));
        assert!(output.batches.is_empty());
    }

    #[test]
    fn errors_stand_at_their_place() {
        let error = only(bind(&Filter, &[readings()], "where: temperatur > 1").err().unwrap());
        assert_eq!((error.code, error.line(), error.column()), ("E0605", Some(1), Some(8)));
        assert_eq!(error.help.as_deref(), Some("did you mean `temperature`?"));
        let error = only(bind(&Filter, &[readings()], "where: temperature + 1").err().unwrap());
        assert_eq!(error.code, "E0607");
        let error = only(bind(&Filter, &[readings()], "wher: temperature > 1\nwhere: 'true'").err().unwrap());
        assert!(error.message.contains("wher"), "{error}");
    }
}
