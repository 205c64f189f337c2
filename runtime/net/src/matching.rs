//! Conditions on records, in the language of the filters.
use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use std::sync::Arc;
use tidemill_operators::record::stream_type;
use tidemill_operators::relational::expression::Expression;
use tidemill_spec::types::{ColumnType, StreamType};

/// A condition on records.
#[derive(Debug)]
pub(crate) struct Condition {
    text: String,
    /// Compiled for the last columns.
    compiled: Option<(SchemaRef, Expression)>,
}

/// The rows of a batch for a condition.
pub(crate) struct Found {
    /// The rows for which it holds.
    pub(crate) holds: BooleanArray,
    /// The rows for which it cannot be computed, with the reason.
    pub(crate) failed: Vec<(usize, String)>,
}

impl Condition {
    /// Makes a condition of a text. That it fits the columns is checked later.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), compiled: None }
    }

    /// Checks that it can be computed for these columns.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn fits(&self, columns: &StreamType) -> Result<(), String> {
        self.compile(columns).map(drop)
    }

    fn compile(&self, columns: &StreamType) -> Result<Expression, String> {
        let expression = Expression::compile(&self.text, columns).map_err(|error| match error.help {
            Some(help) => format!("`{}`: {}; {help}", self.text, error.message),
            None => format!("`{}`: {}", self.text, error.message),
        })?;
        if expression.result() != Some(ColumnType::Bool) {
            return Err(format!("`{}` is no condition: write a comparison", self.text));
        }
        Ok(expression)
    }

    /// Finds the rows for which it holds.
    ///
    /// # Errors
    /// It does not fit the columns of the records.
    pub(crate) fn find(&mut self, batch: &RecordBatch) -> Result<Found, String> {
        let schema = batch.schema_ref();
        let expression = match self.compiled.take() {
            Some((known, expression)) if Arc::ptr_eq(&known, schema) || known == *schema => expression,
            _ => self.compile(&stream_type(schema))?,
        };
        let (holds, failed) = expression.holds(batch);
        self.compiled = Some((Arc::clone(schema), expression));
        Ok(Found { holds, failed })
    }
}
