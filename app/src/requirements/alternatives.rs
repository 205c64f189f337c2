//! Other methods to run a model, with the least effort first.
use tidemill_inference::payload::Payload;
use tidemill_replay::change::Change;
use tidemill_replay::run::Run;
use tidemill_spec::profile::Service;

use super::ASSUMED_SOFTWARE;

/// The known facts about runs of a model on a kind of device.
pub(super) struct Source<'a> {
    /// Bytes of a record's tensors.
    pub(super) payload: Payload,
    /// Bytes of a record's columns, if known.
    pub(super) column: Option<f64>,
    /// Times of runs.
    pub(super) service: &'a Service,
    /// Seconds of processors for the messages of a run; none: assumed.
    pub(super) software: Option<f64>,
    /// Seconds that a run waits because others use the device.
    pub(super) queue: f64,
}

/// Bytes that are sent for a record.
#[derive(Clone, Copy)]
enum Sent {
    Tensors,
    Bytes,
    Columns,
}

impl Source<'_> {
    /// The run of this number of records; none if its time is not known.
    pub(super) fn run(&self, batch: u32) -> Option<Run> {
        self.sending(Sent::Tensors, batch)
    }

    fn sending(&self, what: Sent, batch: u32) -> Option<Run> {
        let times = self.service.batch(batch)?;
        let local = times.typical().or(times.p75).filter(|time| time.0 > 0)?.0 as f64 / 1e9;
        let records = f64::from(batch);
        let up = match what {
            Sent::Tensors => self.payload.inputs as f64,
            Sent::Bytes => self.payload.byte_inputs? as f64,
            // It helps only if coded values are smaller.
            Sent::Columns => self.column.filter(|column| *column < self.payload.inputs as f64)?,
        };
        let (up, down) = (up * records, self.payload.outputs as f64 * records);
        let (each, per_byte) = ASSUMED_SOFTWARE;
        let software = self.software.unwrap_or(each + per_byte * (up + down));
        Some(Run { up, down, round_trips: 1, local, software, queue: self.queue })
    }
}

/// Returns the methods to run a model: as it is; prepared at the device; in a larger batch; with a model that takes bytes; and the
/// last two of these with batches.
pub(super) fn alternatives(source: &Source<'_>, run: Run, batch: u32) -> Vec<(Vec<Change>, Run)> {
    let mut larger: Vec<u32> = source.service.batches.iter().map(|times| times.batch).collect();
    larger.retain(|size| *size > batch);
    larger.sort_unstable();
    let alone = |change, what| Some((vec![change], source.sending(what, batch)?));
    let batched = |first: Option<Change>, what| {
        let with = move |size: &u32| {
            let changes = first.into_iter().chain([Change::Batch(*size)]).collect();
            Some((changes, source.sending(what, *size)?))
        };
        larger.iter().filter_map(with).collect::<Vec<_>>()
    };
    let mut all = vec![(Vec::new(), run)];
    all.extend(alone(Change::PrepareAtDevice, Sent::Columns));
    all.extend(batched(None, Sent::Tensors));
    all.extend(alone(Change::ByteInput, Sent::Bytes));
    all.extend(batched(Some(Change::PrepareAtDevice), Sent::Columns));
    all.extend(batched(Some(Change::ByteInput), Sent::Bytes));
    all
}
