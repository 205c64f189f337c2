//! An object with a state. The engine applies complete epochs in a fixed order and keeps snapshots; within a run, an object
//! whose process died is brought back by its last snapshot and the calls since.
use crate::caller::{Caller, Past, detail};
use crate::options::OnError;
use crate::process::{Fault, Given, Process};
use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use tidemill_operators::api::{DeadLetter, OperatorError, Output, Stateful};
use tidemill_operators::record::{EventTime, METADATA_COLUMNS, Metadata, RecordId, batch_bytes, derive_id};

/// Bytes of calls after which a snapshot is taken, so that bringing a state back stays short.
const BYTES: usize = 8 << 20;
/// Calls, likewise.
const CALLS: usize = 512;
/// First number of the rows that `advance` gives: far from those that a record gives.
const FIRST_OF_ADVANCE: u32 = 1 << 31;

/// A call that changed the state.
enum Done {
    Batch(RecordBatch),
    Advance(EventTime),
}

/// The way from the last snapshot to the present state.
struct Kept {
    has_state: bool,
    snapshot: Option<Vec<u8>>,
    calls: Vec<Done>,
    bytes: usize,
}

impl Past for Kept {
    fn bring_back(&mut self, process: &mut Process) -> Result<(), Fault> {
        if !self.has_state {
            return Ok(());
        }
        if let Some(snapshot) = &self.snapshot {
            process.restore(snapshot)?;
        }
        for call in &self.calls {
            // Their rows were given before.
            match call {
                Done::Batch(batch) => drop(process.batch(batch)?),
                Done::Advance(watermark) => drop(process.advance(*watermark)?),
            }
        }
        Ok(())
    }

    fn can_undo(&self) -> bool {
        self.has_state && self.snapshot.is_some()
    }

    fn done(&mut self, batch: &RecordBatch) {
        if self.has_state {
            self.bytes += batch_bytes(batch);
            self.calls.push(Done::Batch(batch.clone()));
        }
    }
}

/// The newest record of an object: rows that come from none in particular have its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Newest {
    id: RecordId,
    source: u32,
    sequence: u64,
    intended: i64,
    class: u32,
    /// Rows that `advance` gave since.
    given: u32,
}

/// What a snapshot has beside the state of the object.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Beside {
    newest: Option<Newest>,
    /// The newest event time, at least the watermark.
    time: EventTime,
}

/// One object in its process.
pub(crate) struct Object {
    running: RefCell<(Caller, Kept)>,
    has_advance: bool,
    beside: Beside,
    state_bytes: RefCell<usize>,
}

impl Object {
    pub(crate) fn new(caller: Caller, has_state: bool, has_advance: bool) -> Self {
        let kept = Kept { has_state, snapshot: None, calls: Vec::new(), bytes: 0 };
        Self {
            running: RefCell::new((caller, kept)),
            has_advance,
            beside: Beside { newest: None, time: EventTime::MIN },
            state_bytes: RefCell::new(0),
        }
    }

    fn see(&mut self, batch: &RecordBatch) {
        let metadata = Metadata::of(batch);
        let rows = batch.num_rows();
        if let Some(last) = rows.checked_sub(1) {
            self.beside.newest = Some(Newest {
                id: metadata.id(last),
                source: metadata.sources.value(last),
                sequence: metadata.sequences.value(last),
                intended: metadata.intended.value(last),
                class: metadata.classes.value(last),
                given: 0,
            });
        }
        let newest = metadata.times.values().iter().copied().max();
        self.beside.time = self.beside.time.max(newest.unwrap_or(EventTime::MIN));
    }

    /// Takes a snapshot where the way from the last one is long.
    fn shorten(&self) -> Result<(), OperatorError> {
        let (caller, kept) = &mut *self.running.borrow_mut();
        if kept.bytes < BYTES && kept.calls.len() < CALLS {
            return Ok(());
        }
        take_snapshot(caller, kept).map(drop)
    }

    /// Emits what `advance` gave, at this event time.
    fn emit(&mut self, given: Given, time: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        let rows = given.columns.first().map_or(0, |column| column.len());
        if rows == 0 {
            return Ok(());
        }
        let (caller, _) = &*self.running.borrow();
        let Some(newest) = &mut self.beside.newest else {
            let detail = format!("`advance` gave {rows} rows before the first record: they have no origin");
            output.dead_letters.push(DeadLetter {
                id: None,
                time: Some(time),
                reason: "python_output".into(),
                detail,
                values: Default::default(),
            });
            return Ok(());
        };
        let first = FIRST_OF_ADVANCE.saturating_add(newest.given);
        let ids: Vec<RecordId> = (0..rows as u32)
            .map(|row| derive_id(caller.number(), &[newest.id], first.saturating_add(row)))
            .collect();
        newest.given = newest.given.saturating_add(rows as u32);
        let metadata = metadata(&ids, newest, time)?;
        output.push(caller.rows(metadata, given.columns)?);
        Ok(())
    }
}

fn metadata(ids: &[RecordId], newest: &Newest, time: EventTime) -> Result<Vec<ArrayRef>, OperatorError> {
    use arrow_array::{FixedSizeBinaryArray, Int8Array, Int64Array, UInt64Array};
    use std::sync::Arc;
    let rows = ids.len();
    let bytes: Vec<u8> = ids.iter().flatten().copied().collect();
    let ids = FixedSizeBinaryArray::try_new(16, bytes.into(), None)
        .map_err(|error| OperatorError::new(error.to_string()))?;
    let all: Vec<ArrayRef> = vec![
        Arc::new(ids),
        Arc::new(UInt32Array::from(vec![newest.source; rows])),
        Arc::new(UInt64Array::from(vec![newest.sequence; rows])),
        Arc::new(Int64Array::from(vec![time; rows])),
        Arc::new(Int64Array::from(vec![newest.intended; rows])),
        Arc::new(UInt32Array::from(vec![newest.class; rows])),
        Arc::new(Int8Array::from(vec![1; rows])),
    ];
    debug_assert_eq!(all.len(), METADATA_COLUMNS);
    Ok(all)
}

/// Has the object write its state; the way from it is empty then. An object without `snapshot` has none.
fn take_snapshot(caller: &mut Caller, kept: &mut Kept) -> Result<Vec<u8>, OperatorError> {
    if !kept.has_state {
        return Ok(Vec::new());
    }
    let mut tries = 0;
    loop {
        match caller.process(kept)?.snapshot() {
            Ok(state) => {
                kept.snapshot = Some(state.clone());
                kept.calls.clear();
                kept.bytes = 0;
                return Ok(state);
            }
            Err(fault @ Fault::Failed { .. }) => {
                return Err(OperatorError::new(format!("`snapshot` failed: {}", detail(&fault))));
            }
            Err(fault) => {
                caller.forget();
                tries += 1;
                if tries > caller.setup.restart {
                    return Err(OperatorError::new(format!("`snapshot` failed: {}", detail(&fault))));
                }
            }
        }
    }
}

impl Stateful for Object {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        {
            let (caller, kept) = &mut *self.running.borrow_mut();
            if kept.has_state && kept.snapshot.is_none() {
                take_snapshot(caller, kept)?;
            }
            caller.compute(batch, kept, output)?;
        }
        self.see(batch);
        self.shorten()
    }

    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        let is_end = watermark == EventTime::MAX;
        // At the end, rows have the newest time: none comes later.
        let time = if is_end { self.beside.time } else { watermark };
        if !is_end {
            self.beside.time = self.beside.time.max(watermark);
        }
        if !self.has_advance {
            return Ok(());
        }
        let mut tries = 0;
        let given = loop {
            let (caller, kept) = &mut *self.running.borrow_mut();
            match caller.process(kept)?.advance(watermark) {
                Ok(given) => {
                    if kept.has_state {
                        kept.calls.push(Done::Advance(watermark));
                    }
                    break given;
                }
                Err(Fault::Failed { reason, detail }) => {
                    tries += 1;
                    match caller.setup.on_error {
                        OnError::Stop => {
                            return Err(OperatorError::new(format!("`advance` failed: {detail}")));
                        }
                        OnError::Retry if tries <= caller.setup.restart => caller.undo(kept),
                        OnError::Retry | OnError::DeadLetter => {
                            output.dead_letters.push(DeadLetter {
                                id: None,
                                time: Some(time),
                                reason: reason.into(),
                                detail: format!("`advance` failed: {detail}"),
                                values: Default::default(),
                            });
                            return Ok(());
                        }
                    }
                }
                Err(fault) => {
                    caller.forget();
                    tries += 1;
                    if tries > caller.setup.restart {
                        return Err(OperatorError::new(format!("`advance` failed: {}", detail(&fault))));
                    }
                }
            }
        };
        self.emit(given, time, output)?;
        self.shorten()
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let (caller, kept) = &mut *self.running.borrow_mut();
        let state = take_snapshot(caller, kept)?;
        let beside =
            serde_json::to_vec(&self.beside).map_err(|error| OperatorError::new(error.to_string()))?;
        let mut bytes = (beside.len() as u32).to_le_bytes().to_vec();
        bytes.extend(beside);
        bytes.extend(state);
        *self.state_bytes.borrow_mut() = bytes.len();
        Ok(bytes)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        let broken = || OperatorError::new("the snapshot of a step in Python cannot be read");
        let (length, rest) = snapshot.split_first_chunk::<4>().ok_or_else(broken)?;
        let (beside, state) =
            rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(broken)?;
        self.beside = serde_json::from_slice(beside).map_err(|_| broken())?;
        let (caller, kept) = &mut *self.running.borrow_mut();
        kept.calls.clear();
        kept.bytes = 0;
        if kept.has_state {
            kept.snapshot = Some(state.to_vec());
            let process = caller.process(kept)?;
            process
                .restore(state)
                .map_err(|fault| OperatorError::new(format!("`restore` failed: {}", detail(&fault))))?;
        }
        *self.state_bytes.borrow_mut() = snapshot.len();
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        *self.state_bytes.borrow()
    }
}
