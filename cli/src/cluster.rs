//! The verbs of a cluster: those that are part of it, and those that ask its controller.
mod asking;
mod changing;
mod connect;
mod join_file;
mod leading;
mod logs;
mod people;
mod plans;
mod removing;
mod results;
mod serving;
mod submitting;
mod top;

pub(crate) use asking::{drain, events, list, status, token, undrain, workers};
pub(crate) use changing::change;
pub(crate) use connect::{client, failure, login};
pub(crate) use logs::logs;
pub(crate) use people::{people, revoke};
pub(crate) use plans::replan;
pub(crate) use removing::{cancel, remove};
pub(crate) use results::results;
pub(crate) use serving::{controller, worker};
pub(crate) use submitting::{begin, submit};
pub(crate) use top::top;
