//! Executors of stages whose plan names a device: `proxy`, `device:ADDRESS`, or a server `oip:ADDRESS`.
//!
//! The rows are prepared and finished here; tensors go to the device and back. Runs are pure, so a batch whose device is lost
//! is computed again by a new session, and a device that cannot be reached is replaced by the back ends of this process. A batch
//! that loses three sessions is given back to the engine as lost: it may be the reason.
pub mod direct;
mod elsewhere;
mod prepared;
mod tried;

use crate::client::DeviceBackend;
use crate::open_inference::{self, OpenInference};
use crate::own_program;
use crate::reach::{Own, Place, ReachError, Reached};
use crate::rows::RemoteRows;
use arrow_array::RecordBatch;
use elsewhere::{Elsewhere, Inner};
use prepared::Prepared;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_device::session::Session;
use tidemill_engine::{
    ExecutorFactory, ExecutorRequest, ExecutorSpec, ModelExecutor, PreparedModel, start_local,
};
use tidemill_inference::MlKind;
use tidemill_inference::backend::{Backend, BackendError};
use tidemill_operators::api::{
    Concurrency, DeviceTimes, Inference, Instance, MakeInstance, OperatorError, Output,
};
use tidemill_operators::model::{ChosenBackend, ModelSpec};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::plan::device_of;

/// Sessions that one batch may lose, each time with a new one after it: more often, it may be the reason.
const MOST_LOST: u64 = 2;
/// How often a device that cannot be reached is tried, while this process computes instead.
const AGAIN: Duration = Duration::from_secs(10);

/// How many sessions may end while they load a model, before this process computes instead.
const LOADS: u32 = 3;

/// Registers the executors of this crate; once, before the program reads plans.
pub fn install() {
    own_program::register();
    for scheme in ["proxy", "device", open_inference::NAME] {
        tidemill_engine::register_executors(Arc::new(Devices { scheme, prepared: Prepared::default() }));
    }
}

/// The executors of one scheme.
struct Devices {
    scheme: &'static str,
    prepared: Prepared,
}

impl ExecutorFactory for Devices {
    fn scheme(&self) -> &str {
        self.scheme
    }

    fn prepare(&self, spec: &ExecutorSpec, _make: &MakeInstance) -> Result<PreparedModel, OperatorError> {
        // Loaded and tried once, so that a wrong model or device is found before the run begins. The first executor takes it.
        let elsewhere = Elsewhere::of(spec, false)?;
        let model = elsewhere.copy()?;
        self.prepared.keep(spec, &elsewhere);
        Ok(PreparedModel { backend: model.backend(), instance: Some(Box::new(model)) })
    }

    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        let (elsewhere, first) = match self.prepared.take(&request.spec) {
            Some(elsewhere) => {
                let Instance::Inference(model) = (request.make)()? else {
                    return Err(OperatorError::new("only models compute on a device"));
                };
                (elsewhere, model)
            }
            None => {
                let elsewhere = Elsewhere::of(&request.spec, request.again)?;
                // It finds the device, so that the start fails where it cannot be reached.
                let model: Box<dyn Inference> = Box::new(elsewhere.copy()?);
                (elsewhere, model)
            }
        };
        let first = Mutex::new(Some(first));
        let make: MakeInstance = Arc::new(move || {
            let ready = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let model = ready.map_or_else(|| elsewhere.copy().map(|model| Box::new(model) as _), Ok);
            model.map(Instance::Inference)
        });
        start_local(request, &make, &request.spec.device)
    }
}

/// A device, and the model that it is to compute.
struct Device {
    name: String,
    /// The place that the plan chose, then its spares.
    targets: Vec<Target>,
    spec: ModelSpec,
    models: MlKind,
    /// The workflow: limits and shares of the device are by tenant.
    tenant: String,
    client: String,
    /// Whether rows go there as they are, to be prepared and finished at the device. A server gets tensors in any case.
    sends_rows: bool,
}

/// Where a model is to compute.
enum Target {
    /// On a device, by a session.
    Device(Place),
    /// On a server that has it.
    Server(OpenInference),
}

fn text(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::new(error.to_string())
}

/// The error of a device that has no address: one of the plan has only a name then.
fn without_address(device: &str, operator: &str, error: ReachError) -> OperatorError {
    let Some(id) = device_of(device) else { return text(error) };
    OperatorError::new(format!(
        "the plan's device `{id}` has no `address`: write it in the infrastructure and plan again, give \
         `--device {operator}=tcp://HOST:PORT`, or let `tidemill deploy` start it"
    ))
}

impl Device {
    fn of(spec: &ExecutorSpec) -> Result<Self, OperatorError> {
        let model = spec.model.clone().ok_or_else(|| {
            let device = &spec.device;
            OperatorError::new(format!(
                "the model of stage '{}' belongs to this program, so it cannot compute on {device}",
                spec.stage
            ))
        })?;
        let at = |address: &String| {
            Ok(match OpenInference::serves(address) {
                true => Target::Server(OpenInference::at(address).map_err(text)?.for_model(&model.variant)),
                false => Target::Device(Place::at(address).map_err(text)?),
            })
        };
        let first = match &spec.address {
            Some(address) => at(address)?,
            None if OpenInference::serves(&spec.device) => at(&spec.device)?,
            None => {
                let place: Result<Place, ReachError> = spec.device.parse();
                let place = place.map_err(|error| without_address(&spec.device, &model.operator, error))?;
                Target::Device(own_program::place(place, &model.backend))
            }
        };
        let spares = spec.spares.iter().map(at);
        Ok(Self {
            name: spec.device.clone(),
            targets: std::iter::once(Ok(first)).chain(spares).collect::<Result<_, OperatorError>>()?,
            tenant: spec.workflow.clone(),
            client: spec.stage.clone(),
            spec: model,
            models: MlKind::default(),
            sends_rows: spec.sends_rows,
        })
    }

    /// The address of a target, for messages.
    fn address(&self, at: usize) -> String {
        match &self.targets[at] {
            Target::Device(Place::At { address, .. }) => address.to_string(),
            Target::Device(Place::Own { .. }) => self.name.clone(),
            Target::Server(server) => server.place().to_owned(),
        }
    }

    /// Says why this process computes instead. `drained`: the address of the device whose session has just ended because it is drained:
    /// advice to start it would be wrong.
    fn instead(&self, error: &OperatorError, drained: Option<&str>) -> String {
        match drained.filter(|_| error.lost) {
            Some(address) => format!(
                "{address}: the device is drained: this process computes instead, and looks for it every {} s",
                AGAIN.as_secs()
            ),
            None => format!("{error}: this process computes instead until it answers"),
        }
    }

    /// Opens a session and chooses the back end, or looks whether a server has the model.
    fn connected(self: &Arc<Self>, at: usize) -> Result<Connected, OperatorError> {
        let lost = |error: &dyn std::fmt::Display| OperatorError::lost(format!("{}: {error}", self.name));
        let blueprint = || {
            let blueprint = self.models.blueprint(&self.spec.manifest);
            blueprint.map_err(tidemill_inference::error::ModelError::collect)
        };
        let there = match &self.targets[at] {
            Target::Device(place) => {
                let reached = place.reach(&self.spec.libraries, &self.tenant, &self.client);
                let Reached { session, own } = reached.map_err(|error| match error {
                    ReachError::BackEnd { .. } | ReachError::Name { .. } => text(error),
                    other => lost(&other),
                })?;
                let session = Arc::new(session);
                let backend = chosen(&blueprint()?.manifest, &self.spec.backend, &session)
                    .map_err(|reason| OperatorError::new(format!("{}: {reason}", self.name)))?;
                let backend = DeviceBackend::new(Arc::clone(&session), &backend);
                There::Device { backend, session, own }
            }
            Target::Server(server) => {
                let blueprint = blueprint()?.for_backend(server.name());
                server.load(&blueprint.facts).map_err(|error| match error {
                    BackendError::Lost { reason, .. } => lost(&reason),
                    other => text(other),
                })?;
                There::Server(server.clone())
            }
        };
        Ok(Connected { device: Arc::clone(self), at, there })
    }
}

/// The back end of the device that the stage asks for, or the device's first one that the manifest allows.
fn chosen(manifest: &Manifest, asked: &str, session: &Session) -> Result<String, String> {
    let has: Vec<&str> = session.snapshot().backends.iter().map(|(name, _)| name.as_str()).collect();
    let allowed = |name: &&str| manifest.backends.iter().any(|allowed| allowed.0 == **name);
    let found = match asked {
        "auto" => has.iter().find(|name| allowed(name)),
        asked => has.iter().find(|name| **name == asked),
    };
    found.map(|name| (*name).to_owned()).ok_or_else(|| {
        let wanted = match asked {
            "auto" => manifest.backends.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
            asked => asked.to_owned(),
        };
        format!("the model needs the back end {wanted}, the device has {}", has.join(", "))
    })
}

/// A session with a device, or a server, for all copies of a model.
struct Connected {
    device: Arc<Device>,
    /// Position of the target.
    at: usize,
    there: There,
}

enum There {
    Device {
        backend: DeviceBackend,
        session: Arc<Session>,
        /// Lives as long as the session.
        own: Option<Own>,
    },
    Server(OpenInference),
}

/// Where the time of a copy's runs went since the last look.
type Times = Arc<Mutex<DeviceTimes>>;

fn take(times: &Times) -> DeviceTimes {
    std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Connected {
    /// Why the session is lost. Runs on a server have no session: each of them reports a loss itself.
    fn lost(&self) -> Option<String> {
        match &self.there {
            There::Device { session, .. } => session.lost(),
            There::Server(_) => None,
        }
    }

    /// Its address, for messages.
    fn address(&self) -> String {
        self.device.address(self.at)
    }

    /// Whether the device ended the session: the next one belongs elsewhere.
    fn is_dismissed(&self) -> bool {
        matches!(&self.there, There::Device { session, .. } if session.is_dismissed())
    }

    /// Its address, if the whole device is drained, not only this session.
    fn drained(&self) -> Option<String> {
        let There::Device { session, .. } = &self.there else { return None };
        session.is_drained().then(|| self.address())
    }

    /// Where to look for the next session, as a position: here, unless this device takes no session any more.
    fn next(&self) -> usize {
        self.at + usize::from(self.is_dismissed())
    }

    /// A copy of the model, with times of its own: another copy may compute a batch meanwhile.
    fn instance(&self) -> Result<(Box<dyn Inference>, Times), OperatorError> {
        let Device { name, spec, models, sends_rows, .. } = &*self.device;
        let (why, times) = (format!("on {name}"), Times::default());
        let instance = match &self.there {
            There::Device { backend, .. } if *sends_rows => {
                let chosen = ChosenBackend { name: backend.name().to_owned(), why };
                let rows = RemoteRows::load(spec, backend, name, chosen, Arc::clone(&times))?;
                return Ok((Box::new(rows), times));
            }
            There::Device { backend, .. } => {
                models.instance_on(spec, &backend.timed(Arc::clone(&times)), &why)?
            }
            There::Server(server) => models.instance_on(spec, &server.timed(Arc::clone(&times)), &why)?,
        };
        // The trial of a loaded model is part of no batch.
        take(&times);
        Ok((instance, times))
    }

    fn inner(self: Arc<Self>) -> Result<Inner, OperatorError> {
        let (instance, times) = self.instance()?;
        Ok(Inner::There(self, instance, times))
    }
}

/// One copy.
struct Remote {
    shared: Arc<Elsewhere>,
    /// Number of the session.
    number: u64,
    inner: Inner,
}

impl Remote {
    fn model(&mut self) -> &mut dyn Inference {
        match &mut self.inner {
            Inner::There(_, model, _) | Inner::Here(model) => model.as_mut(),
        }
    }

    /// Whether it has a session that is not lost: what it could not compute found no memory.
    fn is_connected(&self) -> bool {
        let Inner::There(connected, ..) = &self.inner else { return false };
        matches!(connected.there, There::Device { .. }) && connected.lost().is_none()
    }

    /// Whether its session gave no sign of life, or computed for too long.
    fn is_stalled(&self) -> bool {
        let Inner::There(connected, ..) = &self.inner else { return false };
        matches!(&connected.there, There::Device { session, .. } if session.is_stalled())
    }

    /// One attempt. The error is lost if the device is, whatever the model made of it.
    fn attempt(&mut self, parts: &[RecordBatch]) -> Result<Output, OperatorError> {
        let mut output = Output::default();
        let result = self.model().infer_parts(parts, &mut output);
        match &self.inner {
            Inner::There(connected, _, times) => {
                if let Some(reason) = connected.lost() {
                    return Err(OperatorError::lost(format!("{}: {reason}", self.shared.device.name)));
                }
                let on_spare = u64::from(connected.at > 0);
                output.device = Some(DeviceTimes { on_spare, ..take(times) });
            }
            Inner::Here(_) => output.device.get_or_insert_default().here = 1,
        }
        result.map(|()| output)
    }
}

impl Inference for Remote {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.infer_parts(std::slice::from_ref(batch), output)
    }

    fn infer_parts(&mut self, parts: &[RecordBatch], output: &mut Output) -> Result<(), OperatorError> {
        let (mut lost, mut stalled) = (0, 0);
        if matches!(self.inner, Inner::Here(_)) {
            self.shared.look_again();
            if self.shared.is_there() {
                (self.number, self.inner) = self.shared.current(None)?;
            }
        }
        loop {
            match self.attempt(parts) {
                Ok(done) => {
                    *output = done;
                    if lost > 0 {
                        let times = output.device.get_or_insert_default();
                        (times.lost, times.stalled) = (times.lost + lost, times.stalled + stalled);
                    }
                    return Ok(());
                }
                Err(error) if error.lost && lost == 0 && self.is_connected() => {
                    self.inner = self.shared.leave(self.number, &error)?;
                }
                Err(error) if error.lost && lost < MOST_LOST => {
                    lost += 1;
                    stalled += u64::from(self.is_stalled());
                    tracing::warn!(
                        model = self.shared.device.spec.variant,
                        "{error}: the batch is computed again"
                    );
                    (self.number, self.inner) = self.shared.current(Some(self.number))?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn processor_time_elsewhere(&self) -> Duration {
        match &self.inner {
            Inner::There(..) => Duration::ZERO,
            Inner::Here(model) => model.processor_time_elsewhere(),
        }
    }

    fn backend(&self) -> Option<ChosenBackend> {
        match &self.inner {
            Inner::There(_, model, _) | Inner::Here(model) => model.backend(),
        }
    }

    fn concurrency(&self) -> Option<Concurrency> {
        None
    }
}

#[cfg(test)]
mod tests;
