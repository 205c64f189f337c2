//! Several controllers, one as the leader: finds that one.
use super::ClientError;
use crate::api::NotLeading;
use crate::clock::instant;
use rustls::ClientConfig;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_identity::{Answer, Call, CallError, Caller, JoinAddress, Repeat};

/// Time limit of a connection where there are other controllers.
const CONNECTING: Duration = Duration::from_secs(2);
/// Pause before the next look for the leader.
const PAUSE: Duration = Duration::from_millis(250);
/// Limit of consecutive redirections between controllers.
const MOST_TURNS: u32 = 4;

/// See the module. With one place it is just a caller.
pub(super) struct Several {
    config: Arc<ClientConfig>,
    known: Mutex<Known>,
    /// Time to wait for a leader.
    patience: Duration,
}

struct Known {
    callers: Vec<Arc<Caller>>,
    /// The one that is asked.
    current: usize,
}

impl Several {
    pub(super) fn new(address: &JoinAddress, config: ClientConfig) -> Self {
        let (config, places) = (Arc::new(config), address.places());
        let is_one = places.len() == 1;
        let caller = |place: String| {
            let caller = Caller::new(place, Arc::clone(&config));
            Arc::new(if is_one { caller } else { caller.connecting_within(CONNECTING) })
        };
        let callers = places.into_iter().map(caller).collect();
        Self { config, known: Mutex::new(Known { callers, current: 0 }), patience: Duration::from_secs(15) }
    }

    /// One place, which is no controller.
    pub(super) fn one(place: String, config: ClientConfig) -> Self {
        let config = Arc::new(config);
        let callers = vec![Arc::new(Caller::new(place, Arc::clone(&config)))];
        Self { config, known: Mutex::new(Known { callers, current: 0 }), patience: Duration::ZERO }
    }

    /// Does not wait for a leader.
    pub(super) fn at_once(self) -> Self {
        Self { patience: Duration::ZERO, ..self }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Arc<Caller> {
        let known = self.known();
        Arc::clone(&known.callers[known.current])
    }

    /// Returns the address of the controller in use.
    pub(super) fn place(&self) -> String {
        self.current().place().to_owned()
    }

    pub(super) fn reconnect(&self) {
        self.known().callers.iter().for_each(|caller| caller.reconnect());
    }

    pub(super) fn connections(&self) -> u64 {
        self.known().callers.iter().map(|caller| caller.connections()).sum()
    }

    /// Asks another one than this from now on; false: there is none.
    pub(super) fn turn_from(&self, place: &str) -> bool {
        let mut known = self.known();
        let count = known.callers.len();
        if known.callers[known.current].place() == place {
            known.current = (known.current + 1) % count;
        }
        count > 1
    }

    /// Asks this one from now on, which may be one that was not known.
    fn turn_to(&self, place: &str) {
        let mut known = self.known();
        let found = known.callers.iter().position(|caller| caller.place() == place);
        known.current = found.unwrap_or_else(|| {
            let caller =
                Caller::new(place.to_owned(), Arc::clone(&self.config)).connecting_within(CONNECTING);
            known.callers.push(Arc::new(caller));
            known.callers.len() - 1
        });
    }

    /// Asks the one that leads.
    pub(super) fn send(
        &self,
        call: &Call<'_>,
        timeout: Duration,
        repeat: Repeat,
    ) -> Result<Answer, ClientError> {
        self.find(|caller| caller.send(call, timeout, repeat), |error| may_ask_another(error, repeat))
    }

    /// Calls `ask` with the leader, and with another controller after an error for which `is_harmless` says that the request did not arrive
    /// or may arrive twice.
    pub(super) fn find(
        &self,
        mut ask: impl FnMut(&Caller) -> Result<Answer, CallError>,
        is_harmless: impl Fn(&CallError) -> bool,
    ) -> Result<Answer, ClientError> {
        let begun = instant();
        let (mut failed, mut turns) = (0, 0);
        loop {
            let caller = self.current();
            let refused = match ask(&caller) {
                Ok(answer) => match NotLeading::read(answer.status, &answer.body) {
                    None => return Ok(answer),
                    Some(refused) => {
                        failed = 0;
                        refused
                    }
                },
                Err(error) => {
                    // The next question goes to another one, also where this one is not asked again.
                    let are_several = self.turn_from(caller.place());
                    failed += 1;
                    let is_last = failed >= self.known().callers.len();
                    if !are_several || !is_harmless(&error) || (is_last && begun.elapsed() >= self.patience) {
                        return Err(error.into());
                    }
                    if is_last {
                        std::thread::sleep(PAUSE);
                    }
                    continue;
                }
            };
            // Without a leader, this controller is up, and is the first to know the next one.
            let is_told = refused.leader.as_deref().filter(|leader| *leader != caller.place());
            if let Some(leader) = is_told {
                self.turn_to(leader);
            }
            turns += 1;
            if begun.elapsed() >= self.patience && (is_told.is_none() || turns >= MOST_TURNS) {
                return Err(ClientError::Refused { status: 503, text: refused.error });
            }
            if is_told.is_none() || turns >= MOST_TURNS {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Whether the request cannot have arrived, or may arrive twice.
fn may_ask_another(error: &CallError, repeat: Repeat) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        CallError::Broken { .. } | CallError::Malformed { .. } => repeat == Repeat::Allowed,
        CallError::Tls { .. } | CallError::Stranger { .. } | CallError::Request(_) => false,
    }
}
