//! Other methods to run a model, with the least effort first.
use super::ASSUMED_SOFTWARE;
use super::planned::Planned;
use tidemill_inference::payload::Payload;
use tidemill_replay::change::Change;
use tidemill_replay::run::Run;
use tidemill_spec::plan::{RemoteRun, Sends};
use tidemill_spec::profile::Service;

/// The known facts about runs of a model on a kind of device.
pub(super) struct Source<'a> {
    /// Bytes of a record's tensors, if known.
    pub(super) payload: Option<Payload>,
    /// Bytes of a record's columns, if known.
    pub(super) column: Option<f64>,
    /// Times of runs, if the profile has some.
    pub(super) service: Option<&'a Service>,
    /// How a plan runs it; none: there is no plan.
    pub(super) planned: Option<&'a Planned>,
    /// Whether the times are those of the plan's device.
    pub(super) is_on_device: bool,
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
    /// The columns, as the plan has it.
    Rows,
}

impl Source<'_> {
    /// The run of this number of records; none if its time or its bytes are not known.
    pub(super) fn run(&self, batch: u32) -> Option<Run> {
        self.sending(self.form(), batch)
    }

    fn form(&self) -> Sent {
        match self.planned.map(|planned| planned.sends) {
            Some(Sends::Rows) => Sent::Rows,
            Some(Sends::Tensors) | None => Sent::Tensors,
        }
    }

    /// Expectations of the plan of the device.
    fn expected(&self) -> Option<&RemoteRun> {
        self.planned.filter(|_| self.is_on_device)?.device.as_ref()?.expected.as_ref()
    }

    /// Seconds of a run by the profile.
    fn profiled(&self, batch: u32) -> Option<f64> {
        let times = self.service?.batch(batch)?;
        Some(times.typical().or(times.p75).filter(|time| time.0 > 0)?.0 as f64 / 1e9)
    }

    /// Seconds of a run on the device. With the batches that a plan expects, it gives the time of others there.
    fn local(&self, batch: u32) -> Option<f64> {
        let planned = self.planned.filter(|_| self.is_on_device);
        let compute = self.expected().map(|run| run.compute.0 as f64 / 1e9).filter(|seconds| *seconds > 0.0);
        if let (Some(planned), Some(compute)) = (planned, compute) {
            if planned.batch == batch {
                return Some(compute);
            }
            if let Some(known) = self.profiled(planned.batch) {
                return Some(self.profiled(batch)? * compute / known);
            }
        }
        let share = planned.and_then(|planned| planned.device.as_ref()).map_or(1.0, |device| device.share);
        Some(self.profiled(batch)? / share)
    }

    /// Bytes of a record there and back.
    fn bytes(&self, what: Sent) -> Option<[f64; 2]> {
        let planned = self.expected().map(|run| [run.sent.0 as f64, run.received.0 as f64]);
        let back = || Some(self.payload?.outputs as f64);
        match what {
            Sent::Tensors => match self.payload {
                Some(payload) => Some([payload.inputs as f64, payload.outputs as f64]),
                None => planned,
            },
            Sent::Bytes => Some([self.payload?.byte_inputs? as f64, back()?]),
            // It helps only if coded values are smaller.
            Sent::Columns => {
                let inputs = self.payload?.inputs as f64;
                Some([self.column.filter(|column| *column < inputs)?, back()?])
            }
            Sent::Rows => planned.or_else(|| Some([self.column?, back()?])),
        }
    }

    fn sending(&self, what: Sent, batch: u32) -> Option<Run> {
        let local = self.local(batch)?;
        let [up, down] = self.bytes(what)?.map(|bytes| bytes * f64::from(batch));
        let (each, per_byte) = ASSUMED_SOFTWARE;
        let software = self.software.unwrap_or(each + per_byte * (up + down));
        Some(Run { up, down, round_trips: 1, local, software, queue: self.queue })
    }
}

/// Returns the methods to run a model: as it is; prepared at the device; in a larger batch; with a model that takes bytes; and the
/// last two of these with batches. Where its rows are prepared there already, the batches alone.
pub(super) fn alternatives(source: &Source<'_>, run: Run, batch: u32) -> Vec<(Vec<Change>, Run)> {
    let sizes = source.service.into_iter().flat_map(|service| &service.batches);
    let mut larger: Vec<u32> = sizes.map(|times| times.batch).collect();
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
    if let Sent::Rows = source.form() {
        all.extend(batched(None, Sent::Rows));
        return all;
    }
    all.extend(alone(Change::PrepareAtDevice, Sent::Columns));
    all.extend(batched(None, Sent::Tensors));
    all.extend(alone(Change::ByteInput, Sent::Bytes));
    all.extend(batched(Some(Change::PrepareAtDevice), Sent::Columns));
    all.extend(batched(Some(Change::ByteInput), Sent::Bytes));
    all
}
