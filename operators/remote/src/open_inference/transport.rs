//! Calls of the protocol, over HTTP or gRPC.
use super::agreement::Description;
use bytes::Bytes;
use std::time::Duration;

/// Time that answers other than inferences are waited for.
pub(super) const SHORT: Duration = Duration::from_secs(10);
/// Longest answer.
pub(super) const MOST_BYTES: u64 = 1 << 30;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// The server is gone, or did not answer in time.
    Lost(String),
    /// The server refused, with its text.
    Refused(String),
}

/// A tensor for a server.
pub(super) struct Input<'a> {
    pub(super) name: &'a str,
    pub(super) datatype: &'static str,
    pub(super) shape: Vec<i64>,
    pub(super) bytes: Vec<u8>,
}

/// A tensor that a server computed.
pub(super) struct Output {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<i64>,
    pub(super) bytes: Bytes,
}

/// A connection to a server. It is made when it is needed, and kept.
pub(super) trait Transport: Send + Sync {
    /// Whether the server is live.
    fn is_live(&self) -> Result<bool, Failed>;
    /// Whether the server is ready.
    fn is_ready(&self) -> Result<bool, Failed>;
    /// Whether the model is ready.
    fn is_model_ready(&self, model: &str) -> Result<bool, Failed>;
    /// Name and version of the server.
    fn about(&self) -> Result<String, Failed>;
    /// Inputs and outputs of the model.
    fn describe(&self, model: &str) -> Result<Description, Failed>;
    /// Runs the model.
    fn infer(&self, model: &str, inputs: Vec<Input<'_>>, outputs: &[&str]) -> Result<Vec<Output>, Failed>;
}

/// The text of a server that did not answer in time.
pub(super) fn late(limit: Duration) -> String {
    format!("no answer in {limit:?}; a longer time stands after the address, as in `?timeout=120s`")
}
