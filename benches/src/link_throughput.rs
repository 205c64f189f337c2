//! Measures the throughput of links. One thread sends and receives in turn, so that no scheduler is measured; a plain
//! copy of the same bytes is the baseline.
use crate::parts::{payload, stream};
use crate::result::{Answer, Measurement};
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use std::hint::black_box;
use std::sync::Arc;
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_engine::frame::{Content, Frame, Header};
use tidemill_engine::link::{AsBytes, InProcess, Link};
use tidemill_operators::record::record_schema;

const ROUNDS: usize = 15;

fn batch(width: usize) -> anyhow::Result<RecordBatch> {
    let payload = payload(1, width);
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, vec![0u8; 16].into(), None)),
        Arc::new(UInt32Array::from(vec![0])),
        Arc::new(UInt64Array::from(vec![0])),
        Arc::new(Int64Array::from(vec![0])),
        Arc::new(Int64Array::from(vec![0])),
        Arc::new(UInt32Array::from(vec![0])),
        Arc::new(Int8Array::from(vec![1])),
    ];
    columns.extend(payload.columns().iter().cloned());
    Ok(RecordBatch::try_new(record_schema(&stream()), columns)?)
}

/// Measures GB/s of one round.
fn carry(link: &dyn Link, batch: &RecordBatch, width: usize, frames: u64) -> anyhow::Result<f64> {
    let (mut sender, mut receiver) = link.connect(record_schema(&stream()))?;
    let clock = WallClock::new();
    for sequence in 0..frames {
        let header = Header { incarnation: 1, sequence, sent_at: 0, cost: 0 };
        sender.send(Frame { header, content: Content::Data { epoch: 0, batch: batch.clone() } })?;
        anyhow::ensure!(receiver.receive()?.is_some(), "a frame is missing");
    }
    Ok(width as f64 * frames as f64 / clock.now() as f64)
}

fn copy(width: usize, frames: u64) -> f64 {
    let from = vec![1u8; width];
    let mut to = vec![0u8; width];
    let clock = WallClock::new();
    for _ in 0..frames {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    width as f64 * frames as f64 / clock.now() as f64
}

pub(crate) fn run() -> anyhow::Result<Answer> {
    let mut measurements = Vec::new();
    for (name, width, frames) in
        [("1 KB", 1 << 10, 20_000), ("64 KB", 64 << 10, 4_000), ("1 MB", 1 << 20, 300)]
    {
        let batch = batch(width)?;
        let (mut copies, mut as_bytes, mut in_process) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            copies.push(copy(width, frames));
            as_bytes.push(carry(&AsBytes, &batch, width, frames)?);
            in_process.push(carry(&InProcess, &batch, width, frames)?);
        }
        measurements.push(Measurement::new(format!("one copy in memory, {name}"), "GB/s", copies).baseline());
        measurements.push(Measurement::new(format!("link as bytes, {name} a record"), "GB/s", as_bytes));
        let name = format!("in_process link, {name} a record (passes pointers)");
        measurements.push(Measurement::new(name, "GB/s", in_process));
    }
    Ok(Answer::new("link-throughput", "How much does a link carry?", measurements))
}
