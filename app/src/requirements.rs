//! The links over which the models of a workflow may run on another machine's device, if remoting may cost at most a budget.
//!
//! One run is compared with itself: on a device of this machine, and on the same device over a link. Its local time, which
//! includes preparing inputs and outputs, is that of the profile; its bytes are those of the manifest.
mod alternatives;
mod links;
mod planned;

use crate::choice::{self, Candidate};
use crate::failure::{Failure, Kind};
use crate::listener::Listener;
use crate::planning::{measuring, merged};
use crate::preparation::{Scope, load, load_plan};
use alternatives::{Source, alternatives};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidemill_inference::{inspect, location, payload};
use tidemill_replay::change::{Alternative, cheapest};
use tidemill_replay::frontier::{Bound, round_trips};
use tidemill_replay::link::{Link, nominal_bits, payload_rate};
use tidemill_replay::run::{Run, Term};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::Sends;
use tidemill_spec::profile::{How, Profile};
use tidemill_spec::variables::environment;
use tidemill_spec::workflow::{Operator, Workflow};

pub use links::KnownLink;
pub use planned::{Planned, PlannedDevice};

/// Processor time of the messages of a run, at both ends together, until it is measured: seconds of a run, and seconds of each
/// byte, which is copied some three times.
pub const ASSUMED_SOFTWARE: (f64, f64) = (60e-6, 0.3e-3 / 1_048_576.0);

/// Round trips for which the least bandwidth is given.
const ROUND_TRIPS: usize = 6;

/// A question.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Machines and links; none: only the named link is judged.
    pub infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`.
    pub profiles: Vec<PathBuf>,
    /// A plan: only its variants are judged, with its form of records, its batches and its devices. None: all, as tensors.
    pub plan: Option<PathBuf>,
    /// Kinds of devices; empty: that of the plan's device, else those that the links lead to, else all of the profile.
    pub devices: Vec<String>,
    /// The budget.
    pub bound: Bound,
    /// Records in a run; none: those of the plan, else 1.
    pub batch: Option<u32>,
    /// Round trip of the named link, in seconds.
    pub round_trip: Option<f64>,
    /// Bandwidth of the named link in each direction, in bits per second.
    pub bandwidth: Option<f64>,
    /// Seconds of processors for the messages of a run; none: [`ASSUMED_SOFTWARE`].
    pub software: Option<f64>,
    /// Seconds that a run waits because others use the device.
    pub queue: f64,
    /// Size of dimensions that manifests leave open.
    pub any: Option<u32>,
}

/// The answer.
#[derive(Debug, Clone)]
pub struct Requirements {
    /// Name of the workflow.
    pub workflow: String,
    /// The budget.
    pub bound: Bound,
    /// Records in a run; none: each model has those of the plan.
    pub batch: Option<u32>,
    /// Whether the processor time of messages is assumed.
    pub is_software_assumed: bool,
    /// Links that are judged.
    pub links: Vec<KnownLink>,
    /// Operators with models, in the order of the workflow.
    pub operators: Vec<OfOperator>,
    /// Models that are not judged.
    pub left_out: Vec<LeftOut>,
}

/// The answer for one operator.
#[derive(Debug, Clone)]
pub struct OfOperator {
    /// Its id.
    pub operator: String,
    /// Round trips of [`OfModel::least_bandwidths`], in seconds.
    pub round_trips: Vec<f64>,
    /// Its models on each kind of device.
    pub models: Vec<OfModel>,
}

/// The answer for one model on one kind of device.
#[derive(Debug, Clone)]
pub struct OfModel {
    /// Variant.
    pub variant: String,
    /// Kind of device.
    pub device: String,
    /// The form of a record that goes there.
    pub sends: Sends,
    /// Records in a run.
    pub batch: u32,
    /// How the plan runs it; none: there is no plan, or no stage of it.
    pub planned: Option<Planned>,
    /// Origin of its time.
    pub how: How,
    /// The run that is judged.
    pub run: Run,
    /// Least nominal bandwidth of each direction at the operator's round trips, in bits per second; none where no bandwidth is enough.
    pub least_bandwidths: Vec<Option<f64>>,
    /// Longest round trip over the named bandwidth, else over any bandwidth, in seconds; none if even none at all is too long.
    pub longest_round_trip: Option<f64>,
    /// The largest term, if the budget is exceeded even without a link.
    pub exceeded_by: Option<Term>,
    /// Verdicts on the links that lead to such a device.
    pub verdicts: Vec<Verdict>,
}

/// The verdict on one link.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Its place in [`Requirements::links`].
    pub link: usize,
    /// Part of the local time that is added.
    pub slow_down: f64,
    /// Whether that is within the budget.
    pub fits: bool,
    /// Largest part of what is added.
    pub binding: Term,
    /// The cheapest change that would make it fit, and the part that it would add.
    pub change: Option<(Alternative, f64)>,
}

/// A model that is not judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Operator.
    pub operator: String,
    /// Variant.
    pub variant: String,
    /// The reason, and what helps.
    pub why: String,
}

impl Requirements {
    /// Whether links were judged, and an operator has no model that fits any of them.
    pub fn is_no(&self) -> bool {
        let fits = |of: &OfModel| of.verdicts.iter().any(|verdict| verdict.fits);
        let is_judged = |of: &OfModel| !of.verdicts.is_empty();
        self.operators
            .iter()
            .any(|operator| operator.models.iter().any(is_judged) && !operator.models.iter().any(fits))
    }
}

/// Reads the files and judges all models.
///
/// # Errors
/// Everything that is wrong with the files; a profile that is missing or lacks the times of an operator, with the command that
/// measures them.
pub fn requirements(
    workflow_file: &Path,
    asked: &Asked,
    listener: &dyn Listener,
) -> anyhow::Result<Requirements> {
    let workflow = load(workflow_file, &environment, Scope::Files, listener)?;
    let infrastructure = asked.infrastructure.as_deref().map(Infrastructure::load).transpose()?;
    let folder = asked.profiles.first().cloned();
    let measure = |profile: Option<PathBuf>| {
        let beside = || workflow_file.with_file_name("profile");
        measuring(workflow_file, asked.infrastructure.as_deref(), &profile.unwrap_or_else(beside))
    };
    if asked.profiles.is_empty() {
        let message = "no profile: it has the time of a run";
        let help = format!("give `--profiles`, or measure one: {}", measure(None));
        return Err(Failure::new(Kind::Usage, message).with_help(help).into());
    }
    let (profile, _) =
        merged(&asked.profiles, (&workflow, workflow_file), asked.infrastructure.as_deref(), listener)?;
    let candidates = choice::candidates(&workflow)?;
    let plan = asked.plan.as_deref().map(|file| load_plan(file, &workflow, &candidates)).transpose()?;
    let mut links = links::known(asked, infrastructure.as_ref());
    links.extend(plan.iter().flat_map(planned::links));
    let judge = Judge { asked, profile: &profile, links: &links, devices: devices(asked, &profile, &links)? };
    let (mut operators, mut left_out) = (Vec::new(), Vec::new());
    for operator in &workflow.operators {
        let Some(list) = candidates.get(&operator.id.value) else { continue };
        let in_plan = |candidate| {
            plan.as_ref().map(|plan| planned::of(plan, &operator.id, candidate)).unwrap_or_default()
        };
        let is_planned = list.iter().any(|candidate| !in_plan(candidate).is_empty());
        let mut models = Vec::new();
        for candidate in list {
            let ways = in_plan(candidate);
            let ways: Vec<Option<&Planned>> = match ways.is_empty() {
                true if is_planned => continue,
                true => vec![None],
                false => ways.iter().map(Some).collect(),
            };
            for way in ways {
                match judge.candidate(&workflow, operator, candidate, way) {
                    Ok(found) => models.extend(found),
                    Err(why) => left_out.push(LeftOut {
                        operator: operator.id.value.clone(),
                        variant: candidate.manifest.id.value.clone(),
                        why,
                    }),
                }
            }
        }
        let is_timed = |candidate: &Candidate| {
            let id = candidate.manifest.id.as_str();
            profile.services.iter().any(|service| {
                service.operator == operator.id.value && service.variant.as_deref() == Some(id)
            })
        };
        if models.is_empty() && !list.iter().any(is_timed) {
            let message = format!("the profile has no times of `{}`", operator.id);
            return Err(Failure::new(Kind::Configuration, message)
                .with_help(format!("measure them: {}", measure(folder)))
                .into());
        }
        if !models.is_empty() {
            operators.push(judge.operator(operator, models));
        }
    }
    if let (true, Some(first)) = (operators.is_empty(), left_out.first()) {
        let message =
            format!("no model can be judged; {} of `{}`: {}", first.variant, first.operator, first.why);
        return Err(Failure::new(Kind::Configuration, message)
            .with_help("give other `--device`, `--batch` or `--any`, or a profile that has the times")
            .into());
    }
    if operators.is_empty() {
        let message = format!("`{}` has no operator with models", workflow.name);
        return Err(Failure::new(Kind::Usage, message)
            .with_help("only runs of models can be remoted: operators of the kind `ml`")
            .into());
    }
    Ok(Requirements {
        workflow: workflow.name.value.clone(),
        bound: asked.bound,
        batch: asked.batch.or(plan.is_none().then_some(1)),
        is_software_assumed: asked.software.is_none(),
        links,
        operators,
        left_out,
    })
}

/// Kinds of devices that are judged.
fn devices(asked: &Asked, profile: &Profile, links: &[KnownLink]) -> Result<Vec<String>, Failure> {
    let known: BTreeSet<&str> = profile.machines.iter().map(|machine| machine.worker_type.as_str()).collect();
    if let Some(unknown) = asked.devices.iter().find(|device| !known.contains(device.as_str())) {
        let suggestion =
            tidemill_spec::diagnostic::suggestion(unknown, known.iter().copied(), "kinds of devices");
        let message = format!("no profile has the kind of device `{unknown}`");
        return Err(Failure::new(Kind::Usage, message).with_help(suggestion));
    }
    if !asked.devices.is_empty() {
        return Ok(asked.devices.clone());
    }
    let led_to: BTreeSet<&str> = links.iter().flat_map(KnownLink::devices).collect();
    let all = profile.machines.iter().map(|machine| machine.worker_type.clone());
    Ok(all.filter(|kind| led_to.is_empty() || led_to.contains(kind.as_str())).collect())
}

/// Judges models.
struct Judge<'a> {
    asked: &'a Asked,
    profile: &'a Profile,
    links: &'a [KnownLink],
    devices: Vec<String>,
}

impl Judge<'_> {
    /// Judges a model on each kind of device, as a plan runs it; the reason if it cannot be judged on any.
    fn candidate(
        &self,
        workflow: &Workflow,
        operator: &Operator,
        candidate: &Candidate,
        planned: Option<&Planned>,
    ) -> Result<Vec<OfModel>, String> {
        let manifest = &candidate.manifest;
        let path = workflow.resolve(&candidate.written);
        let facts = || inspect(&location::file(manifest, &path)).ok();
        let payload = payload::payload(manifest, self.asked.any, facts).map_err(|error| error.to_string());
        let place = planned.and_then(|planned| planned.device.as_ref());
        let devices = match place {
            Some(place) if self.asked.devices.is_empty() => std::slice::from_ref(&place.kind),
            _ => &self.devices,
        };
        let batch = self.asked.batch.or(planned.map(|planned| planned.batch)).unwrap_or(1);
        let mut found = Vec::new();
        for device in devices {
            let (variant, backend) = (Some(manifest.id.as_str()), operator.named_backend());
            let service = self.profile.service(&operator.id, variant, backend, device);
            let source = Source {
                payload: payload.as_ref().ok().copied(),
                column: self.column_bytes(operator),
                service,
                planned,
                is_on_device: place.is_some_and(|place| place.kind == *device),
                software: self.asked.software,
                queue: self.asked.queue,
            };
            if let Some(run) = source.run(batch) {
                let ways = alternatives(&source, run, batch);
                let id = place.map(|place| (place.id.as_str(), operator.id.as_str()));
                let of = self.model(run, &ways, device, id.filter(|_| source.is_on_device));
                found.push(OfModel {
                    variant: manifest.id.value.clone(),
                    sends: planned.map_or(Sends::Tensors, |planned| planned.sends),
                    batch,
                    planned: planned.cloned(),
                    how: service.map_or(How::Predicted, |service| service.how),
                    ..of
                });
            }
        }
        if !found.is_empty() {
            return Ok(found);
        }
        payload?;
        let named = devices.join(", ");
        let sizes = self.sizes((&operator.id, &manifest.id), devices);
        Err(match planned.map(|planned| planned.sends) {
            _ if sizes.is_empty() => format!("the profile has no time of it on {named}"),
            Some(Sends::Rows) if sizes.contains(&batch) => {
                format!(
                    "the plan sends rows of it, and neither the plan nor the profile has their sizes before {}",
                    operator.id
                )
            }
            _ => {
                let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
                format!("the profile has no batches of {batch} on {named}, only of {}", sizes.join(", "))
            }
        })
    }

    /// Sizes of batches of a model that the profile has times of, on these devices.
    fn sizes(&self, (operator, variant): (&str, &str), devices: &[String]) -> BTreeSet<u32> {
        let of = self.profile.services.iter().filter(|service| {
            service.operator == operator
                && service.variant.as_deref() == Some(variant)
                && devices.contains(&service.worker_type)
        });
        of.flat_map(|service| &service.batches).map(|times| times.batch).collect()
    }

    /// The answer for a run; `planned`: device and operator of the plan.
    fn model(
        &self,
        run: Run,
        ways: &[(Vec<tidemill_replay::change::Change>, Run)],
        device: &str,
        planned: Option<(&str, &str)>,
    ) -> OfModel {
        let bound = self.asked.bound;
        let rate = self.asked.bandwidth.map_or(f64::INFINITY, payload_rate);
        let longest = bound.longest_round_trip(&run, rate, rate);
        let judged = self.links.iter().enumerate();
        let judged = judged.filter(|(_, link)| link.is_judged(device, planned));
        let verdicts = judged.map(|(place, known)| {
            let link = known.link();
            let fits = bound.fits(&run, &link);
            let change = if fits { None } else { cheapest(ways, &link, bound) };
            Verdict {
                link: place,
                slow_down: run.slow_down(&link, bound.window),
                fits,
                binding: run.binding(&link, bound.window),
                change: change.map(|way| {
                    let slow_down = way.run.slow_down(&link, way.window);
                    (way, slow_down)
                }),
            }
        });
        let at_once = Link { round_trip: 0.0, up: rate, down: rate };
        OfModel {
            variant: String::new(),
            device: device.to_owned(),
            sends: Sends::Tensors,
            batch: 1,
            planned: None,
            how: How::Measured,
            run,
            least_bandwidths: Vec::new(),
            longest_round_trip: longest,
            exceeded_by: longest.is_none().then(|| run.binding(&at_once, bound.window)),
            verdicts: verdicts.collect(),
        }
    }

    fn operator(&self, operator: &Operator, mut models: Vec<OfModel>) -> OfOperator {
        let bound = self.asked.bound;
        let longest = |of: &OfModel| bound.longest_round_trip(&of.run, f64::INFINITY, f64::INFINITY);
        let round_trips = match self.asked.round_trip {
            Some(round_trip) => vec![round_trip],
            None => {
                let longest = models.iter().filter_map(longest).fold(0.0, f64::max);
                round_trips(longest, ROUND_TRIPS)
            }
        };
        for of in &mut models {
            let least = |round_trip: &f64| bound.least_bandwidth(&of.run, *round_trip).map(nominal_bits);
            of.least_bandwidths = round_trips.iter().map(least).collect();
        }
        OfOperator { operator: operator.id.value.clone(), round_trips, models }
    }

    /// Bytes of a record at the inputs of an operator, if the profile has them: those of its columns, coded.
    fn column_bytes(&self, operator: &Operator) -> Option<f64> {
        let inputs = operator.inputs.iter().zip(0_u32..);
        let bytes = inputs.map(|(input, place)| {
            let edge = (input.from.as_str(), operator.id.as_str(), place);
            Some(self.profile.bytes_per_record(edge, &std::collections::BTreeMap::new())?.0 as f64)
        });
        bytes.sum()
    }
}

#[cfg(test)]
mod tests;
