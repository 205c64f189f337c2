//! The reader of a live source, and the source itself.
use crate::board::Waiting;
use crate::hub::{Hub, Run};
use crate::journalled::{self, Patience};
use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_buffer::OffsetBufferBuilder;
use arrow_schema::SchemaRef;
use std::sync::Arc;
use tidemill_operators::api::{BoundSource, MakeSource, OperatorError, Source, SourcePosition, SourceRead};
use tidemill_operators::kind::EndContext;
use tidemill_operators::record::payload_schema;
use tidemill_operators::video::pool::FramePool;
use tidemill_spec::types::StreamType;

pub(crate) struct Reader {
    hub: Arc<Hub>,
    patience: Patience,
    schema: SchemaRef,
    sizes: Vec<u32>,
    /// Ends the cameras with the reader.
    _run: Run,
}

impl Reader {
    pub(crate) fn start(
        hub: &Arc<Hub>,
        patience: Patience,
        schema: SchemaRef,
    ) -> Result<Self, OperatorError> {
        let run = hub
            .start()
            .map_err(|error| OperatorError::new(format!("cannot start a thread for cameras: {error}")))?;
        Ok(Self { hub: Arc::clone(hub), patience, schema, sizes: Vec::new(), _run: run })
    }

    fn rows(&mut self, taken: Vec<(String, Waiting)>) -> Result<SourceRead, OperatorError> {
        self.sizes.clear();
        let size = |(feed, row): &(String, Waiting)| row.picture.len() + feed.len() + size_of::<i64>();
        self.sizes.extend(taken.iter().map(|row| u32::try_from(size(row)).unwrap_or(u32::MAX)));
        let times = taken.iter().map(|(_, row)| row.time).collect();
        let payload =
            RecordBatch::try_new(Arc::clone(&self.schema), columns(taken, Some(self.hub.board().pool())))
                .map_err(|error| OperatorError::new(error.to_string()))?;
        Ok(SourceRead::Rows { payload, times: Some(times), dead_letters: Vec::new(), offsets: None })
    }
}

/// Makes columns of records: feed, number, content. Buffers of a pool go back to it.
pub(crate) fn columns(taken: Vec<(String, Waiting)>, pool: Option<&Arc<FramePool>>) -> Vec<ArrayRef> {
    let (mut feeds, mut frames) = (StringBuilder::new(), Vec::new());
    let mut ends = OffsetBufferBuilder::<i32>::new(taken.len());
    let whole: usize = taken.iter().map(|(_, row)| row.picture.len()).sum();
    let is_single = taken.len() == 1;
    // A single picture is not copied.
    let mut contents = match pool {
        _ if is_single => Vec::new(),
        Some(pool) => pool.take(whole),
        None => Vec::with_capacity(whole),
    };
    for (feed, row) in taken {
        feeds.append_value(feed);
        frames.push(row.frame);
        ends.push_length(row.picture.len());
        if is_single {
            contents = row.picture;
            continue;
        }
        contents.extend_from_slice(&row.picture);
        // Its buffer is used again.
        drop(pool.map(|pool| pool.share(row.picture)));
    }
    let contents = match pool {
        Some(pool) => pool.share(contents),
        None => contents.into(),
    };
    let contents = BinaryArray::new(ends.finish(), contents, None);
    vec![Arc::new(feeds.finish()), Arc::new(Int64Array::from(frames)), Arc::new(contents)]
}

/// Returns a live source of the feeds of a hub.
pub(crate) fn bound(
    context: &EndContext<'_>,
    kind: &str,
    output: StreamType,
    hub: Hub,
    patience: Patience,
) -> BoundSource {
    let schema = payload_schema(&output);
    let hub = Arc::new(hub);
    let feeds = Arc::clone(&hub);
    let journalled = Some(journalled::reading(&hub, patience, &schema));
    let make: MakeSource =
        Arc::new(move || Ok(Box::new(Reader::start(&hub, patience, Arc::clone(&schema))?)));
    let out_of_order = patience.lateness.as_micros();
    BoundSource {
        live: true,
        has_event_times: true,
        out_of_order_microseconds: i64::try_from(out_of_order).unwrap_or(i64::MAX),
        stream: Some(format!("the feeds of `{}`", context.id)),
        journalled,
        feeds: Some(feeds),
        ..context.source(kind, output, make)
    }
}

/// Most bytes of one read, below the 2 GiB limit of offsets in a column, less a picture.
pub(crate) const READ_LIMIT: usize = 1 << 30;

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let taken = self.hub.board().take(rows, bytes.min(READ_LIMIT), self.patience.idle);
        if taken.is_empty() {
            return Ok(SourceRead::Idle { watermark: self.patience.watermark(self.hub.board().now()) });
        }
        self.rows(taken)
    }

    fn position(&self) -> SourcePosition {
        SourcePosition::default()
    }

    fn seek(&mut self, _: &SourcePosition) -> Result<(), OperatorError> {
        // What a camera has sent is gone.
        Ok(())
    }

    fn replayable(&self) -> bool {
        false
    }

    fn sizes(&self) -> Option<&[u32]> {
        Some(&self.sizes)
    }
}
