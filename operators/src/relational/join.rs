//! `join`: pairs rows of two inputs with equal keys and near event times.
//!
//! ```yaml
//! - {id: pair, kind: join, inputs: [image_features, recognise_speech], options: {key: key, within: 2s}}
//! - {id: other, kind: join, inputs: [a, b], options: {left_key: [site, id], right_key: [place, number], within: 50ms}}
//! ```
//! An inner join: every pair of rows l, r with equal keys and `|time(l) - time(r)| <= within` gives one row, exactly
//! once: the columns of the left input, then those of the right that the left does not have. Its event time is the
//! later of the two. A row is kept until the watermark passes its time by more than `within`: until then a partner
//! may come. What is dropped is counted: `unmatched` (expired without a partner; also rows with an empty key, which
//! equals nothing) and `late` (earlier than the watermark on arrival). So the pairs do not depend on the order of
//! arrival, on how epochs are cut, or on restarts. A pair is sent as soon as both rows are there and all epochs before
//! theirs are complete.
//!
//! Both inputs may be the same stream (directly or over a diamond). Key columns are text, int64 or bool.
//!
//! ```
//! use std::path::Path;
//! use tidemill_operators::kind::{InputPort, OperatorContext};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let port = |from: &str, column: &str| InputPort {
//!     from: from.into(),
//!     stream: StreamType::new([Column::new("key", ColumnType::Text), Column::new(column, ColumnType::Int64)]),
//!     span: Span::nowhere(),
//! };
//! let id = "pair".into();
//! let context = OperatorContext::new(&id, Path::new("."));
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "key: key\nwithin: 2s")).unwrap();
//! let registry = Registry::builtin();
//! let join = registry.operator("join").unwrap();
//! let pair = join.bind(&context, &[port("a", "x"), port("b", "y")], &options).unwrap();
//! assert_eq!(pair.output.to_string(), "{key: text, x: int64, y: int64}");
//! ```
use super::join_state::{Running, Setup};
use super::keys::is_key_type;
use crate::api::{Computation, Instance, MakeInstance, Spread};
use crate::columns::OneOrMany;
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{operator_number, record_schema};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::StreamType;
use tidemill_spec::units::TimeSpan;

/// The kind `join`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Join;

/// Options of `join`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Key column of both inputs, or a list of columns.
    #[serde(default)]
    key: Option<OneOrMany>,
    /// Key column of the first input, if the names differ.
    #[serde(default)]
    left_key: Option<OneOrMany>,
    /// Key column of the second input.
    #[serde(default)]
    right_key: Option<OneOrMany>,
    /// Treatment of a column that both inputs have and that is not a key of both.
    #[serde(default)]
    same_names: SameNames,
    /// Largest difference between the event times of two partners, for instance `2s`.
    within: TimeSpan,
}

impl Options {
    /// The key columns of both sides, if they are given in one of the two forms.
    fn columns(&self) -> Option<(&Names, &Names)> {
        match (&self.key, &self.left_key, &self.right_key) {
            (Some(key), None, None) => Some((&key.0, &key.0)),
            (None, Some(left), Some(right)) => Some((&left.0, &right.0)),
            _ => None,
        }
    }
}

/// Columns of the same name on both sides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SameNames {
    /// An error, because one of them would be lost.
    #[default]
    Refuse,
    /// Sends the column of the first input, which is right if both come from the same record.
    KeepFirst,
}

impl TypedOperatorKind for Join {
    type Options = Options;
    const KIND: &'static str = "join";
    const SUMMARY: &'static str = "Pairs rows of two inputs with equal keys and near event times.";
    const INPUTS: std::ops::RangeInclusive<usize> = 2..=2;
    const FACTS: OperatorFacts =
        OperatorFacts { computation: Computation::Stateful, joins: true, ..OperatorFacts::DEFAULT };

    fn spread(options: &Options) -> Spread {
        let keys = options.columns().into_iter().flat_map(|(left, right)| left.iter().zip(right));
        Spread::RouteKey(keys.map(|(left, right)| vec![left.value.clone(), right.value.clone()]).collect())
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let Located { value: options, span: place, .. } = options;
        let (left_names, right_names) = key_names(context, &options, &place)?;
        let (left, right) = (&inputs[0], &inputs[1]);
        let mut errors = Diagnostics::new();
        let mut keys = [Vec::new(), Vec::new()];
        for (left_name, right_name) in left_names.iter().zip(&right_names) {
            let fits = "text, int64 or bool";
            let l = left.column(context.id, 0, left_name, fits, is_key_type);
            let r = right.column(context.id, 1, right_name, fits, is_key_type);
            match (l, r) {
                (Ok((l, lc)), Ok((r, rc))) if lc.column_type == rc.column_type => {
                    keys[0].push(l);
                    keys[1].push(r);
                }
                (Ok((_, column)), Ok(_)) => {
                    // The message names the right side, because the left one decides which type fits.
                    let expected =
                        format!("{}, the type of `{left_name}` from `{}`", column.column_type, left.from);
                    let wanted = column.column_type.clone();
                    if let Err(error) = right.column(context.id, 1, right_name, &expected, |t| *t == wanted) {
                        errors.push(error);
                    }
                }
                (l, r) => {
                    errors.extend(l.err());
                    errors.extend(r.err());
                }
            }
        }
        if errors.has_errors() {
            return Err(errors);
        }
        let mut columns = left.stream.columns.clone();
        let mut origins: Vec<(usize, usize)> = (0..columns.len()).map(|index| (0, index)).collect();
        for (index, column) in right.stream.columns.iter().enumerate() {
            if left.stream.column(&column.name).is_none() {
                columns.push(column.clone());
                origins.push((1, index));
                continue;
            }
            let is_key =
                left_names.iter().zip(&right_names).any(|(l, r)| **l == column.name && **r == column.name);
            if !is_key && options.same_names == SameNames::Refuse {
                errors.push(same_name(context, right, &column.name));
            }
        }
        errors.into_result(())?;
        let output = StreamType::new(columns);
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            // Times are whole microseconds, so a difference of at most 1.5 us is one of at most 1 us.
            within: i64::try_from(options.within.0 / 1000).unwrap_or(i64::MAX),
            keys,
            inputs: [record_schema(&left.stream), record_schema(&right.stream)],
            output: record_schema(&output),
            origins,
        });
        Ok((output, Arc::new(move || Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup))))))))
    }
}

/// The error for a column of this name in both inputs: only one of them could be sent.
fn same_name(context: &OperatorContext<'_>, right: &InputPort, name: &str) -> Diagnostic {
    let message =
        format!("both inputs of join `{}` send a column `{name}`; one of the two would be lost", context.id);
    Diagnostic::error("E0612", message).at(right.span.clone()).with_help(format!(
        "rename it before the join with a `map`, for instance `columns: {{right_{name}: {name}}}` with `keep:` the \
         others; or write `same_names: keep_first` when both come from the same record"
    ))
}

type Names = Vec<Located<String>>;

/// The key columns of both sides.
fn key_names(
    context: &OperatorContext<'_>,
    options: &Options,
    place: &Span,
) -> Result<(Names, Names), Diagnostic> {
    let wrong = |message: String| {
        let place = if place.source().is_some() { place } else { &context.id.span };
        Diagnostic::error("E0606", message)
            .at(place.clone())
            .with_help("write `key: id`, or `left_key: id` and `right_key: number` if the names differ")
    };
    let Some((left, right)) = options.columns() else {
        let message = match options.key {
            Some(_) => format!("join `{}` has `key` beside left_key or right_key", context.id),
            None => format!("join `{}` has no key", context.id),
        };
        return Err(wrong(message));
    };
    if left.is_empty() || left.len() != right.len() {
        let message = format!("join `{}` compares {} columns with {}", context.id, left.len(), right.len());
        return Err(wrong(message));
    }
    Ok((left.clone(), right.clone()))
}

#[cfg(test)]
#[path = "join_tests.rs"]
mod tests;
