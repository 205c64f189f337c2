//! Several controllers, one as the leader: finds that one.
use super::{ClientError, refused};
use crate::api::NotLeading;
use crate::clock::instant;
use rustls::ClientConfig;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_http::{Answer, CallError, Caller, Place, Repeat};
use tidemill_identity::{JoinAddress, TLS_NAME};

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
        let made = |place: String| {
            let caller = caller(place, &config);
            Arc::new(if is_one { caller } else { caller.connecting_within(CONNECTING) })
        };
        let callers = places.into_iter().map(made).collect();
        Self { config, known: Mutex::new(Known { callers, current: 0 }), patience: Duration::from_secs(15) }
    }

    /// One place, which is no controller.
    pub(super) fn one(place: String, config: ClientConfig) -> Self {
        let config = Arc::new(config);
        let callers = vec![Arc::new(caller(place, &config))];
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
        self.current().address().to_owned()
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
        if known.callers[known.current].address() == place {
            known.current = (known.current + 1) % count;
        }
        count > 1
    }

    /// Asks this one from now on, which may be one that was not known.
    fn turn_to(&self, place: &str) {
        let mut known = self.known();
        let found = known.callers.iter().position(|caller| caller.address() == place);
        known.current = found.unwrap_or_else(|| {
            let caller = caller(place.to_owned(), &self.config).connecting_within(CONNECTING);
            known.callers.push(Arc::new(caller));
            known.callers.len() - 1
        });
    }

    /// Calls `ask` with the leader, and with another controller after an error if the request did not arrive or may arrive twice. `ask`
    /// returns its result, or an answer that refuses.
    pub(super) fn find<T>(
        &self,
        repeat: Repeat,
        mut ask: impl FnMut(&Arc<Caller>) -> Result<Result<T, Answer>, CallError>,
    ) -> Result<T, ClientError> {
        let begun = instant();
        let (mut failed, mut turns) = (0, 0);
        loop {
            let caller = self.current();
            let refused = match ask(&caller) {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(answer)) => match NotLeading::read(answer.status, &answer.body) {
                    None => return Err(refused(&answer)),
                    Some(refused) => {
                        failed = 0;
                        refused
                    }
                },
                Err(error) => {
                    // The next question goes to another one, also where this one is not asked again.
                    let are_several = self.turn_from(caller.address());
                    failed += 1;
                    let is_last = failed >= self.known().callers.len();
                    if !are_several
                        || !may_ask_another(&error, repeat)
                        || (is_last && begun.elapsed() >= self.patience)
                    {
                        return Err(error.into());
                    }
                    if is_last {
                        std::thread::sleep(PAUSE);
                    }
                    continue;
                }
            };
            // Without a leader, this controller is up, and is the first to know the next one.
            let is_told = refused.leader.as_deref().filter(|leader| *leader != caller.address());
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

fn caller(address: String, config: &Arc<ClientConfig>) -> Caller {
    Caller::new(Place::Tls { address, config: Arc::clone(config), name: TLS_NAME.into() })
}

/// Whether the request cannot have arrived, or may arrive twice.
fn may_ask_another(error: &CallError, repeat: Repeat) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        CallError::Broken { .. } | CallError::Malformed { .. } => repeat == Repeat::Allowed,
        CallError::Tls { .. } | CallError::Stranger { .. } | CallError::Request(_) => false,
    }
}
