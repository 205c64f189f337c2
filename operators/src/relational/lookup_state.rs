//! Rows get the columns of a table; the state is the table.
use super::lookup::Missing;
use super::lookup_table::Table;
use super::lookup_watch::Watch;
use super::{dead_row, keys::Keys, snapshot};
use crate::api::{NEWS, OperatorError, Output, Stateful, TakesKeys, WriteSnapshot};
use crate::record::{EventTime, METADATA_COLUMNS, batch_bytes, derive_metadata};
use arrow_array::{Array, BooleanArray, RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use arrow_select::take::take;
use std::sync::Arc;

/// Format of the snapshots.
const TAG: [u8; 8] = *b"LOOKUP01";

/// Checked options.
pub(super) struct Setup {
    pub(super) operator: u64,
    pub(super) id: String,
    /// The path in the workflow.
    pub(super) written: String,
    /// Payload columns of the input that make the key.
    pub(super) keys: Vec<usize>,
    pub(super) missing: Missing,
    /// The columns of the table, those of the key first.
    pub(super) table: SchemaRef,
    pub(super) output: SchemaRef,
}

pub(super) struct Running {
    setup: Arc<Setup>,
    /// Absent where the workflow was only checked, until a snapshot gives it.
    table: Option<Arc<Table>>,
    watch: Option<Arc<Watch>>,
    /// The table that was taken as news.
    news: Option<Arc<Table>>,
}

fn broken(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::new(format!("lookup: {error}"))
}

fn write(setup: &Setup, table: Option<&Table>) -> Result<Vec<u8>, OperatorError> {
    let rows = table.map(|table| table.rows.clone());
    snapshot::write(TAG, &(), &[(Arc::clone(&setup.table), rows.into_iter().collect())])
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>, watch: Option<Arc<Watch>>) -> Self {
        let table = watch.as_ref().map(|watch| watch.table());
        Self { setup, table, watch, news: None }
    }

    fn replace(&mut self, rows: &RecordBatch) -> Result<(), OperatorError> {
        let known = self.news.take().filter(|table| table.rows == *rows);
        let table = match known {
            Some(table) => table,
            None => Arc::new(Table::again(rows.clone(), self.setup.keys.len())?),
        };
        self.table = Some(table);
        Ok(())
    }

    fn lacks(&self, batch: &RecordBatch, row: usize) -> String {
        let schema = batch.schema_ref();
        let values = crate::values::row_values(batch, row);
        let parts = self.setup.keys.iter().map(|index| {
            let name = schema.field(METADATA_COLUMNS + index).name();
            format!("`{name}` = {}", values.get(name).unwrap_or(&serde_json::Value::Null))
        });
        format!("`{}` has no row with {}", self.setup.written, parts.collect::<Vec<_>>().join(", "))
    }
}

impl Stateful for Running {
    fn apply(&mut self, port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        if port == NEWS {
            return self.replace(batch);
        }
        let Some(table) = &self.table else {
            let text = format!("`{}` was checked, but its table is not opened here", self.setup.id);
            return Err(OperatorError::new(text));
        };
        let keys = Keys::of(batch, &self.setup.keys);
        let mut key = Vec::new();
        let found = (0..batch.num_rows()).map(|row| {
            key.clear();
            keys.encode(row, &mut key).then(|| table.row(&key)).flatten()
        });
        let mut found: UInt32Array = found.collect();
        let mut rows = batch.clone();
        match self.setup.missing {
            Missing::Keep => {}
            Missing::Drop => output.drop_rows("unmatched", found.null_count() as u64),
            Missing::DeadLetter => {
                let missing = (0..batch.num_rows()).filter(|row| found.is_null(*row));
                let letter = |row| dead_row(batch, row, "unmatched", self.lacks(batch, row));
                output.dead_letters.extend(missing.map(letter));
            }
        }
        if found.null_count() > 0 && self.setup.missing != Missing::Keep {
            let is_found: BooleanArray = found.iter().map(|row| Some(row.is_some())).collect();
            rows = filter_record_batch(batch, &is_found).map_err(broken)?;
            found = found.iter().flatten().map(Some).collect();
        }
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let mut columns = derive_metadata(&rows, self.setup.operator);
        columns.extend(rows.columns()[METADATA_COLUMNS..].iter().cloned());
        for column in &table.rows.columns()[self.setup.keys.len()..] {
            columns.push(take(column, &found, None).map_err(broken)?);
        }
        if self.watch.as_ref().is_some_and(|watch| watch.is_outdated()) {
            output.note_rows("outdated_table", rows.num_rows() as u64);
        }
        output.push(RecordBatch::try_new(Arc::clone(&self.setup.output), columns).map_err(broken)?);
        Ok(())
    }

    fn advance(&mut self, _: EventTime, _: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }

    /// A row depends on itself and on the table, which changes between epochs only.
    fn takes_rows_early(&self) -> bool {
        true
    }

    fn follows_news(&self) -> bool {
        true
    }

    fn take_news(&mut self) -> Option<RecordBatch> {
        let (watch, table) = (self.watch.as_ref()?, self.table.as_mut()?);
        let newest = watch.table();
        if Arc::ptr_eq(&newest, table) {
            return None;
        }
        if newest.rows == table.rows {
            // One copy is enough.
            *table = newest;
            return None;
        }
        Some(self.news.insert(newest).rows.clone())
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        write(&self.setup, self.table.as_deref())
    }

    fn capture(&mut self) -> Result<WriteSnapshot, OperatorError> {
        let (setup, table) = (Arc::clone(&self.setup), self.table.clone());
        Ok(Box::new(move || write(&setup, table.as_deref())))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        let ((), sections) = snapshot::read(TAG, &[Arc::clone(&self.setup.table)], bytes)?;
        sections.iter().flatten().try_for_each(|rows| self.replace(rows))
    }

    fn is_divisible(&self) -> bool {
        true
    }

    /// Each stage has the whole table, so one of them is enough.
    fn take_in(&mut self, bytes: &[u8], _: &TakesKeys<'_>) -> Result<(), OperatorError> {
        self.restore(bytes)
    }

    fn state_bytes(&self) -> usize {
        self.table.as_ref().map_or(0, |table| batch_bytes(&table.rows))
    }
}
