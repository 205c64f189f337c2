//! Start of a process: its settings, and its own description.
use crate::protocol::Role;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_spec::types::StreamType;

/// All that is needed to start a process of a step.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) operator: String,
    pub(crate) interpreter: PathBuf,
    /// Arguments of another program than Python, for tests of the protocol.
    pub(crate) arguments: Option<Vec<String>>,
    pub(crate) folder: PathBuf,
    pub(crate) module: String,
    pub(crate) name: String,
    pub(crate) is_class: bool,
    pub(crate) batch: bool,
    pub(crate) role: Role,
    /// Keyword arguments of the function or class.
    pub(crate) parameters: serde_json::Value,
    pub(crate) input: StreamType,
    pub(crate) output: Option<StreamType>,
    pub(crate) timeout: Duration,
}

/// The ends of a connection to the program that started this one: a socket, and the two files of the protocol.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) control: UnixStream,
    pub(crate) requests: OwnedFd,
    pub(crate) results: OwnedFd,
}

/// Description that a step gives of itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Greeting {
    pub(crate) language: String,
    /// The columns that it declares itself: names and types.
    pub(crate) output: Option<Vec<(String, String)>>,
    pub(crate) has_state: bool,
    pub(crate) has_advance: bool,
    /// Whether a source can continue at a position.
    pub(crate) has_position: bool,
    /// Whether a sink wants to know of commits.
    pub(crate) has_commit: bool,
    /// Last epoch that a sink has stored; `None`: it stores no epochs.
    pub(crate) committed: Option<u64>,
}
