//! A bench for policies: frames of cameras, one after the other, at a time that the test moves.
//!
//! It is for the tests of those who write policies, and panics where a test should fail.
use crate::edge_name::EdgeName;
use crate::passage::{Carried, Effects, Passage};
use crate::policy::{Policy, Site, Verdict, make};
use crate::urgency::Urgency;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::Schema;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_link::frame::Header;
use tidemill_link::remote::Recoder;
use tidemill_operators::record::{METADATA_COLUMNS, metadata_fields, payload_schema};
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// The columns of the records: the text `camera`.
pub fn columns() -> StreamType {
    StreamType::new([Column::new("camera", ColumnType::Text)])
}

/// Records of these cameras.
pub fn cameras(names: &[&str]) -> RecordBatch {
    some_cameras(&names.iter().map(|name| Some(*name)).collect::<Vec<_>>())
}

/// Records, some without a camera.
///
/// # Panics
/// Never: the columns are those of the schema.
pub fn some_cameras(names: &[Option<&str>]) -> RecordBatch {
    let payload = payload_schema(&columns());
    let fields: Vec<_> =
        metadata_fields().into_iter().map(Arc::new).chain(payload.fields().iter().cloned()).collect();
    let rows = names.len();
    let id = FixedSizeBinaryArray::new(16, arrow_buffer::Buffer::from_vec(vec![0u8; rows * 16]), None);
    let mut arrays: Vec<ArrayRef> = vec![
        Arc::new(id),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(UInt64Array::from(vec![0; rows])),
        Arc::new(Int64Array::from(vec![0; rows])),
        Arc::new(Int64Array::from(vec![0; rows])),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(Int8Array::from(vec![1; rows])),
    ];
    assert_eq!(arrays.len(), METADATA_COLUMNS);
    arrays.push(Arc::new(StringArray::from(names.to_vec())));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("columns of the schema")
}

/// A policy and the frames that it looks at.
pub struct Bench {
    policy: Box<dyn Policy>,
    recoder: Recoder,
    urgent: Urgency,
    now: Instant,
    number: u64,
    rejected: u64,
    came: u64,
    sent: u64,
    /// Bytes that wait in the stream.
    pub waiting: u64,
}

impl Bench {
    /// Makes a bench for a policy that is made in the usual place.
    ///
    /// # Panics
    /// Its options are wrong.
    pub fn new(kind: &str, options: &Value) -> Self {
        Self::of(make(kind, options, &Site::default()).expect("its options are right"))
    }

    /// Makes a bench for a policy.
    #[expect(clippy::disallowed_methods, reason = "a point in time, from which the test counts")]
    pub fn of(policy: Box<dyn Policy>) -> Self {
        Self {
            policy,
            recoder: Recoder::default(),
            urgent: Urgency::default(),
            now: Instant::now(),
            number: 0,
            rejected: 0,
            came: 0,
            sent: 0,
            waiting: 0,
        }
    }

    /// Moves the time.
    pub fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    /// Has another instance continue with the state of this one.
    ///
    /// # Panics
    /// Its options are wrong, or it cannot continue.
    pub fn replace(&mut self, kind: &str, options: &Value) {
        let new = make(kind, options, &Site::default()).expect("its options are right");
        self.replace_by(new).expect("its own state");
    }

    /// Has this instance continue with the state of the one before.
    ///
    /// # Errors
    /// Why it cannot; the one before stays.
    pub fn replace_by(&mut self, mut new: Box<dyn Policy>) -> Result<(), String> {
        new.restore(&self.policy.state())?;
        self.policy = new;
        Ok(())
    }

    /// Has it look at a new frame. Returns its verdict and the records that are left.
    ///
    /// # Panics
    /// It cannot judge the frame.
    pub fn look(&mut self, records: &RecordBatch) -> (Verdict, RecordBatch) {
        self.judge(records).expect("it can judge")
    }

    /// Has it look at the frame before again.
    ///
    /// # Panics
    /// It cannot judge the frame.
    pub fn again(&mut self, records: &RecordBatch) -> (Verdict, RecordBatch) {
        self.judge_again(records).expect("it can judge")
    }

    /// Has it look at a new frame, as [`look`](Self::look), where it may fail.
    ///
    /// # Errors
    /// Why it cannot judge the frame.
    pub fn judge(&mut self, records: &RecordBatch) -> Result<(Verdict, RecordBatch), String> {
        self.number += 1;
        self.judge_again(records)
    }

    fn judge_again(&mut self, records: &RecordBatch) -> Result<(Verdict, RecordBatch), String> {
        let header = Header { incarnation: 1, sequence: self.number, sent_at: 0, cost: 1 };
        let mut sender = Recoder::default();
        let mut parcel = sender.encode(header, 7, records.clone()).expect("records");
        let (mut effects, mut batch) = (Effects::default(), None);
        self.recoder = Recoder::default();
        self.came = parcel.bytes();
        let edge = EdgeName { workflow: "city".into(), from: "cameras".into(), to: "detect".into() };
        let mut frame = Passage {
            edge: &edge,
            channel: 3,
            now: self.now,
            number: self.number,
            waiting: self.waiting,
            carried: Carried::Frame(&mut parcel, &mut self.recoder),
            batch: &mut batch,
            effects: &mut effects,
            urgent: &mut self.urgent,
        };
        let verdict = self.policy.look(&mut frame)?;
        self.rejected += effects.rejected;
        self.sent = parcel.bytes();
        let left = match batch.filter(|_| effects.is_changed) {
            Some(batch) => batch,
            None => Recoder::default().read(&parcel).expect("records"),
        };
        Ok((verdict, left))
    }

    /// Records that were taken out.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Bytes of the last frame as it came.
    pub fn came(&self) -> u64 {
        self.came
    }

    /// Bytes of the last frame as it left.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}
