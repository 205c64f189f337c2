//! One of several controllers: it leads, or is a standby until it can.
use super::serving::{LOOK, tell, tell_address, unavailable};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_cluster::controller::{
    Announcement, Candidate, Controller, ControllerError, ControllerOptions, Lead, PostgresError, StandBy,
    Standing, StoreAddress,
};
use tidemill_identity::{IdentityError, JoinAddress, StoreError, Timestamp};

/// Timeout of the work of a former leader.
const LETTING_GO: Duration = Duration::from_secs(30);
/// Checks between two attempts to lead.
const EVERY: u32 = 5;

fn no_store(error: &PostgresError) -> Failure {
    let kind = if error.is_passing() { Kind::Unavailable } else { Kind::Configuration };
    Failure::new(kind, error.to_string())
}

/// Returns `HOST:PORT` for others; a port for the system to choose is chosen now, so that it stays constant.
fn place(options: &mut ControllerOptions) -> Result<String, Failure> {
    let failed =
        |address: &str, error: std::io::Error| Failure::new(Kind::Unavailable, format!("{address}: {error}"));
    let mut port = 0;
    for listen in [&mut options.listen_hosts, &mut options.listen] {
        let bound = std::net::TcpListener::bind(listen.as_str()).and_then(|listener| listener.local_addr());
        let bound = bound.map_err(|error| failed(listen, error))?;
        if listen.ends_with(":0") {
            *listen = bound.to_string();
        }
        port = bound.port();
    }
    let name = options.names.first().map_or("localhost", String::as_str);
    let is_bare = name.contains(':') && !name.starts_with('[');
    Ok(if is_bare { format!("[{name}]:{port}") } else { format!("{name}:{port}") })
}

/// Leads or waits as standby until a signal ends it.
pub(super) fn serve(
    store: &StoreAddress,
    mut options: ControllerOptions,
    state: &Path,
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    let place = place(&mut options)?;
    let announcement = Announcement { name: place.clone(), address: place.clone() };
    let candidate = Candidate::new(store, announcement).map_err(|error| no_store(&error))?;
    interrupt.is_watched();
    let mut stands = Standby { shown: None, told: None };
    let mut has_led = false;
    while !interrupt.is_wanted() {
        match candidate.stand() {
            Ok(Standing::Leads(lead)) => {
                stands.end();
                let term = lead.term();
                terminal.note(&format!("leads, in term {term}: {store}"));
                match lead_until_it_ends(&options, *lead, state, interrupt, terminal) {
                    Ok(()) => has_led = true,
                    // Resources of this process's former lead may not be free yet, or the server may be briefly away.
                    Err(Ended::Start(error)) if error.is_passing() || has_led && !is_lasting(&error) => {
                        tracing::warn!("{error}; trying again");
                    }
                    Err(Ended::Start(error)) => return Err(unavailable(&error).into()),
                    Err(Ended::Other(failure)) => return Err(failure.into()),
                }
            }
            Ok(Standing::StandsBy(leader)) => {
                let leader = leader.as_ref();
                stands.show(&options, &place, state, terminal).map_err(|error| unavailable(&error))?;
                stands.tell(leader.map(|leader| leader.address.as_str()), terminal);
                if let Some(shown) = &stands.shown {
                    shown.tell(leader);
                }
            }
            Err(error) if error.is_passing() => {
                stands.show(&options, &place, state, terminal).map_err(|error| unavailable(&error))?;
                stands.tell(None, terminal);
                if let Some(shown) = &stands.shown {
                    shown.tell(None);
                }
                tracing::warn!("{error}");
            }
            Err(error) => return Err(no_store(&error).into()),
        }
        for _ in 0..EVERY {
            if !interrupt.is_wanted() {
                std::thread::sleep(LOOK);
            }
        }
    }
    stands.end();
    terminal.note("the controller ends; workers continue, and the next leader takes over their runs");
    Ok(Exit::Interrupted)
}

/// Status of a standby controller.
struct Standby {
    shown: Option<StandBy>,
    /// The last reported leader.
    told: Option<Option<String>>,
}

impl Standby {
    /// Answers requests, as soon as it can.
    fn show(
        &mut self,
        options: &ControllerOptions,
        place: &str,
        state: &Path,
        terminal: &Terminal,
    ) -> Result<(), ControllerError> {
        if let Some(shown) = &mut self.shown {
            shown.renew_if_due(Timestamp::now());
            return Ok(());
        }
        self.shown = StandBy::start(options)?;
        match &self.shown {
            Some(shown) => {
                let address = format!("tidemill://{place}/{}", shown.fingerprint()).parse::<JoinAddress>();
                let address = address.map_err(|error| ControllerError::Name(error.to_string()))?;
                if let Err(error) = tell_address(&state.join("address"), &address.to_string()) {
                    tracing::warn!("{error}");
                }
                terminal.note(&format!("stands by at {address}"));
            }
            None if self.told.is_none() => {
                let key = options.folder.join("identities/authority.pem");
                terminal.note(&format!(
                    "stands by, but cannot answer requests: copy `identities/authority.pem` from the folder of the leading controller to {} (mode 600)",
                    key.display()
                ));
            }
            None => {}
        }
        Ok(())
    }

    fn tell(&mut self, leader: Option<&str>, terminal: &Terminal) {
        let leader = leader.map(str::to_owned);
        if self.told.as_ref() == Some(&leader) {
            return;
        }
        terminal.note(&match &leader {
            Some(leader) => format!("{leader} leads"),
            None => "no controller leads at the moment".to_owned(),
        });
        self.told = Some(leader);
    }

    fn end(&mut self) {
        self.told = None;
        if let Some(shown) = self.shown.take() {
            shown.end();
        }
    }
}

enum Ended {
    Start(ControllerError),
    Other(Failure),
}

/// Whether another attempt would fail likewise.
fn is_lasting(error: &ControllerError) -> bool {
    matches!(
        error,
        ControllerError::OnItsOwn(_)
            | ControllerError::Name(_)
            | ControllerError::Identity(IdentityError::Store(
                StoreError::NoKey { .. } | StoreError::Damaged { .. }
            ))
    )
}

fn lead_until_it_ends(
    options: &ControllerOptions,
    lead: Lead,
    state: &Path,
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> Result<(), Ended> {
    let controller = Controller::lead(options, lead).map_err(Ended::Start)?;
    if let Err(failure) = tell(&controller, state, terminal) {
        // The lead may have been lost at once: then it is not this controller's fault.
        let is_lost = controller.lead_ended().is_some();
        end(controller)?;
        return if is_lost { Ok(()) } else { Err(Ended::Other(failure)) };
    }
    while !interrupt.is_wanted() {
        if let Some(reason) = controller.lead_ended() {
            terminal.note(&format!("no longer leads: {reason}"));
            break;
        }
        std::thread::sleep(LOOK);
    }
    end(controller)
}

/// Ends a controller, which may wait for a server that no longer answers: then this process ends, and the next one is a
/// standby.
fn end(controller: Controller) -> Result<(), Ended> {
    let (done, is_done) = std::sync::mpsc::channel();
    let ending = move || {
        controller.end();
        let _ = done.send(()); // nobody waits any more
    };
    let thread = std::thread::Builder::new().name("tm-ending".into()).spawn(ending);
    let is_done =
        thread.is_ok() && !matches!(is_done.recv_timeout(LETTING_GO), Err(RecvTimeoutError::Timeout));
    match is_done {
        true => Ok(()),
        false => {
            let text = "its work as leader does not end, because its store does not answer; restart it";
            Err(Ended::Other(Failure::new(Kind::Unavailable, text)))
        }
    }
}
