//! Models on a server of the Open Inference Protocol, such as Triton or KServe: a device `oip:http://HOST:PORT` or
//! `oip:grpc://HOST:PORT` of a plan.
//!
//! The server has the model already. Loading it here compares the description of the server with the file of the manifest;
//! each run sends its inputs as bytes and waits for its outputs.
//!
//! ```
//! use tidemill_inference::backend::Backend;
//! use tidemill_remote::open_inference::OpenInference;
//! let server = OpenInference::at("oip:http://hub:8000?timeout=5s#vehicles")?;
//! assert_eq!(server.name(), "oip");
//! assert!(OpenInference::at("oip:hub:8000").is_err_and(|error| error.to_string().contains("oip:http://")));
//! # Ok::<(), tidemill_inference::backend::BackendError>(())
//! ```
mod address;
mod agreement;
mod elements;
mod grpc;
mod http;
mod messages;
mod transport;

use crate::tensors::bytes_of;
use address::{Address, Scheme};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tidemill_inference::backend::{Backend, BackendError, Session};
use tidemill_inference::facts::{ModelFacts, Port, PortElement};
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_operators::api::DeviceTimes;
use tidemill_spec::types::ElementType;
use tokio::time::Instant;
use transport::{Failed, Input, Output, Transport};

/// Scheme of the devices, and name of the backend.
pub const NAME: &str = "oip";

/// A server of the protocol as a backend.
#[derive(Debug, Clone)]
pub struct OpenInference {
    address: Address,
    /// Name of the model, where the device has none.
    model: Option<String>,
    version: OnceLock<String>,
    times: Arc<Mutex<DeviceTimes>>,
}

impl OpenInference {
    /// The server of a device: `oip:http://HOST:PORT` or `oip:grpc://HOST:PORT`, and after it, where needed, a path
    /// (`/PREFIX`, before `/v2`), options (`?version=2&timeout=30s`) and the name of the model there (`#NAME`). Connects
    /// nothing yet.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] if it is no such name.
    pub fn at(device: &str) -> Result<Self, BackendError> {
        let address = Address::parse(device).map_err(|reason| BackendError::Unavailable {
            backend: NAME,
            reason: format!("`{device}` names no server of the Open Inference Protocol: {reason}"),
            fix: "write `oip:http://HOST:PORT` or `oip:grpc://HOST:PORT`, and `#NAME` after it if the model has \
                  another name there"
                .to_owned(),
        })?;
        Ok(Self { address, model: None, version: OnceLock::new(), times: Arc::default() })
    }

    /// Returns whether a device is a server of the protocol, by its scheme.
    pub fn serves(device: &str) -> bool {
        device.split_once(':').is_some_and(|(scheme, _)| scheme == NAME)
    }

    /// Host and port.
    pub fn place(&self) -> &str {
        &self.address.authority
    }

    /// Names the model as in its manifest. Where the device names it, that name stays; without both, it is the name of the
    /// file.
    #[must_use]
    pub fn for_model(self, id: &str) -> Self {
        Self { model: Some(id.to_owned()), ..self }
    }

    /// A clone that adds up in `times` where the time of its runs goes. Servers report none: all of it counts as network.
    pub fn timed(&self, times: Arc<Mutex<DeviceTimes>>) -> Self {
        Self { times, ..self.clone() }
    }

    /// A connection of its own for each session.
    fn transport(&self) -> Result<Box<dyn Transport>, String> {
        match self.address.scheme {
            Scheme::Http => Ok(Box::new(http::Http::new(&self.address))),
            Scheme::Grpc => Ok(Box::new(grpc::Grpc::new(&self.address)?)),
        }
    }

    fn model(&self, facts: &ModelFacts) -> String {
        let stem = || facts.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        self.address.model.clone().or_else(|| self.model.clone()).or_else(stem).unwrap_or_default()
    }
}

impl Backend for OpenInference {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Name and version of the server, asked once.
    fn version(&self) -> String {
        if let Some(known) = self.version.get() {
            return known.clone();
        }
        match self.transport().map(|transport| transport.about()) {
            Ok(Ok(version)) => self.version.get_or_init(|| version).clone(),
            _ => "unknown".to_owned(),
        }
    }

    fn is_named_by_manifests(&self) -> bool {
        false
    }

    /// A server that is not there, or has no such model now, is lost: it may be back later.
    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        let (address, model) = (&self.address, self.model(facts));
        let lost = |reason: String, fix: &str| BackendError::Lost {
            backend: NAME,
            model: model.clone(),
            reason: format!("the server at {address}: {reason}; {fix}"),
        };
        let port = match address.scheme {
            Scheme::Http => {
                "start the server, or correct the address: the port is that for HTTP, 8000 for Triton"
            }
            Scheme::Grpc => {
                "start the server, or correct the address: the port is that for gRPC, 8001 for Triton"
            }
        };
        let unreachable = |(Failed::Lost(reason) | Failed::Refused(reason))| lost(reason, port);
        let transport = self.transport().map_err(|reason| lost(reason, port))?;
        if !transport.is_live().map_err(unreachable)? {
            return Err(lost("it does not report that it is live".to_owned(), port));
        }
        let description = transport.describe(&model).map_err(|failed| match failed {
            Failed::Lost(reason) => lost(reason, port),
            Failed::Refused(text) => lost(
                format!("it does not describe a model `{model}`: {text}"),
                "load it there, or write its name there after the address of the device, as in `#NAME`",
            ),
        })?;
        if !transport.is_model_ready(&model).map_err(unreachable)? {
            let server =
                if transport.is_ready().map_err(unreachable)? { "" } else { ", nor is the server itself" };
            let reason = format!("the model `{model}` is not ready{server}");
            return Err(lost(reason, "wait until it is, or see the log of the server"));
        }
        let differences = description.differences(facts);
        if description.is_silent() {
            tracing::warn!(model, server = %address, "the server does not report the inputs and outputs of the model");
        } else if !differences.is_empty() {
            let reason = format!(
                "the model `{model}` of the server at {address} is another one: {}; serve this file there, or name the \
                 right model after the address of the device, as in `#NAME`",
                differences.join("; ")
            );
            return Err(BackendError::Load { backend: NAME, path: facts.path.display().to_string(), reason });
        }
        let name = format!("{model} at {}", self.address);
        let outputs = facts.outputs.iter().map(|port| port.name.clone()).collect();
        let (inputs, times) = (facts.inputs.clone(), Arc::clone(&self.times));
        Ok(Box::new(RemoteSession { transport, model, name, inputs, outputs, times }))
    }
}

/// A model of a server, over one connection.
struct RemoteSession {
    transport: Box<dyn Transport>,
    model: String,
    /// For messages.
    name: String,
    inputs: Vec<Port>,
    outputs: Vec<String>,
    times: Arc<Mutex<DeviceTimes>>,
}

impl RemoteSession {
    fn failed(&self, reason: impl Into<String>) -> BackendError {
        BackendError::Run { backend: NAME, model: self.name.clone(), reason: reason.into() }
    }
}

/// A tensor as the server reads it.
fn input<'a>(port: &'a Port, tensor: &Tensor) -> Input<'a> {
    let (element, bytes) = match (tensor.data(), &port.element) {
        // Models of truth values get integers, with 0 as false.
        (TensorData::Int64(values), PortElement::Known(ElementType::Bool)) => {
            (ElementType::Bool, values.iter().map(|value| u8::from(*value != 0)).collect())
        }
        (data, _) => (data.element(), bytes_of(tensor).1.into_owned()),
    };
    // No tensor has more values than memory has bytes.
    let shape = tensor.shape().iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX)).collect();
    Input { name: &port.name, datatype: elements::name(element), shape, bytes }
}

impl Session for RemoteSession {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        if inputs.len() != self.inputs.len() {
            return Err(self.failed(format!("{} inputs given, it has {}", inputs.len(), self.inputs.len())));
        }
        let inputs: Vec<Input<'_>> =
            self.inputs.iter().zip(inputs).map(|(port, tensor)| input(port, tensor)).collect();
        let wanted = outputs.iter().map(|at| {
            self.outputs
                .get(*at)
                .map(String::as_str)
                .ok_or_else(|| self.failed(format!("it has no output {at}")))
        });
        let wanted: Vec<&str> = wanted.collect::<Result<_, _>>()?;
        let (sent, begun) = (inputs.iter().map(|input| input.bytes.len() as u64).sum(), Instant::now());
        let found = self.transport.infer(&self.model, inputs, &wanted).map_err(|failed| match failed {
            Failed::Lost(reason) => BackendError::Lost { backend: NAME, model: self.name.clone(), reason },
            Failed::Refused(reason) => self.failed(reason),
        })?;
        self.times.lock().unwrap_or_else(PoisonError::into_inner).add(&DeviceTimes {
            network: begun.elapsed(),
            round_trips: 1,
            sent,
            received: found.iter().map(|output| output.bytes.len() as u64).sum(),
            ..DeviceTimes::default()
        });
        let tensor = |name: &&str| {
            let output = found.iter().find(|output| output.name == **name);
            let Output { datatype, shape, bytes, .. } =
                output.ok_or_else(|| self.failed(format!("the server returned no `{name}`")))?;
            elements::tensor(datatype, shape, bytes)
                .map_err(|reason| self.failed(format!("output `{name}`: {reason}")))
        };
        wanted.iter().map(tensor).collect()
    }
}
