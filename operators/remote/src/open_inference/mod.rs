//! Models on a server of the Open Inference Protocol, such as Triton or KServe: a device `oip:http://HOST:PORT` or
//! `oip:grpc://HOST:PORT` of a plan.
//!
//! The server has the model already. Loading it here compares what the server says about it with the file of the manifest;
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
use std::sync::OnceLock;
use tidemill_inference::backend::{Backend, BackendError, Session};
use tidemill_inference::facts::{ModelFacts, Port, PortElement};
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_spec::types::ElementType;
use transport::{Failed, Input, Output, Transport};

/// Scheme of the devices, and name of the backend.
pub const NAME: &str = "oip";

/// A server of the protocol as a backend.
#[derive(Debug)]
pub struct OpenInference {
    address: Address,
    /// Name of the model, where the device has none.
    model: Option<String>,
    version: OnceLock<String>,
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
        Ok(Self { address, model: None, version: OnceLock::new() })
    }

    /// Names the model as in its manifest. Where the device names it, that name stays; without both, it is the name of the
    /// file.
    #[must_use]
    pub fn for_model(self, id: &str) -> Self {
        Self { model: Some(id.to_owned()), ..self }
    }

    fn transport(&self) -> Result<Box<dyn Transport>, BackendError> {
        match self.address.scheme {
            Scheme::Http => Ok(Box::new(http::Http::new(&self.address))),
            Scheme::Grpc => match grpc::Grpc::new(&self.address) {
                Ok(grpc) => Ok(Box::new(grpc)),
                Err(reason) => Err(self.unavailable(reason, "correct the address")),
            },
        }
    }

    fn unavailable(&self, reason: String, fix: &str) -> BackendError {
        BackendError::Unavailable { backend: NAME, reason, fix: fix.to_owned() }
    }

    /// Why a server does not answer before it computes anything.
    fn unreachable(&self, failed: Failed) -> BackendError {
        let (Failed::Lost(reason) | Failed::Refused(reason)) = failed;
        let fix = match self.address.scheme {
            Scheme::Http => {
                "start the server, or correct the address: the port is that for HTTP, with Triton 8000"
            }
            Scheme::Grpc => {
                "start the server, or correct the address: the port is that for gRPC, with Triton 8001"
            }
        };
        self.unavailable(format!("the server at {}: {reason}", self.address), fix)
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

    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        let (transport, model) = (self.transport()?, self.model(facts));
        let unreachable = |failed| self.unreachable(failed);
        if !transport.is_live().map_err(unreachable)? {
            return Err(unreachable(Failed::Refused("it does not say that it is live".to_owned())));
        }
        let description = transport.describe(&model).map_err(|failed| match failed {
            lost @ Failed::Lost(_) => self.unreachable(lost),
            Failed::Refused(text) => self.unavailable(
                format!("the server at {} says nothing about a model `{model}`: {text}", self.address),
                "load it there, or write its name there after the address of the device, as in `#NAME`",
            ),
        })?;
        if !transport.is_model_ready(&model).map_err(unreachable)? {
            let server =
                if transport.is_ready().map_err(unreachable)? { "" } else { ", nor is the server itself" };
            let reason =
                format!("the model `{model}` of the server at {} is not ready{server}", self.address);
            return Err(self.unavailable(reason, "wait until it is, or see the log of the server"));
        }
        let differences = description.differences(facts);
        if description.is_silent() {
            tracing::warn!(model, server = %self.address, "the server does not say what the model reads and writes");
        } else if !differences.is_empty() {
            let reason = format!(
                "the model `{model}` of the server at {} is another one: {}; serve this file there, or name the right \
                 model after the address of the device, as in `#NAME`",
                self.address,
                differences.join("; ")
            );
            return Err(BackendError::Load { backend: NAME, path: facts.path.display().to_string(), reason });
        }
        let name = format!("{model} at {}", self.address);
        let outputs = facts.outputs.iter().map(|port| port.name.clone()).collect();
        Ok(Box::new(RemoteSession { transport, model, name, inputs: facts.inputs.clone(), outputs }))
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
        let inputs = self.inputs.iter().zip(inputs).map(|(port, tensor)| input(port, tensor)).collect();
        let wanted = outputs.iter().map(|at| {
            self.outputs
                .get(*at)
                .map(String::as_str)
                .ok_or_else(|| self.failed(format!("it has no output {at}")))
        });
        let wanted: Vec<&str> = wanted.collect::<Result<_, _>>()?;
        let found = self.transport.infer(&self.model, inputs, &wanted).map_err(|failed| match failed {
            Failed::Lost(reason) => BackendError::Lost { backend: NAME, model: self.name.clone(), reason },
            Failed::Refused(reason) => self.failed(reason),
        })?;
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
