//! The verbs of a cluster: those that are part of it, and those that ask its controller.
mod asking;
mod connect;
mod serving;

pub(crate) use asking::{cancel, drain, events, list, logs, status, submit, token, workers};
pub(crate) use connect::login;
pub(crate) use serving::{controller, worker};
