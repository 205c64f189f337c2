//! The task of one camera: connects, passes frames to its decoder, and follows its supervisor.
use crate::address::Address;
use crate::board::{Place, Told};
use crate::decoder::{Decoders, PictureForm, Pictures};
use crate::decoding::Decoding;
use crate::event_time::monotonic;
use crate::session::{Clock, Session, Transport};
use crate::supervision::{Fault, Policy, Step, Supervisor};
use retina::client::SessionGroup;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidemill_operators::record::EventTime;
use tidemill_random::Random;
use tokio::sync::{Notify, watch};

/// Settings of all cameras of a source.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) policy: Policy,
    pub(crate) transport: Transport,
    pub(crate) clock: Clock,
    pub(crate) form: PictureForm,
    /// Most frames a second.
    pub(crate) most: Option<f64>,
}

/// Wish for a camera. A change of `orders` alone asks to try again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) is_paused: bool,
    pub(crate) orders: u64,
}

/// A camera to be driven.
#[derive(Clone)]
pub(crate) struct Camera {
    pub(crate) place: Place,
    pub(crate) address: Address,
    pub(crate) settings: Arc<Settings>,
    pub(crate) decoders: Arc<dyn Decoders>,
    pub(crate) group: Arc<SessionGroup>,
}

/// Tells the task of each picture, also of those that are dropped.
struct Noted {
    place: Place,
    seen: Arc<Notify>,
}

impl Pictures for Noted {
    fn wants(&self, time: EventTime) -> bool {
        self.seen.notify_one();
        self.place.wants(time)
    }

    fn buffer(&self) -> Vec<u8> {
        self.place.buffer()
    }

    fn picture(&self, time: EventTime, picture: Vec<u8>) {
        self.place.picture(time, picture);
    }
}

type Attempt = Pin<Box<dyn Future<Output = Result<Session, Fault>> + Send>>;

/// Drives a camera until its wishes end. Returns the threads of its decoders, which end by themselves.
pub(crate) async fn drive(
    camera: Camera,
    wishes: &mut watch::Receiver<Wish>,
    random: &mut Random,
) -> Vec<JoinHandle<()>> {
    let Camera { place, address, settings, decoders, group } = camera;
    let start = monotonic();
    let seen = Arc::new(Notify::new());
    let noted = Arc::new(Noted { place: place.clone(), seen: Arc::clone(&seen) });
    let (mut decoding, mut threads): (Option<Decoding>, _) = (None, Vec::new());
    let mut supervisor = Supervisor::new(settings.policy, Duration::ZERO);
    let (mut attempt, mut session): (Option<Attempt>, Option<Session>) = (None, None);
    let mut told = None;
    place.begin();
    if wishes.borrow_and_update().is_paused {
        supervisor.pause(Duration::ZERO);
    }
    loop {
        let step = supervisor.step(start.elapsed());
        let remark = session.as_ref().map(Session::remark).unwrap_or_default();
        tell(&supervisor, remark, start, &place, &address, &mut told);
        let until = match step {
            Step::Connect => {
                let (transport, clock) = (settings.transport, settings.clock);
                attempt =
                    Some(Box::pin(Session::open(address.clone(), transport, clock, Arc::clone(&group))));
                continue;
            }
            Step::GiveUp => {
                (attempt, session) = (None, None);
                let fault = supervisor.overdue();
                supervisor.lost(start.elapsed(), fault, random.unit());
                continue;
            }
            Step::Sleep(until) => until,
        };
        let timer = async {
            match until {
                Some(until) => tokio::time::sleep_until((start + until).into()).await,
                None => pending().await,
            }
        };
        let lost = tokio::select! {
            changed = wishes.changed() => {
                if changed.is_err() {
                    threads.extend(decoding.and_then(Decoding::finish));
                    return threads;
                }
                let is_paused = wishes.borrow_and_update().is_paused;
                if is_paused {
                    (attempt, session) = (None, None);
                    // The decoder is not needed meanwhile.
                    threads.retain(|thread: &JoinHandle<()>| !thread.is_finished());
                    threads.extend(decoding.take().and_then(Decoding::finish));
                    supervisor.pause(start.elapsed());
                    place.discard();
                } else {
                    supervisor.resume(start.elapsed());
                }
                None
            }
            result = of(attempt.as_mut()) => {
                attempt = None;
                match result {
                    Ok(opened) => {
                        supervisor.connected(start.elapsed());
                        session = Some(opened);
                        if let Some(decoding) = &mut decoding {
                            decoding.reset();
                        } else {
                            let (decoders, pictures) = (Arc::clone(&decoders), Arc::clone(&noted) as _);
                            match Decoding::start(decoders, settings.form, pictures, place.feed()) {
                                Ok(started) => decoding = Some(started),
                                Err(error) => tracing::warn!(camera = place.feed(), "no thread for its decoder: {error}"),
                            }
                        }
                        None
                    }
                    Err(fault) => Some(fault),
                }
            }
            result = next(session.as_mut(), &place) => match (result, &mut decoding) {
                (Ok(unit), Some(decoding)) => {
                    supervisor.unit(start.elapsed());
                    if !decoding.send(unit) {
                        place.behind();
                    }
                    None
                }
                (Ok(_), None) => Some(Fault::Gone("there is no thread for its decoder".to_owned())),
                (Err(fault), _) => Some(fault),
            },
            () = seen.notified() => {
                supervisor.frame(start.elapsed());
                None
            }
            () = timer => None,
        };
        if let Some(fault) = lost {
            session = None;
            supervisor.lost(start.elapsed(), fault, random.unit());
        }
    }
}

async fn of(attempt: Option<&mut Attempt>) -> Result<Session, Fault> {
    match attempt {
        Some(attempt) => attempt.await,
        None => pending().await,
    }
}

async fn next(session: Option<&mut Session>, place: &Place) -> Result<crate::decoder::Unit, Fault> {
    match session {
        Some(session) => session.next(place.board()).await,
        None => pending().await,
    }
}

/// Puts the state on the board if it has changed, and logs it.
fn tell(
    supervisor: &Supervisor,
    remark: String,
    start: Instant,
    place: &Place,
    address: &Address,
    told: &mut Option<Told>,
) {
    let detail = if supervisor.detail().is_empty() { remark } else { supervisor.detail().to_owned() };
    let now = Told {
        state: supervisor.state(),
        since: start + supervisor.since(),
        detail,
        connects: supervisor.connects(),
    };
    if told.as_ref() == Some(&now) {
        return;
    }
    let before = told.as_ref().map(|told| (told.state, told.detail.as_str()));
    if before != Some((now.state, now.detail.as_str())) {
        tracing::info!(camera = place.feed(), %address, state = now.state.name(), "{}", now.detail);
    }
    place.tell(now.clone());
    *told = Some(now);
}
