//! `tidemill device`: a device that computes the models of others, and its sessions.
//!
//! | question | module |
//! |---|---|
//! | how is a device served? | [`serving`], with a [`certificate`] or as a [`member`] of a cluster; the process of a session: [`process`] |
//! | which sessions are there? | [`sessions`], shown again and again by [`watching`] |
//! | how are limits changed and sessions ended? | [`changing`] |
//! | what is the proxy that an executor starts? | [`own`] |
pub(crate) mod certificate;
mod changing;
#[cfg(feature = "cluster")]
mod member;
mod metrics;
mod own;
mod process;
mod serving;
mod sessions;
mod watching;

pub(crate) use own::proxy;
pub(crate) use process::process;

use crate::arguments::{DeviceChoice, DeviceVerb};
use crate::exit::Exit;
use crate::terminal::Terminal;
use tidemill_app::failure::{Failure, Kind};
use tidemill_device::daemon::control::{Question, ask, devices};
use tidemill_device::daemon::views::Listing;

/// Runs a verb of `tidemill device`.
pub(crate) fn device(verb: &DeviceVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        DeviceVerb::Serve(arguments) => serving::serve(arguments, terminal),
        DeviceVerb::Ls(arguments) => sessions::list(arguments, terminal),
        DeviceVerb::Top(arguments) => watching::top(arguments, terminal),
        DeviceVerb::Limits(arguments) => changing::limits(arguments, terminal),
        DeviceVerb::Drain(arguments) => changing::drain(arguments, terminal),
    }
}

/// Asks the daemon of a device.
fn answer(device: &str, question: &Question) -> Result<Listing, Failure> {
    let answer = ask(device, question).map_err(|error| {
        Failure::new(Kind::Missing, format!("the device `{device}` does not answer: {error}"))
            .with_help("`tidemill device ls` lists the devices of this machine")
    })?;
    answer.map_err(|reason| Failure::new(Kind::No, reason))
}

fn names() -> Result<Vec<String>, Failure> {
    devices().map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot list the devices of this machine: {error}"))
    })
}

/// The devices of this machine that answer, or the chosen one.
fn look(choice: &DeviceChoice) -> Result<Vec<Listing>, Failure> {
    match &choice.device {
        Some(device) => Ok(vec![answer(device, &Question::List)?]),
        // Devices of other users, and devices that end meanwhile, do not answer.
        None => Ok(names()?.iter().filter_map(|device| answer(device, &Question::List).ok()).collect()),
    }
}

/// The device that is meant: the only one, unless one is chosen.
fn one(choice: &DeviceChoice) -> Result<String, Failure> {
    if let Some(device) = &choice.device {
        return Ok(device.clone());
    }
    let mut names = names()?;
    match (names.pop(), names.is_empty()) {
        (Some(device), true) => Ok(device),
        (Some(last), false) => {
            let all = names.join(", ");
            let text = format!("this machine has several devices: {all}, {last}");
            Err(Failure::new(Kind::Usage, text).with_help("name one: `--device NAME`"))
        }
        (None, _) => Err(Failure::new(Kind::Missing, "this machine serves no device")
            .with_help("start one: `tidemill device serve --listen tcp://127.0.0.1:7440`")),
    }
}
