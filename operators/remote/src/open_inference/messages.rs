//! Messages of `inference.GRPCInferenceService`, as far as they are used here. Field numbers are those of the protocol.
use bytes::Bytes;
use prost::Message;

/// `ServerLiveResponse`, `ServerReadyResponse` and `ModelReadyResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Health {
    #[prost(bool, tag = "1")]
    pub(super) good: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

/// `ModelReadyRequest` and `ModelMetadataRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Named {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelMetadata {
    #[prost(message, repeated, tag = "4")]
    pub(super) inputs: Vec<InferTensor>,
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<InferTensor>,
}

/// A tensor without its values, in metadata, requests and responses.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InferTensor {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestedOutput {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferRequest {
    #[prost(string, tag = "1")]
    pub(super) model_name: String,
    #[prost(string, tag = "2")]
    pub(super) model_version: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) inputs: Vec<InferTensor>,
    #[prost(message, repeated, tag = "6")]
    pub(super) outputs: Vec<RequestedOutput>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(super) raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferResponse {
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<InferTensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(super) raw_output_contents: Vec<Bytes>,
}
