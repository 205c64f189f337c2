//! `map`: computes new columns from the columns of a row.
//!
//! ```yaml
//! - id: celsius
//!   kind: map
//!   input: readings
//!   options:
//!     columns:
//!       fahrenheit: "temperature * 1.8 + 32"        # the type follows from the expression
//!       count: {expression: "n + 1", type: float64} # or is said; int64 becomes float64 where asked for
//!     keep: [sensor]                                # input columns that stay; default all
//! ```
//! An expression may also give a tensor: `best: top_k(scores, 3)`, `first: boxes[0]`. The type of such a column follows
//! from the expression.
//!
//! New columns come after the kept ones; a new column with the name of a kept one takes its place. Rows for which an
//! expression fails (division by zero, an empty value) become dead letters `expression_failed`. The language is
//! described in [`super::expression`].
//!
//! Measured in the `dev` profile on one core of a shared two-core machine, batches of 8 192 rows (`cargo nextest run
//! -p tidemill-operators --run-ignored only --no-capture nanoseconds`): `temperature * 1.8 + 32` takes about 75 ns a
//! row, the filter `temperature > 20` about 70 ns, `temperature > 20 && site == 'north'` about 90 ns. Most of that is
//! the new ids and, for a filter, copying the kept rows.
//!
//! ```
//! use std::path::Path;
//! use tidemill_operators::kind::{InputPort, OperatorContext};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let registry = Registry::builtin();
//! let readings = InputPort {
//!     from: "readings".into(),
//!     stream: StreamType::new([Column::new("temperature", ColumnType::Float64), Column::new("site", ColumnType::Text)]),
//!     span: Span::nowhere(),
//! };
//! let id = "celsius".into();
//! let context = OperatorContext::new(&id, Path::new("."));
//! let yaml = "columns: {fahrenheit: temperature * 1.8 + 32}\nkeep: [site]";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", yaml)).unwrap();
//! let mapped = registry.operator("map").unwrap().bind(&context, &[readings], &options).unwrap();
//! assert_eq!(mapped.output.to_string(), "{site: text, fahrenheit: float64}");
//! ```
use super::expression::{self, Evaluated, Expression};
use super::{dead_row, expression_diagnostic};
use crate::api::{Instance, MakeInstance, OperatorError, Output, Spread, Stateless};
use crate::columns::{ScalarType, declared_name};
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{METADATA_COLUMNS, derive_metadata, operator_number, record_schema};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::Columns;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::value::{Entry, Node, Value};

/// The kind `map`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Map;

/// Options of `map`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// New columns by name: an expression, or `{expression: ..., type: ...}`.
    #[schemars(with = "BTreeMap<String, ColumnSchema>")]
    columns: Value,
    /// Columns of the input that stay, in this order. Default: all.
    #[serde(default)]
    keep: Option<Vec<Located<String>>>,
}

/// Only for the schema: the two forms of a column.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code)] // read by the derive
enum ColumnSchema {
    Short(String),
    Long(LongColumn),
}

/// A column with its type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LongColumn {
    /// The expression.
    expression: Located<String>,
    /// Type of the column: text, int64, float64 or bool. Default: that of the expression.
    #[serde(default)]
    r#type: Option<Located<ScalarType>>,
}

impl TypedOperatorKind for Map {
    type Options = Options;
    const KIND: &'static str = "map";
    const ACCEPTS_REVISIONS: bool = true;
    const SUMMARY: &'static str = "Computes new columns from the columns of a row.";

    fn spread(options: &Options) -> Spread {
        let Node::Map(entries) = &options.columns.node else { return Spread::One };
        let computed = entries.iter().filter(|entry| !is_the_column(&entry.key, &entry.value));
        let name = |entry: &Entry| entry.key.value.clone();
        let computed: Vec<String> = computed.map(name).collect();
        let kept = options.keep.as_ref().map(|names| names.iter().map(|name| name.value.clone()));
        let sent: Option<Vec<String>> = kept.map(|kept| kept.chain(entries.iter().map(name)).collect());
        match computed.is_empty() && sent.is_none() {
            true => Spread::Any,
            false => Spread::Computes(Columns { computed, sent }),
        }
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let port = &inputs[0];
        let mut errors = Diagnostics::new();
        let mut columns: Vec<(Column, Origin)> = Vec::new();
        match &options.keep {
            None => {
                let all = port.stream.columns.iter().cloned().enumerate();
                columns.extend(all.map(|(i, column)| (column, Origin::Kept(METADATA_COLUMNS + i))));
            }
            Some(names) => {
                for name in names {
                    match port.column(context.id, 0, name, "any type", |_| true) {
                        Ok((index, _)) if columns.iter().any(|(c, _)| c.name == name.value) => {
                            let message =
                                format!("column `{name}` is kept twice (column {index} of the input)");
                            errors.push(Diagnostic::error("E0606", message).at(name.span.clone()));
                        }
                        Ok((index, column)) => {
                            columns.push((column.clone(), Origin::Kept(METADATA_COLUMNS + index)));
                        }
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
        let Node::Map(entries) = &options.columns.node else {
            return Err(options
                .columns
                .error("E0606", format!("`columns` is {}, expected a map", options.columns.kind()))
                .with_help("write `columns: {fahrenheit: \"temperature * 1.8 + 32\"}`")
                .into());
        };
        for entry in entries {
            match new_column(context, port, &entry.key, &entry.value) {
                Ok((column, expression)) => {
                    let place = columns.iter().position(|(c, _)| c.name == column.name);
                    let new = (column, Origin::Computed(expression));
                    match place {
                        Some(index) => columns[index] = new,
                        None => columns.push(new),
                    }
                }
                Err(found) => errors.append(found),
            }
        }
        errors.into_result(())?;
        let (columns, origins): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let output = StreamType::new(columns).with_revisions(port.stream.revised);
        let schema = record_schema(&output);
        let operator = operator_number(context.id);
        let origins: Arc<[Origin]> = origins.into();
        let types: Arc<[ColumnType]> = output.columns.iter().map(|c| c.column_type.clone()).collect();
        Ok((
            output,
            Arc::new(move || {
                Ok(Instance::Stateless(Box::new(Running {
                    operator,
                    schema: Arc::clone(&schema),
                    origins: Arc::clone(&origins),
                    types: Arc::clone(&types),
                })))
            }),
        ))
    }
}

/// Origin of an output column.
enum Origin {
    /// The column at this position of the batch.
    Kept(usize),
    Computed(Expression),
}

/// Whether a new column has the values that the column of this name has already.
fn is_the_column(name: &str, value: &Value) -> bool {
    let is_named = |text: &str| expression::only_column(text).as_deref() == Some(name);
    match &value.node {
        Node::Text(text) => is_named(&text.value),
        // A whole number that is declared a float is no longer the same value.
        _ => value.deserialize_into::<LongColumn>().is_ok_and(|long| {
            let is_float = long.r#type.is_some_and(|declared| declared.value == ScalarType::Float64);
            !is_float && is_named(&long.expression)
        }),
    }
}

fn new_column(
    context: &OperatorContext<'_>,
    port: &InputPort,
    name: &Located<String>,
    value: &Value,
) -> Result<(Column, Expression), Diagnostics> {
    declared_name(name)?;
    let (text, declared) = match &value.node {
        Node::Text(text) => (Located::new(text.value.clone(), value.span.clone()), None),
        Node::Integer(_) | Node::Float(_) | Node::Bool(_) => {
            // `one: 1` means the expression `1`.
            let text = value.span.text().map_or_else(|| format!("{value:?}"), ToString::to_string);
            (Located::new(text, value.span.clone()), None)
        }
        _ => {
            let long: LongColumn = value.deserialize_into()?;
            (long.expression, long.r#type)
        }
    };
    let expression = Expression::compile(&text, &port.stream)
        .map_err(|e| expression_diagnostic(e, context.id, port, &text.span))?;
    let found = expression.result();
    let wrong = |message: String, help: &str| -> Diagnostics {
        let span = declared.as_ref().map_or(&text.span, |d| &d.span).clone();
        Diagnostic::error("E0607", message).at(span).with_help(help).into()
    };
    let column_type = match (&declared, found) {
        (None, Some(found)) => found,
        (None, None) => {
            return Err(wrong(
                format!("the type of column `{name}` does not follow from `{text}`"),
                "write it: `{expression: \"...\", type: float64}`",
            ));
        }
        (Some(declared), found) => {
            let declared: ColumnType = declared.value.into();
            match found {
                Some(ColumnType::Int64) if declared == ColumnType::Float64 => {
                    return Ok((
                        Column::new(name.value.clone(), declared),
                        expression.into_float(&port.stream),
                    ));
                }
                Some(found) if found != declared => {
                    let is_tensor = matches!(found, ColumnType::Tensor { .. });
                    return Err(wrong(
                        format!("column `{name}` is declared {declared}, but `{text}` is {found}"),
                        if is_tensor {
                            "take one value, as in `max(t)` or `t[0]`, or leave the type out"
                        } else {
                            "convert with `int(x)`, `double(x)` or `string(x)`, or leave the type out"
                        },
                    ));
                }
                _ => declared,
            }
        }
    };
    Ok((Column::new(name.value.clone(), column_type), expression))
}

struct Running {
    operator: u64,
    schema: SchemaRef,
    origins: Arc<[Origin]>,
    types: Arc<[ColumnType]>,
}

impl Stateless for Running {
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let mut failed: BTreeMap<usize, String> = BTreeMap::new();
        let mut columns: Vec<ArrayRef> = derive_metadata(batch, self.operator);
        for (index, (origin, column_type)) in self.origins.iter().zip(self.types.iter()).enumerate() {
            match origin {
                Origin::Kept(index) => columns.push(Arc::clone(batch.column(*index))),
                Origin::Computed(expression) => {
                    let Evaluated { column, failed: found } = expression.evaluate(batch, column_type);
                    let name = self.schema.field(METADATA_COLUMNS + index).name();
                    for (row, why) in found {
                        failed.entry(row).or_insert_with(|| format!("column `{name}`: {why}"));
                    }
                    columns.push(column);
                }
            }
        }
        let mut result = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|e| OperatorError::new(format!("map: {e}")))?;
        if !failed.is_empty() {
            let keep: BooleanArray =
                (0..batch.num_rows()).map(|row| Some(!failed.contains_key(&row))).collect();
            result =
                filter_record_batch(&result, &keep).map_err(|e| OperatorError::new(format!("map: {e}")))?;
            for (row, why) in failed {
                output.dead_letters.push(dead_row(batch, row, "expression_failed", why));
            }
        }
        output.push(result);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{float64, text};
    use crate::relational::test::{bind, run_stateless};
    use crate::testing::{batch, only};
    use serde_json::json;

    fn readings() -> StreamType {
        StreamType::new([
            Column::new("temperature", ColumnType::Float64),
            Column::new("n", ColumnType::Int64),
            Column::new("site", ColumnType::Text),
        ])
    }

    #[test]
    fn new_columns_follow_or_replace_the_kept_ones() {
        let yaml = "columns: {f: temperature * 1.8 + 32, site: site + '!', c: {expression: n, type: float64}, one: 1}";
        let bound = bind(&Map, &[readings()], yaml).unwrap();
        assert_eq!(
            bound.output.to_string(),
            "{temperature: float64, n: int64, site: text, f: float64, c: float64, one: int64}"
        );
        let rows = batch(&readings(), &[json!({"temperature": 100.0, "n": 2, "site": "a"})]);
        let output = run_stateless(&bound, &rows);
        let result = &output.batches[0];
        assert_eq!(float64(result.column_by_name("f").unwrap()).unwrap().value(0), 212.0);
        assert_eq!(float64(result.column_by_name("c").unwrap()).unwrap().value(0), 2.0);
        assert_eq!(text(result.column_by_name("site").unwrap()).unwrap().value(0), "a!");
    }

    #[test]
    fn an_empty_whole_number_is_an_empty_float_where_one_is_declared() {
        let bound = bind(&Map, &[readings()], "columns: {c: {expression: n, type: float64}}").unwrap();
        let output = run_stateless(&bound, &batch(&readings(), &[json!({"n": 2}), json!({"n": null})]));
        let wide = float64(output.batches[0].column_by_name("c").unwrap()).unwrap();
        assert_eq!(wide.iter().collect::<Vec<_>>(), [Some(2.0), None]);
        assert!(output.dead_letters.is_empty());
    }

    #[test]
    fn columns_that_are_computed_are_told() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let computes = |computed: &[&str], sent: Option<&[&str]>| {
            Spread::Computes(Columns { computed: names(computed), sent: sent.map(names) })
        };
        for (yaml, computed) in [
            ("columns: {}", Spread::Any),
            ("columns: {site: site}\nkeep: [n]", computes(&[], Some(&["n", "site"]))),
            ("columns: {site: site.lowerAscii(), n: (n), m: n}", computes(&["site", "m"], None)),
            ("columns: {n: {expression: n, type: float64}}", computes(&["n"], None)),
        ] {
            assert_eq!(bind(&Map, &[readings()], yaml).unwrap().spread, computed, "{yaml}");
        }
    }

    #[test]
    fn a_row_that_fails_is_a_dead_letter_and_the_others_stay() {
        let bound = bind(&Map, &[readings()], "columns: {q: 10 / n}\nkeep: [site]").unwrap();
        assert_eq!(bound.output.to_string(), "{site: text, q: int64}");
        let rows = batch(&readings(), &[json!({"n": 2}), json!({"n": 0}), json!({"n": 5})]);
        let output = run_stateless(&bound, &rows);
        assert_eq!(output.batches[0].num_rows(), 2);
        assert_eq!(output.dead_letters[0].detail, "column `q`: division by zero");
    }

    #[test]
    fn wrong_options() {
        for (yaml, code, message) in [
            ("columns: {f: tmperature}", "E0605", "no column `tmperature`"),
            ("columns: {f: {expression: site, type: float64}}", "E0607", "declared float64"),
            ("columns: {f: 'null'}", "E0607", "does not follow"),
            ("columns: {_f: n}", "E0606", "starts with `_`"),
            ("columns: {f: n}\nkeep: [sit]", "E0605", "no column `sit`"),
            ("columns: {f: n}\nkeep: [n, n]", "E0606", "twice"),
            ("columns: [a]", "E0606", "expected a map"),
        ] {
            let error = only(bind(&Map, &[readings()], yaml).err().unwrap());
            assert_eq!(error.code, code, "{error}");
            assert!(error.message.contains(message), "{error}");
            assert!(error.line().is_some(), "{error}");
        }
        let two = bind(&Map, &[readings()], "columns: {a: x, b: y}").err().unwrap();
        assert_eq!(two.len(), 2, "all errors are reported together");
    }

    /// Prints the cost of a row; run in a release build: `-- --ignored --nocapture nanoseconds`.
    #[test]
    #[ignore = "long: make test-long"]
    #[allow(clippy::disallowed_methods)] // a measurement of the host, not engine time
    fn nanoseconds_a_row() {
        let rows: Vec<_> =
            (0..8192).map(|i| json!({"temperature": f64::from(i), "n": i, "site": "north"})).collect();
        let rows = batch(&readings(), &rows);
        for (name, bound) in [
            ("map", bind(&Map, &[readings()], "columns: {f: temperature * 1.8 + 32}").unwrap()),
            (
                "filter",
                bind(&crate::relational::filter::Filter, &[readings()], "where: temperature > 20").unwrap(),
            ),
            (
                "filter text",
                bind(
                    &crate::relational::filter::Filter,
                    &[readings()],
                    "where: temperature > 20 && site == 'north'",
                )
                .unwrap(),
            ),
        ] {
            let Ok(Instance::Stateless(mut instance)) = (bound.make)() else { panic!("stateless") };
            let start = std::time::Instant::now();
            let repeats = 50;
            let mut seen = 0;
            for _ in 0..repeats {
                let mut output = Output::default();
                instance.process(&rows, &mut output).unwrap();
                seen += output.batches[0].num_rows();
            }
            assert!(seen > 0);
            println!("{name}: {} ns/row", start.elapsed().as_nanos() / (repeats * rows.num_rows() as u128));
        }
    }
}
