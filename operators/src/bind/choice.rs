//! The choice of a model for an operator, and the port of an input.
use crate::kind::InputPort;
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::Input;

/// Model and backend of an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Path of the manifest as written in the workflow, or the manifest's id; `None`: the first one.
    pub variant: Option<String>,
    /// Backend; `None`: the workflow's, else the kind decides.
    pub backend: Option<String>,
}

/// Returns the port of an input with the type of its stream.
pub(super) fn port(input: &Input, stream: StreamType) -> InputPort {
    InputPort { from: input.from.value.clone(), stream, span: input.from.span.clone() }
}
