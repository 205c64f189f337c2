//! The protocol over gRPC, tensors as bytes.
use super::address::Address;
use super::agreement::{Declared, Description};
use super::messages::{
    Health, InferRequest, InferResponse, InferTensor, ModelMetadata, Named, RequestedOutput, ServerMetadata,
};
use super::transport::{Failed, Input, MOST_BYTES, Output, SHORT, Transport, late};
use bytes::Bytes;
use futures_util::StreamExt;
use prost::Message;
use std::io;
use std::sync::LazyLock;
use std::time::Duration;
use tidemill_grpc::{Call, Calls, Code, Item, Peer, PeerLimits, Status};
use tokio::runtime::{Builder, Runtime};

/// Drives all connections of this process.
static RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).thread_name("tm-open-inference").enable_all().build()
});

pub(super) struct Grpc {
    peer: Peer,
    version: String,
    timeout: Duration,
}

impl Grpc {
    /// Connects nothing yet.
    pub(super) fn new(address: &Address) -> Result<Self, String> {
        let limits = PeerLimits {
            message: usize::try_from(MOST_BYTES).unwrap_or(usize::MAX),
            connecting: SHORT,
            ..PeerLimits::default()
        };
        let peer = Peer::with_limits(&format!("http://{}", address.authority), limits);
        let peer = peer.map_err(|error| error.to_string())?;
        Ok(Self { peer, version: address.version.clone().unwrap_or_default(), timeout: address.timeout })
    }

    fn call<T: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Result<T, Status> {
        let runtime = RUNTIME.as_ref().map_err(|error| {
            Status::new(Code::Unavailable, format!("there is no thread for connections: {error}"))
        })?;
        let message = Bytes::from(request.encode_to_vec());
        let path = format!("/inference.GRPCInferenceService/{method}");
        let call = Call { timeout: Some(limit), ..Call::new(path, message) };
        let message = runtime.block_on(async {
            let (mut items, mut message) = (self.peer.call(call).await?, None);
            while let Some(item) = items.next().await {
                match item {
                    Item::Leading(_) => {}
                    Item::Message(bytes) => message = Some(bytes),
                    Item::End { status, .. } if status.code == Code::Ok => break,
                    Item::End { status, .. } => return Err(status),
                }
            }
            message.ok_or_else(|| Status::new(Code::Internal, "the answer has no message"))
        })?;
        T::decode(message)
            .map_err(|error| Status::new(Code::Internal, format!("the answer is not understood: {error}")))
    }

    fn ask<T: Message + Default>(&self, method: &str, request: &impl Message) -> Result<T, Failed> {
        self.call(method, request, SHORT).map_err(|status| failed(&status, SHORT))
    }

    fn named(&self, model: &str) -> Named {
        Named { name: model.to_owned(), version: self.version.clone() }
    }
}

/// Whether a status means that the server is gone.
fn failed(status: &Status, limit: Duration) -> Failed {
    match status.code {
        Code::DeadlineExceeded => Failed::Lost(late(limit)),
        Code::Unavailable | Code::Cancelled => Failed::Lost(status.to_string()),
        _ => Failed::Refused(status.to_string()),
    }
}

impl Transport for Grpc {
    fn is_live(&self) -> Result<bool, Failed> {
        self.ask("ServerLive", &()).map(|health: Health| health.good)
    }

    fn is_ready(&self) -> Result<bool, Failed> {
        self.ask("ServerReady", &()).map(|health: Health| health.good)
    }

    fn is_model_ready(&self, model: &str) -> Result<bool, Failed> {
        self.ask("ModelReady", &self.named(model)).map(|health: Health| health.good)
    }

    fn about(&self) -> Result<String, Failed> {
        self.ask("ServerMetadata", &())
            .map(|about: ServerMetadata| format!("{} {}", about.name, about.version))
    }

    fn describe(&self, model: &str) -> Result<Description, Failed> {
        let ModelMetadata { inputs, outputs } = self.ask("ModelMetadata", &self.named(model))?;
        let declared = |tensors: Vec<InferTensor>| {
            let each = |InferTensor { name, datatype, shape }| Declared { name, datatype, shape };
            tensors.into_iter().map(each).collect()
        };
        Ok(Description { inputs: declared(inputs), outputs: declared(outputs) })
    }

    fn infer(&self, model: &str, inputs: Vec<Input<'_>>, outputs: &[&str]) -> Result<Vec<Output>, Failed> {
        let mut request = InferRequest {
            model_name: model.to_owned(),
            model_version: self.version.clone(),
            outputs: outputs.iter().map(|name| RequestedOutput { name: (*name).to_owned() }).collect(),
            ..InferRequest::default()
        };
        for Input { name, datatype, shape, bytes } in inputs {
            request.inputs.push(InferTensor { name: name.to_owned(), datatype: datatype.to_owned(), shape });
            request.raw_input_contents.push(bytes.into());
        }
        let answered = self.call("ModelInfer", &request, self.timeout);
        let InferResponse { outputs, raw_output_contents } =
            answered.map_err(|status| match status.code {
                // The server unloaded the model.
                Code::NotFound => Failed::Lost(status.to_string()),
                _ => failed(&status, self.timeout),
            })?;
        if outputs.len() != raw_output_contents.len() {
            let (outputs, raw) = (outputs.len(), raw_output_contents.len());
            let text = format!("the server answered with {outputs} outputs, but with {raw} of them as bytes");
            return Err(Failed::Refused(text));
        }
        let each = |(InferTensor { name, datatype, shape }, bytes)| Output { name, datatype, shape, bytes };
        Ok(outputs.into_iter().zip(raw_output_contents).map(each).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_told_from_what_is_refused() {
        let limit = Duration::from_secs(7);
        let of = |code| failed(&Status::new(code, "why"), limit);
        assert_eq!(of(Code::DeadlineExceeded), Failed::Lost(late(limit)));
        assert_eq!(of(Code::Unavailable), Failed::Lost("UNAVAILABLE: why".into()));
        assert_eq!(of(Code::InvalidArgument), Failed::Refused("INVALID_ARGUMENT: why".into()));
    }
}
