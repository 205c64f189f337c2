//! The reader of a source of cameras.
use crate::board::Waiting;
use crate::hub::{Hub, Run};
use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_buffer::OffsetBufferBuilder;
use arrow_schema::SchemaRef;
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::{OperatorError, Source, SourcePosition, SourceRead};

pub(crate) struct Reader {
    hub: Arc<Hub>,
    idle: Duration,
    /// Most by which a frame may be older than its arrival.
    lateness: Duration,
    schema: SchemaRef,
    sizes: Vec<u32>,
    /// Ends the cameras with the reader.
    _run: Run,
}

impl Reader {
    pub(crate) fn start(
        hub: &Arc<Hub>,
        (idle, lateness): (Duration, Duration),
        schema: SchemaRef,
    ) -> Result<Self, OperatorError> {
        let run = hub
            .start()
            .map_err(|error| OperatorError::new(format!("cannot start a thread for cameras: {error}")))?;
        Ok(Self { hub: Arc::clone(hub), idle, lateness, schema, sizes: Vec::new(), _run: run })
    }

    fn rows(&mut self, taken: Vec<(String, Waiting)>) -> Result<SourceRead, OperatorError> {
        let (mut cameras, mut frames, mut times) = (StringBuilder::new(), Vec::new(), Vec::new());
        let mut ends = OffsetBufferBuilder::<i32>::new(taken.len());
        let pool = self.hub.board().pool();
        let whole: usize = taken.iter().map(|(_, row)| row.picture.len()).sum();
        // A single picture is not copied.
        let mut contents = if taken.len() == 1 { Vec::new() } else { pool.take(whole) };
        self.sizes.clear();
        for (camera, row) in taken {
            let length = row.picture.len();
            self.sizes.push(u32::try_from(length + camera.len() + size_of::<i64>()).unwrap_or(u32::MAX));
            cameras.append_value(camera);
            frames.push(row.frame);
            times.push(row.time);
            ends.push_length(length);
            if contents.capacity() == 0 {
                contents = row.picture;
            } else {
                contents.extend_from_slice(&row.picture);
                // Its buffer is used again.
                drop(pool.share(row.picture));
            }
        }
        let contents = BinaryArray::new(ends.finish(), pool.share(contents), None);
        let columns: Vec<ArrayRef> =
            vec![Arc::new(cameras.finish()), Arc::new(Int64Array::from(frames)), Arc::new(contents)];
        let payload = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| OperatorError::new(format!("rtsp: {error}")))?;
        Ok(SourceRead::Rows { payload, times: Some(times), dead_letters: Vec::new(), offsets: None })
    }
}

/// Most bytes of one read, below the 2 GiB limit of offsets in a column, less a picture.
const READ_LIMIT: usize = 1 << 30;

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let taken = self.hub.board().take(rows, bytes.min(READ_LIMIT), self.idle);
        if taken.is_empty() {
            let silence = i64::try_from((self.idle + self.lateness).as_micros()).unwrap_or(i64::MAX);
            return Ok(SourceRead::Idle { watermark: self.hub.board().now().saturating_sub(silence) });
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
