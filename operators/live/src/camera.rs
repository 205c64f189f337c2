//! The task of one camera or microphone: connects, passes frames to its decoder, and follows its supervisor.
use crate::address::Address;
use crate::board::{Place, Told};
use crate::capture::{Capture, Captures};
use crate::decoder::{Decoders, PictureForm, Pictures, Unit};
use crate::decoding::Decoding;
use crate::event_time::monotonic;
use crate::session::{Clock, Session, Transport};
use crate::supervision::{Fault, Policy, Step, Supervisor};
use retina::client::SessionGroup;
use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidemill_operators::feeds::FeedState;
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

/// Where a camera is.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// In the network.
    Network(Address),
    /// At this machine.
    Device(String),
}

impl Origin {
    /// Returns the device.
    ///
    /// # Errors
    /// It is an address.
    pub(crate) fn device(&self) -> Result<&str, Fault> {
        match self {
            Self::Device(device) => Ok(device),
            Self::Network(address) => Err(Fault::Missing(format!("`{address}` is no device"))),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Device(device) => f.write_str(device),
        }
    }
}

/// Carrier of the pictures.
#[derive(Clone)]
pub(crate) enum Via {
    /// A session of each camera; it sends coded frames, which are decoded here.
    Sessions(Arc<dyn Decoders>),
    /// A child for each device; it gives the pictures or sounds.
    Children(Arc<dyn Captures>),
}

/// A camera to be driven.
#[derive(Clone)]
pub(crate) struct Camera {
    pub(crate) place: Place,
    pub(crate) origin: Origin,
    pub(crate) settings: Arc<Settings>,
    pub(crate) via: Via,
    pub(crate) group: Arc<SessionGroup>,
}

/// Tells the task of each picture, also of those that are dropped.
#[derive(Clone)]
pub(crate) struct Noted {
    place: Place,
    seen: Arc<Notify>,
    /// Told of them too: a device that gives something is connected.
    first: Arc<Notify>,
}

impl Noted {
    /// Returns the present time, microseconds since 1970.
    pub(crate) fn now(&self) -> EventTime {
        self.place.board().now()
    }
}

impl Pictures for Noted {
    fn wants(&self, time: EventTime) -> bool {
        self.seen.notify_one();
        self.first.notify_one();
        self.place.wants(time)
    }

    fn buffer(&self) -> Vec<u8> {
        self.place.buffer()
    }

    fn picture(&self, time: EventTime, picture: Vec<u8>) {
        self.place.picture(time, picture);
    }
}

/// A connection to a camera.
enum Link {
    Session(Session),
    Capture(Capture),
}

impl Link {
    fn remark(&self) -> String {
        match self {
            Self::Session(session) => session.remark(),
            Self::Capture(_) => String::new(),
        }
    }

    async fn next(&mut self, place: &Place) -> Result<Unit, Fault> {
        match self {
            Self::Session(session) => session.next(place.board()).await,
            // Its pictures come by themselves.
            Self::Capture(capture) => Err(capture.ended().await),
        }
    }
}

type Attempt = Pin<Box<dyn Future<Output = Result<Link, Fault>> + Send>>;

/// Drives a camera until its wishes end. Returns the threads of its decoders, which end by themselves.
pub(crate) async fn drive(
    camera: Camera,
    wishes: &mut watch::Receiver<Wish>,
    random: &mut Random,
) -> Vec<JoinHandle<()>> {
    let Camera { place, origin, settings, via, group } = camera;
    let start = monotonic();
    let seen = Arc::new(Notify::new());
    let noted = Noted { place: place.clone(), seen: Arc::clone(&seen), first: Arc::default() };
    let (mut decoding, mut threads): (Option<Decoding>, _) = (None, Vec::new());
    let mut supervisor = Supervisor::new(settings.policy, Duration::ZERO);
    let (mut attempt, mut link): (Option<Attempt>, Option<Link>) = (None, None);
    let (mut told, mut outage) = (None, Outage::default());
    place.begin();
    if wishes.borrow_and_update().is_paused {
        supervisor.pause(Duration::ZERO);
    }
    loop {
        let step = supervisor.step(start.elapsed());
        let remark = link.as_ref().map(Link::remark).unwrap_or_default();
        tell(&supervisor, remark, start, &place, &origin, &mut told);
        if let Some(news) = outage.news(supervisor.state(), supervisor.detail(), start.elapsed()) {
            tracing::warn!("`{}` {news}", place.feed());
        }
        let until = match step {
            Step::Connect => {
                attempt = Some(connect(&origin, &via, &settings, &group, &noted));
                continue;
            }
            Step::GiveUp => {
                (attempt, link) = (None, None);
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
                told = None;
                if is_paused {
                    (attempt, link) = (None, None);
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
                        link = Some(opened);
                        match (&mut decoding, &via) {
                            (Some(decoding), _) => decoding.reset(),
                            (None, Via::Children(_)) => {}
                            (None, Via::Sessions(decoders)) => {
                                let pictures: Arc<dyn Pictures> = Arc::new(noted.clone());
                                match Decoding::start(Arc::clone(decoders), settings.form, pictures, place.feed()) {
                                    Ok(started) => decoding = Some(started),
                                    Err(error) => {
                                        tracing::warn!(camera = place.feed(), "no thread for its decoder: {error}");
                                    }
                                }
                            }
                        }
                        None
                    }
                    Err(fault) => Some(fault),
                }
            }
            result = next(link.as_mut(), &place) => match (result, &mut decoding) {
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
            link = None;
            supervisor.lost(start.elapsed(), fault, random.unit());
        }
    }
}

async fn of(attempt: Option<&mut Attempt>) -> Result<Link, Fault> {
    match attempt {
        Some(attempt) => attempt.await,
        None => pending().await,
    }
}

async fn next(link: Option<&mut Link>, place: &Place) -> Result<Unit, Fault> {
    match link {
        Some(link) => link.next(place).await,
        None => pending().await,
    }
}

/// Begins an attempt to connect.
fn connect(
    origin: &Origin,
    via: &Via,
    settings: &Settings,
    group: &Arc<SessionGroup>,
    noted: &Noted,
) -> Attempt {
    match (origin, via) {
        (Origin::Network(address), Via::Sessions(_)) if address.is_encrypted() => {
            let text =
                "a camera that encrypts (rtsps) needs `session: ffmpeg` among the options of the source";
            Box::pin(async move { Err(Fault::Rejected(text.to_owned())) })
        }
        (Origin::Network(address), Via::Sessions(_)) => {
            let (transport, clock) = (settings.transport, settings.clock);
            let opened = Session::open(address.clone(), transport, clock, Arc::clone(group));
            Box::pin(async move { Ok(Link::Session(opened.await?)) })
        }
        (origin, Via::Children(captures)) => {
            let first = Arc::new(Notify::new());
            let started = captures.start(origin, Noted { first: Arc::clone(&first), ..noted.clone() });
            Box::pin(async move {
                let mut capture = started?;
                tokio::select! {
                    fault = capture.ended() => Err(fault),
                    () = first.notified() => Ok(Link::Capture(capture)),
                }
            })
        }
        (Origin::Device(device), Via::Sessions(_)) => {
            let fault = Fault::Missing(format!("`{device}` is no address"));
            Box::pin(async move { Err(fault) })
        }
    }
}

/// What was reported of a camera that gives nothing: once when it begins, and once when it is over.
#[derive(Default)]
struct Outage {
    since: Option<Duration>,
}

impl Outage {
    /// Returns what to report now.
    fn news(&mut self, state: FeedState, cause: &str, now: Duration) -> Option<String> {
        match state {
            FeedState::Live => {
                let lasted = now.saturating_sub(self.since.take()?);
                Some(format!("is live again after {:.1} s", lasted.as_secs_f64()))
            }
            FeedState::Paused => {
                self.since = None;
                None
            }
            _ if self.since.is_some() || cause.is_empty() => None,
            _ => {
                self.since = Some(now);
                Some(match state {
                    FeedState::Failed => format!("failed: {cause}"),
                    _ => format!("gives nothing and is tried again: {cause}"),
                })
            }
        }
    }
}

/// Puts the state on the board if it has changed, and logs it.
fn tell(
    supervisor: &Supervisor,
    remark: String,
    start: Instant,
    place: &Place,
    origin: &Origin,
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
        tracing::info!(camera = place.feed(), %origin, state = now.state.name(), "{}", now.detail);
    }
    place.tell(now.clone());
    *told = Some(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_and_so_is_its_end() {
        let mut outage = Outage::default();
        let mut news = |state, cause, seconds| outage.news(state, cause, Duration::from_secs(seconds));
        assert_eq!(news(FeedState::Connecting, "", 0), None);
        assert_eq!(news(FeedState::Live, "", 1), None, "it was never away");
        let cut = news(FeedState::Connecting, "refused", 10).unwrap_or_default();
        assert!(cut.contains("is tried again: refused"), "{cut}");
        assert_eq!(news(FeedState::Stalled, "silent", 11), None);
        assert_eq!(news(FeedState::Live, "", 12).as_deref(), Some("is live again after 2.0 s"));
        let failed = news(FeedState::Failed, "wrong password", 13);
        assert_eq!(failed.as_deref(), Some("failed: wrong password"));
        assert_eq!(news(FeedState::Paused, "", 14), None);
        assert_eq!(news(FeedState::Live, "", 15), None, "somebody paused it");
    }
}
