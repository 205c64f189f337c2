//! Speeds of a plan's workers, as ratios to this machine.
use super::on_devices::{self, DeviceSpeed};
use crate::failure::{Failure, Kind};
use crate::machine::Machine;
use crate::preparation::Prepared;
use std::fmt;
use tidemill_engine::AssumedTimes;
use tidemill_operators::api::Computation;
use tidemill_spec::plan::SOURCE_DEVICE;
use tidemill_spec::profile::{BatchTime, How, Machine as Measured, Profile, Service};
use tidemill_spec::units::{Percentile, TimeSpan};

/// Origin of a worker's speed.
#[derive(Debug, Clone, PartialEq)]
pub enum Basis {
    /// This machine equals the worker: calls take their natural time.
    Offered,
    /// This machine under a quota of this share of a processor equals the worker.
    Quota(f64),
    /// By the profile.
    Enforced,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Basis::Offered => f.write_str("as this machine"),
            Basis::Quota(share) => write!(f, "this machine with {share} of a processor"),
            Basis::Enforced => f.write_str("enforced by the profile"),
        }
    }
}

/// Seconds of calls by their records, ascending; never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Times(Vec<(u32, f64)>);

impl Times {
    /// Creates it from calls by number of records; `None` without a positive time.
    pub fn new(mut times: Vec<(u32, f64)>) -> Option<Self> {
        times.retain(|(records, seconds)| *records > 0 && *seconds > 0.0);
        times.sort_by_key(|(records, _)| *records);
        (!times.is_empty()).then_some(Self(times))
    }

    /// The expected time of each batch: mean, else median, else the least known percentile.
    fn of(service: &Service) -> Option<Self> {
        let typical = |batch: &BatchTime| {
            let named = || batch.percentiles().into_iter().find_map(|(_, time)| time);
            let TimeSpan(nanoseconds) =
                batch.typical().or_else(|| batch.at(Percentile(50.0))).or_else(named)?;
            Some((batch.batch, nanoseconds as f64 / 1e9))
        };
        Self::new(service.batches.iter().filter_map(typical).collect())
    }

    /// Seconds of a call of `records` records: interpolated linearly, proportional above the largest.
    pub fn at(&self, records: u32) -> f64 {
        let above = self.0.iter().position(|(known, _)| *known >= records);
        match above {
            None => {
                let (known, seconds) = self.0[self.0.len() - 1];
                seconds * f64::from(records) / f64::from(known)
            }
            Some(0) => self.0[0].1,
            Some(above) => {
                let ((low, from), (high, to)) = (self.0[above - 1], self.0[above]);
                from + (to - from) * f64::from(records - low) / f64::from(high - low)
            }
        }
    }

    fn scaled(mut self, factor: f64) -> Self {
        self.0.iter_mut().for_each(|(_, seconds)| *seconds *= factor);
        self
    }
}

/// The profiled calls of a model on a type of machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Known {
    pub(super) times: Times,
    /// Additional seconds of a call after a pause.
    pub(super) after_pause: f64,
}

impl Known {
    /// None without a positive time.
    pub(super) fn of(profile: &Profile, service: &Service) -> Option<Self> {
        Some(Self { times: Times::of(service)?, after_pause: longer(profile, service) })
    }

    pub(super) fn scaled(self, factor: f64) -> Self {
        Self { times: self.times.scaled(factor), after_pause: self.after_pause * factor }
    }
}

/// Speed of a stage with a model on its worker.
#[derive(Debug, Clone, PartialEq)]
pub struct StageSpeed {
    /// Id of the stage.
    pub stage: String,
    /// Its operator.
    pub operator: String,
    /// Its model.
    pub variant: Option<String>,
    /// Its worker.
    pub worker: String,
    /// The device that computes its model; `there` is then the rest, on the worker.
    pub device: Option<DeviceSpeed>,
    /// Records of a full batch.
    pub max_batch: u32,
    /// Origin of the speed.
    pub basis: Basis,
    /// Calls on the worker by the profile; `None` if unknown and not needed.
    pub there: Option<Times>,
    /// Calls on this machine; `None`: to be measured.
    pub here: Option<Times>,
    /// Additional time of calls after a pause, seconds: on the worker and here.
    pub after_pause: (f64, f64),
    /// The worker's share of a processor, if `there` is a whole one.
    pub share: Option<f64>,
    /// For calls of 1, 2, ... records.
    pub ratios: Vec<f64>,
}

impl StageSpeed {
    /// Computes the ratios, once both times are known.
    pub fn settle(&mut self) {
        if let (Some(_), Some(here)) = (&self.device, &self.here) {
            let ratio = |records| self.seconds_in_all(records) / here.at(records);
            self.ratios = (1..=self.max_batch.max(1)).map(ratio).collect();
            return;
        }
        self.ratios = match (&self.basis, &self.there, &self.here) {
            (Basis::Enforced, Some(there), Some(here)) => {
                (1..=self.max_batch.max(1)).map(|records| there.at(records) / here.at(records)).collect()
            }
            _ => Vec::new(),
        };
    }

    /// Seconds of a call on worker, links and device, if nothing else is there.
    fn seconds_in_all(&self, records: u32) -> f64 {
        let worker = self.there.as_ref().map_or(0.0, |times| times.at(records)) / self.share.unwrap_or(1.0);
        worker + self.device.as_ref().map_or(0.0, |on| on.network + on.model.at(records))
    }

    /// Returns the stage and its calls' times, if its speed is enforced.
    pub fn assumed(&self) -> Option<(String, AssumedTimes)> {
        let is_paced = self.basis == Basis::Enforced && self.device.is_none();
        let here = self.here.as_ref().filter(|_| is_paced)?;
        let here = (1..=self.max_batch.max(1)).map(|records| here.at(records)).collect();
        Some((self.stage.clone(), AssumedTimes { here, after_pause: self.after_pause }))
    }

    /// Seconds of its worker that a call of `records` records takes by the profile, after a pause.
    pub fn seconds_there(&self, records: u32) -> Option<f64> {
        Some((self.there.as_ref()?.at(records) + self.after_pause.0) / self.share.unwrap_or(1.0))
    }

    /// The ratio of full calls.
    pub fn full_ratio(&self) -> f64 {
        self.ratios.last().copied().unwrap_or(1.0)
    }
}

/// Returns the speeds of all stages with models; missing times on this machine are left out.
pub(super) fn of(
    prepared: &Prepared,
    profile: &Profile,
    no_profile: bool,
    host: &Machine,
) -> Result<Vec<StageSpeed>, Failure> {
    let program = &prepared.program;
    let mut speeds = Vec::new();
    for stage in &program.plan.stages {
        let is_model =
            program.operators.get(&stage.id).is_some_and(|bound| bound.computation == Computation::Inference);
        // No edge is cut in an emulated run, so stand-ins are not used.
        if !is_model || stage.stands_in_for.is_some() {
            continue;
        }
        let chosen = prepared.models.iter().find(|model| model.stage == stage.id);
        let variant = chosen.map(|model| model.variant.as_str()).or(stage.variant.as_deref());
        let name = match variant {
            Some(variant) => format!("{}/{variant}", stage.operator),
            None => stage.operator.clone(),
        };
        let worker = program.plan.workers.iter().find(|worker| worker.id == stage.worker);
        let Some(worker) = worker.filter(|worker| worker.worker_type != SOURCE_DEVICE) else {
            let message = format!(
                "stage `{}` runs a model on `{}`, which is a device of sources",
                stage.id, stage.worker
            );
            return Err(Failure::new(Kind::Configuration, message)
                .with_help("give it a worker of the infrastructure: `tidemill plan` does"));
        };
        if no_profile {
            let message = format!(
                "the speed of `{name}` on `{}` is not known: there is no profile",
                worker.worker_type
            );
            return Err(Failure::new(Kind::Configuration, message).with_help(
                "give `--profiles` with the profiles of the plan; `tidemill profile` creates one",
            ));
        }
        let backend = chosen.map(|model| model.backend.as_str()).or(stage.backend.as_deref());
        let find = |worker_type: &str| profile.service(&stage.operator, variant, backend, worker_type);
        let timed = |worker_type: &str| Known::of(profile, find(worker_type)?);
        let basis = basis(profile.machine(&worker.worker_type), host);
        let on_base = || base(profile, host).find_map(|machine| timed(&machine.worker_type));
        let on = on_devices::of(&program.plan, stage);
        let mut device = on
            .map(|device| on_devices::speed(program, (stage, &name), variant, profile, device))
            .transpose()?;
        let mut is_assumed = false;
        // The part of a call that the worker computes.
        let mut on_type = |worker_type: &str| match on {
            None => timed(worker_type),
            Some(_) => on_devices::on_worker(profile, stage, variant, worker_type).map(|(known, assumed)| {
                is_assumed |= assumed;
                known
            }),
        };
        let own = on_type(&worker.worker_type);
        // A share of a processor equals a whole one while its quota lasts, as in simulations.
        let whole = profile.whole_of(&worker.worker_type);
        let whole = whole.and_then(|(share, whole)| Some((share, on_type(&whole.worker_type)?)));
        // A quota lengthens consecutive calls by its share.
        let here = match &basis {
            _ if on.is_some() => on_base(),
            Basis::Offered => own.clone(),
            Basis::Quota(share) => on_base().or_else(|| own.clone().map(|known| known.scaled(*share))),
            Basis::Enforced => on_base(),
        };
        let (share, there) = match (whole, &basis) {
            (Some((share, there)), _) => (Some(share), Some(there)),
            (None, Basis::Quota(share)) if on.is_some() => {
                (Some(*share), own.map(|known| known.scaled(*share)))
            }
            (None, _) => (None, own),
        };
        let after_pause = (
            there.as_ref().map_or(0.0, |known| known.after_pause),
            // A time to be measured here is compared with the known one there.
            here.as_ref().or(there.as_ref()).map_or(0.0, |known| known.after_pause),
        );
        let (there, here) = (there.map(|known| known.times), here.map(|known| known.times));
        if let Some(device) = &mut device {
            device.is_assumed = is_assumed;
        }
        // The rest of a call whose model is elsewhere cannot be told from it here, so its time is that of the profile.
        let basis = match basis {
            Basis::Offered if on.is_some() => Basis::Enforced,
            basis => basis,
        };
        if there.is_none() && (basis == Basis::Enforced || on.is_some()) {
            let with = backend.map(|backend| format!(" with `{backend}`")).unwrap_or_default();
            let message = format!(
                "the profile has no times of `{name}`{with} on `{}`, where stage `{}` runs",
                worker.worker_type, stage.id
            );
            return Err(Failure::new(Kind::Configuration, message)
                .with_help("measure or write them (`tidemill profile`), or plan again with this profile"));
        }
        speeds.push(StageSpeed {
            stage: stage.id.clone(),
            operator: stage.operator.clone(),
            variant: variant.map(str::to_owned),
            worker: stage.worker.clone(),
            device,
            max_batch: stage.max_batch,
            basis,
            there,
            here,
            after_pause,
            share,
            ratios: Vec::new(),
        });
    }
    Ok(speeds)
}

/// Additional seconds of a call after a pause.
fn longer(profile: &Profile, service: &Service) -> f64 {
    profile.longer_after_pause(service, BatchTime::typical) / 1e9
}

/// Compares this machine with the worker by the profile: equal processor, equal number of processors used by a call, no
/// stated factor.
fn basis(machine: Option<&Measured>, host: &Machine) -> Basis {
    let Some(machine) = machine.filter(|machine| is_here(machine, host)) else { return Basis::Enforced };
    match machine.cores {
        Some(cores) if cores < 1.0 => Basis::Quota(cores),
        Some(cores) if cores > host.cores as f64 => Basis::Enforced,
        _ => Basis::Offered,
    }
}

fn is_here(machine: &Measured, host: &Machine) -> bool {
    let same = !host.processor.is_empty() && machine.cpu.as_deref() == Some(host.processor.as_str());
    let figures = matches!(machine.how, How::Measured | How::Limited);
    same && figures && machine.factor.is_none_or(|factor| factor == 1.0)
}

/// Worker types whose calls take their time here, the most similar first: with as many processors, then others with at
/// least one, because a call computes in one thread.
fn base<'a>(profile: &'a Profile, host: &'a Machine) -> impl Iterator<Item = &'a Measured> {
    let whole = |machine: &&Measured| {
        is_here(machine, host) && machine.cores.is_none_or(|cores| (1.0..=host.cores as f64).contains(&cores))
    };
    let exact = |machine: &&Measured| machine.cores == Some(host.cores as f64);
    let first = profile.machines.iter().filter(whole).filter(exact);
    first.chain(profile.machines.iter().filter(whole).filter(move |machine| !exact(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Machine {
        Machine { processor: "A Processor".to_owned(), cores: 2, ..Machine::default() }
    }

    fn machine(cores: f64, how: How, factor: Option<f64>) -> Measured {
        Measured {
            worker_type: format!("t{cores}"),
            how,
            cpu: Some("A Processor".to_owned()),
            cores: Some(cores),
            memory: None,
            factor,
            source: None,
            overheads: None,
        }
    }

    #[test]
    fn what_this_machine_can_be_is_not_enforced() {
        let of = |machine: &Measured| basis(Some(machine), &host());
        assert_eq!(of(&machine(2.0, How::Measured, None)), Basis::Offered);
        assert_eq!(of(&machine(1.0, How::Limited, None)), Basis::Offered, "a call computes in one thread");
        assert_eq!(of(&machine(0.5, How::Limited, None)), Basis::Quota(0.5));
        assert_eq!(of(&machine(0.5, How::Limited, Some(2.0))), Basis::Enforced, "by a factor");
        assert_eq!(of(&machine(4.0, How::Predicted, None)), Basis::Enforced);
        assert_eq!(of(&machine(2.0, How::Published, None)), Basis::Enforced);
        let mut other = machine(2.0, How::Measured, None);
        other.cpu = Some("Another".to_owned());
        assert_eq!(of(&other), Basis::Enforced);
        assert_eq!(basis(None, &host()), Basis::Enforced);
    }

    #[test]
    fn times_are_read_between_what_is_known() {
        let times = Times::new(vec![(8, 0.04), (1, 0.01), (0, 1.0)]).unwrap();
        let at = |records| (times.at(records) * 1e6).round() / 1e6;
        assert_eq!([at(1), at(8), at(16)], [0.01, 0.04, 0.08]);
        assert!((times.at(4) - (0.01 + 0.03 * 3.0 / 7.0)).abs() < 1e-12);
        assert_eq!(Times::new(Vec::new()), None);
    }

    #[test]
    fn ratios_go_by_the_records_of_a_call() {
        let mut speed = StageSpeed {
            stage: "s".to_owned(),
            operator: "o".to_owned(),
            variant: None,
            worker: "w".to_owned(),
            device: None,
            max_batch: 2,
            basis: Basis::Enforced,
            there: Times::new(vec![(1, 0.03), (2, 0.04)]),
            here: Times::new(vec![(1, 0.01), (2, 0.02)]),
            after_pause: (0.0, 0.0),
            share: None,
            ratios: Vec::new(),
        };
        speed.settle();
        assert_eq!(speed.ratios, [3.0, 2.0]);
        speed.basis = Basis::Offered;
        speed.settle();
        assert!(speed.ratios.is_empty());
        // On a device a call may take as long as all parts of it together.
        speed.device = Some(DeviceSpeed {
            device: "hub/card".to_owned(),
            kind: "card".to_owned(),
            model: Times::new(vec![(1, 0.005), (2, 0.01)]).unwrap(),
            after_pause: 0.0,
            sent: 1,
            received: 1,
            network: 0.005,
            is_assumed: false,
        });
        speed.settle();
        let tenths: Vec<f64> = speed.ratios.iter().map(|ratio| (ratio * 10.0).round()).collect();
        assert_eq!((tenths, speed.seconds_there(2)), (vec![40.0, 28.0], Some(0.04)));
    }
}
