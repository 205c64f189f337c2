//! Rows as messages: one JSON object each, for sinks of other crates that send rows one by one.
use super::rows::Rows;
use crate::api::OperatorError;
use crate::kind::{EndContext, InputPort};
use arrow_array::RecordBatch;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;

/// The columns of messages.
#[derive(Debug, Clone)]
pub struct Messages {
    rows: Rows,
}

impl Messages {
    /// Returns the chosen columns (all if none are named), preceded by `_id` and `_time` with `metadata`.
    ///
    /// # Errors
    /// A column does not exist or is named twice, or there is nothing to write.
    pub fn choose(
        context: &EndContext<'_>,
        input: &InputPort,
        chosen: Option<&[Located<String>]>,
        metadata: bool,
    ) -> Result<Self, Diagnostics> {
        Ok(Self { rows: Rows::choose(context, input, chosen, metadata)? })
    }

    /// Calls `each` with every row of a batch and its JSON object.
    ///
    /// # Errors
    /// A value cannot be written.
    pub fn of(&self, batch: &RecordBatch, mut each: impl FnMut(usize, &[u8])) -> Result<(), OperatorError> {
        let mut text = Vec::new();
        self.rows.json(batch, &mut text)?;
        // JSON has no line breaks within its texts.
        text.split(|byte| *byte == b'\n')
            .take(batch.num_rows())
            .enumerate()
            .for_each(|(row, json)| each(row, json));
        Ok(())
    }
}
