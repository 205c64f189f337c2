//! The reader of a source of requests; it owns the port.
use crate::content::Form;
use crate::desk::Desk;
use crate::server::{Port, Settings};
use arrow_schema::SchemaRef;
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::{OperatorError, Requests, Source, SourcePosition, SourceRead};

/// Silence after which the reader looks whether it is still needed.
const SILENCE: Duration = Duration::from_millis(100);

pub(crate) struct Reader {
    desk: Arc<Desk>,
    form: Arc<Form>,
    schema: SchemaRef,
    is_last: bool,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.desk.end_reading();
    }
}

impl Reader {
    pub(crate) fn start(
        desk: &Arc<Desk>,
        form: &Arc<Form>,
        schema: &SchemaRef,
        settings: &Settings,
    ) -> Result<Self, OperatorError> {
        let port = Port::open(desk, form, settings).map_err(|error| {
            let help = "end the other program, or write another address";
            OperatorError::new(format!("cannot listen at `{}`: {error}: {help}", settings.listen))
        })?;
        desk.keep(port);
        let (desk, form, schema) = (Arc::clone(desk), Arc::clone(form), Arc::clone(schema));
        Ok(Self { desk, form, schema, is_last: false })
    }
}

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let (contents, times, is_last) = self.desk.take((rows.max(1), bytes.max(1)), SILENCE);
        self.is_last = is_last;
        // Nothing came: no rows. A statement of silence would have a number among the records, and later rows would answer the
        // requests of others.
        let payload = self.form.batch(&self.schema, &contents).map_err(OperatorError::new)?;
        Ok(SourceRead::Rows { payload, times: Some(times), dead_letters: Vec::new(), offsets: None })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition::default()
    }

    fn seek(&mut self, _: &SourcePosition) -> Result<(), OperatorError> {
        Err(OperatorError::new("requests cannot be read again"))
    }

    fn replayable(&self) -> bool {
        false
    }

    fn has_caught_up(&self) -> bool {
        self.is_last
    }
}
