//! Labels of records: their own, or those of a ground truth.
use crate::ground_truth::cell_text;
use crate::kind::{EndContext, InputPort};
use crate::record::METADATA_COLUMNS;
use arrow_array::RecordBatch;
use std::collections::HashMap;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, suggestion};
use tidemill_spec::span::Located;
use tidemill_spec::types::ColumnType;

/// Gives each record its label.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    /// Position of the column of the label in a batch.
    own: Option<usize>,
    /// Position of the column of the key, and labels by key.
    truth: Option<(usize, Arc<HashMap<String, String>>)>,
}

impl Labels {
    /// Finds the label in the records or in the ground truth of the sink.
    pub(super) fn bind(
        context: &EndContext<'_>,
        input: &InputPort,
        label: &Located<String>,
    ) -> Result<Self, Diagnostic> {
        if context.truth.is_some_and(|truth| truth.prediction == label.value) {
            let message = format!("`{label}` is the prediction: a model would learn its own answers");
            return Err(Diagnostic::error("E0606", message).at(label.span.clone()).with_help(format!(
                "give the right answer another name in the dataset, such as `right_{label}`"
            )));
        }
        let own = match input.stream.column(label) {
            None => None,
            Some(_) => {
                let is_class =
                    |t: &ColumnType| matches!(t, ColumnType::Text | ColumnType::Int64 | ColumnType::Bool);
                let (index, _) = input.column(context.id, 0, label, "text, int64 or bool", is_class)?;
                Some(METADATA_COLUMNS + index)
            }
        };
        let truth = match context.truth {
            None => None,
            Some(truth) if truth.is_whole() => {
                let message = format!("the ground truth of `{}` has no answer for each record", context.id);
                return Err(Diagnostic::error("E0606", message)
                    .at(label.span.clone())
                    .with_help("leave out `boxes` and `compare`, or judge the records with another sink"));
            }
            Some(truth) => {
                let key = input.stream.index_of(&truth.key);
                key.map(|index| (METADATA_COLUMNS + index, Arc::clone(&truth.answers)))
            }
        };
        if own.is_none() && truth.is_none() {
            let message = format!(
                "there is no column `{label}` in the records that `{}` receives from `{}`, and no `ground_truth`",
                context.id, input.from
            );
            let names = input.stream.columns.iter().map(|column| column.name.as_str());
            let known = suggestion(label, names, &format!("columns of `{}`", input.from));
            return Err(Diagnostic::error("E0605", message)
                .at(label.span.clone())
                .with_label(format!("`{}` sends {}", input.from, input.stream))
                .with_help(format!(
                    "{known}; or add the right answers: `ground_truth: {{path: truth.csv, key: COLUMN, \
                     prediction: COLUMN, truth: COLUMN}}`"
                )));
        }
        Ok(Self { own, truth })
    }

    /// Returns the label of a record.
    pub(super) fn of(&self, batch: &RecordBatch, row: usize) -> Option<String> {
        let own = self.own.and_then(|column| cell_text(batch, column, row));
        own.or_else(|| {
            let (key, labels) = self.truth.as_ref()?;
            labels.get(&cell_text(batch, *key, row)?).cloned()
        })
    }
}
