//! `tidemill device limits` and `tidemill device drain`.
use super::{answer, one, sessions};
use crate::arguments::{DeviceLimitsArguments, DrainDeviceArguments, OutputForm};
use crate::exit::Exit;
use crate::terminal::Terminal;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_device::daemon::control::{Question, devices};

/// Interval of looks whether the last session is gone.
const LOOK: Duration = Duration::from_millis(100);

/// Changes the limits of a tenant.
pub(super) fn limits(arguments: &DeviceLimitsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    if arguments.share.is_none() && arguments.memory.is_none() {
        return Err(Failure::new(Kind::Usage, "nothing is to be changed")
            .with_help("give `--share 30%`, `--memory 4GiB` or both")
            .into());
    }
    let device = one(&arguments.choice)?;
    let DeviceLimitsArguments { tenant, share, memory, new, .. } = arguments;
    let question = Question::Limits { tenant: tenant.clone(), share: *share, memory: *memory, new: *new };
    let listing = answer(&device, &question)?;
    sessions::show(&[listing], arguments.output, terminal)
}

/// Ends sessions, and waits until they are gone.
pub(super) fn drain(arguments: &DrainDeviceArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let device = one(&arguments.choice)?;
    let session = arguments.session;
    let mut listing = answer(&device, &Question::Drain { session })?;
    let is_left = |sessions: &[u64]| match session {
        Some(session) => sessions.contains(&session),
        None => !sessions.is_empty(),
    };
    loop {
        let sessions: Vec<u64> = listing.sessions.iter().map(|session| session.session).collect();
        if !is_left(&sessions) {
            break;
        }
        std::thread::sleep(LOOK);
        match answer(&device, &Question::List) {
            Ok(now) => listing = now,
            // It ends after its last session.
            Err(_) if session.is_none() && !devices()?.contains(&device) => {
                listing.sessions.clear();
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    if arguments.output == OutputForm::Json {
        return sessions::show(&[listing], arguments.output, terminal);
    }
    match session {
        Some(session) => terminal.note(&format!("session {session} of `{device}` has ended")),
        None => terminal.note(&format!("`{device}` has no session any more, and ends")),
    }
    Ok(Exit::Success)
}
