//! When to connect to a camera, and what its state is: a state machine without clock, network and chance of its own.
//!
//! The caller tells the time, as the time since any fixed moment, and what happened; [`Supervisor::step`] says what to do.
//! Lost connections are tried again after 0.1 s, doubling to 10 s, each shortened by chance by up to a half, so that many
//! cameras of one recorder do not come at once. A camera that was live within the last minute waits for at most 0.5 s. One
//! that refuses the password, or has no such path, is tried every five minutes only, since some lock out who tries often.
//!
//! ```
//! use std::time::Duration;
//! use tidemill_live::supervision::{Fault, Policy, Step, Supervisor};
//! use tidemill_operators::feeds::FeedState;
//! let at = Duration::from_secs;
//! let mut gate = Supervisor::new(Policy::default(), at(0));
//! assert_eq!(gate.step(at(0)), Step::Connect);
//! gate.connected(at(1));
//! gate.frame(at(2));
//! assert_eq!(gate.state(), FeedState::Live);
//! gate.lost(at(9), Fault::Gone("the server closed the connection".into()), 0.0);
//! assert_eq!(gate.step(at(9)), Step::Sleep(Some(at(9) + Duration::from_millis(100))));
//! ```
use std::time::Duration;
use tidemill_operators::feeds::FeedState;

/// Times that govern a camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Longest time for a connection, from the first packet to the agreement on the stream.
    pub connect: Duration,
    /// Time without a frame after which a connection is given up.
    pub stall: Duration,
    /// First wait after a lost connection.
    pub first: Duration,
    /// Longest wait.
    pub longest: Duration,
    /// Time of being live after which waits begin at the first one again.
    pub steady: Duration,
    /// Time since the last frame for which waits have another limit.
    pub recent: Duration,
    /// This limit.
    pub longest_recent: Duration,
    /// Wait after a rejection.
    pub rejected: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            stall: Duration::from_secs(10),
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            steady: Duration::from_secs(10),
            recent: Duration::from_secs(60),
            longest_recent: Duration::from_millis(500),
            rejected: Duration::from_secs(300),
        }
    }
}

/// Reason why a connection was lost or not made; texts have no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The camera refuses: a wrong password, no permission. Trying again does not help.
    #[error("{0}")]
    Rejected(String),
    /// The camera has no such path. A server that has just restarted may have it soon.
    #[error("{0}")]
    Missing(String),
    /// The camera cannot be reached, or has closed the connection.
    #[error("{0}")]
    Gone(String),
    /// No frame came for the time `stall`.
    #[error("connected, but no frame came for {} s", .0.as_secs_f64())]
    Stalled(Duration),
    /// Data came, but no frame of it for so long: no key frame, or the decoder does not read it.
    #[error("connected, but no picture could be decoded for {} s: set a shorter key-frame interval at the camera", .0.as_secs_f64())]
    Undecoded(Duration),
    /// The connection took longer than `connect`.
    #[error("it did not answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

impl Fault {
    /// 401: `has_login`, whether the address has a user.
    pub(crate) fn unauthorized(has_login: bool) -> Self {
        let text = match has_login {
            true => "the camera refuses user and password (401): check `user` and the password",
            false => {
                "the camera wants a user and a password (401): write `user` and `password_env` or `password_file`"
            }
        };
        Self::Rejected(text.to_owned())
    }

    /// 403.
    pub(crate) fn forbidden() -> Self {
        Self::Rejected("the camera refuses access (403): check the rights of its user".to_owned())
    }

    /// 404.
    pub(crate) fn no_path() -> Self {
        Self::Missing("the camera has no such path (404): check the address".to_owned())
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Connect. Given once for each attempt.
    Connect,
    /// Give up the attempt or the connection, and tell [`Supervisor::lost`] of the fault.
    GiveUp,
    /// Nothing until this time, or until something happens.
    Sleep(Option<Duration>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting {
        until: Duration,
    },
    Connecting {
        since: Duration,
    },
    /// Connected; `last` is the time of the last coded data, `picture` that of the last frame, or both of the connection.
    Watching {
        last: Duration,
        picture: Duration,
    },
    Paused,
}

/// Multiple of `stall` in which a camera that sends must give a picture: some send a key frame only every 20 s.
const WITHOUT_PICTURE: u32 = 6;

/// The supervisor of a camera, see the module.
#[derive(Debug, Clone)]
pub struct Supervisor {
    policy: Policy,
    phase: Phase,
    state: FeedState,
    /// Time of the change to this state.
    since: Duration,
    detail: String,
    connects: u64,
    /// Lost connections since the last steady one.
    losses: u32,
    /// First frame of this connection.
    live_since: Option<Duration>,
    /// Last frame of all.
    last_live: Option<Duration>,
}

impl Supervisor {
    /// Creates the supervisor of a camera that is to be connected now.
    pub fn new(policy: Policy, now: Duration) -> Self {
        Self {
            policy,
            phase: Phase::Waiting { until: now },
            state: FeedState::Connecting,
            since: now,
            detail: String::new(),
            connects: 0,
            losses: 0,
            live_since: None,
            last_live: None,
        }
    }

    /// Returns what to do at this time.
    pub fn step(&mut self, now: Duration) -> Step {
        match self.phase {
            Phase::Waiting { until } if now >= until => {
                self.phase = Phase::Connecting { since: now };
                Step::Connect
            }
            Phase::Waiting { until } => Step::Sleep(Some(until)),
            Phase::Connecting { since } => give_up_at(now, since + self.policy.connect),
            Phase::Watching { last, picture } => {
                give_up_at(now, (last + self.policy.stall).min(picture + WITHOUT_PICTURE * self.policy.stall))
            }
            Phase::Paused => Step::Sleep(None),
        }
    }

    /// Returns the fault of a [`Step::GiveUp`].
    pub fn overdue(&self) -> Fault {
        match self.phase {
            Phase::Watching { last, picture } if last > picture => {
                Fault::Undecoded(WITHOUT_PICTURE * self.policy.stall)
            }
            Phase::Watching { .. } => Fault::Stalled(self.policy.stall),
            _ => Fault::TimedOut(self.policy.connect),
        }
    }

    /// Notes that a connection was made.
    pub fn connected(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Connecting { .. }) {
            self.connects += 1;
            self.live_since = None;
            self.phase = Phase::Watching { last: now, picture: now };
        }
    }

    /// Notes that coded data came, which may not make a picture before the next key frame.
    pub fn unit(&mut self, now: Duration) {
        if let Phase::Watching { last, .. } = &mut self.phase {
            *last = now;
        }
    }

    /// Notes that a frame came.
    pub fn frame(&mut self, now: Duration) {
        let Phase::Watching { last, picture } = &mut self.phase else { return };
        (*last, *picture) = (now, now);
        self.last_live = Some(now);
        let live_since = *self.live_since.get_or_insert(now);
        if now.saturating_sub(live_since) >= self.policy.steady {
            self.losses = 0;
        }
        self.turn(FeedState::Live, String::new(), now);
    }

    /// Notes that the attempt failed or the connection is lost. `chance`, from 0 to 1, shortens the wait.
    pub fn lost(&mut self, now: Duration, fault: Fault, chance: f64) {
        if self.phase == Phase::Paused {
            return;
        }
        let is_recent = self.last_live.is_some_and(|last| now.saturating_sub(last) < self.policy.recent);
        let is_rejected = match fault {
            Fault::Rejected(_) => true,
            Fault::Missing(_) => !is_recent,
            _ => false,
        };
        let wait = if is_rejected {
            self.policy.rejected
        } else {
            let longest = if is_recent { self.policy.longest_recent } else { self.policy.longest };
            let doubled = self.policy.first.saturating_mul(1 << self.losses.min(16));
            doubled.min(longest)
        };
        self.losses = self.losses.saturating_add(1);
        let state = match (&fault, is_rejected) {
            (_, true) => FeedState::Failed,
            (Fault::Stalled(_) | Fault::Undecoded(_), _) => FeedState::Stalled,
            _ => FeedState::Connecting,
        };
        self.live_since = None;
        // One that has rejected us is never tried sooner.
        let shortened = if is_rejected { 0.0 } else { chance.clamp(0.0, 1.0) / 2.0 };
        self.phase = Phase::Waiting { until: now + wait.mul_f64(1.0 - shortened) };
        self.turn(state, fault.to_string(), now);
    }

    /// Pauses it until [`Supervisor::resume`].
    pub fn pause(&mut self, now: Duration) {
        self.phase = Phase::Paused;
        self.turn(FeedState::Paused, String::new(), now);
    }

    /// Connects at once where it is paused, has failed or waits.
    pub fn resume(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Paused | Phase::Waiting { .. }) {
            self.losses = 0;
            self.phase = Phase::Waiting { until: now };
            self.turn(FeedState::Connecting, String::new(), now);
        }
    }

    fn turn(&mut self, state: FeedState, detail: String, now: Duration) {
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
        self.detail = detail;
    }

    /// The state.
    pub fn state(&self) -> FeedState {
        self.state
    }

    /// Time of the change to this state.
    pub fn since(&self) -> Duration {
        self.since
    }

    /// The cause of the state; empty if there is nothing to say.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Connections made.
    pub fn connects(&self) -> u64 {
        self.connects
    }
}

fn give_up_at(now: Duration, limit: Duration) -> Step {
    if now >= limit { Step::GiveUp } else { Step::Sleep(Some(limit)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn gone() -> Fault {
        Fault::Gone("gone".into())
    }

    /// Loses attempts one after the other; returns the waits.
    fn waits(supervisor: &mut Supervisor, mut now: Duration, count: usize, chance: f64) -> Vec<u64> {
        let mut waits = Vec::new();
        for _ in 0..count {
            assert_eq!(supervisor.step(now), Step::Connect);
            supervisor.lost(now, gone(), chance);
            let Step::Sleep(Some(until)) = supervisor.step(now) else { panic!("it waits") };
            waits.push((until - now).as_millis() as u64);
            now = until;
        }
        waits
    }

    fn live(now: Duration) -> Supervisor {
        let mut supervisor = Supervisor::new(Policy::default(), now);
        assert_eq!(supervisor.step(now), Step::Connect);
        supervisor.connected(now);
        supervisor.frame(now);
        supervisor
    }

    #[test]
    fn waits_double_and_have_a_limit() {
        let mut supervisor = Supervisor::new(Policy::default(), ms(0));
        let expected = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        assert_eq!(waits(&mut supervisor, ms(0), 9, 0.0), expected);
        let mut supervisor = Supervisor::new(Policy::default(), ms(0));
        assert_eq!(waits(&mut supervisor, ms(0), 3, 1.0), [50, 100, 200]);
        assert_eq!((supervisor.state(), supervisor.detail()), (FeedState::Connecting, "gone"));
    }

    #[test]
    fn a_camera_that_was_live_is_tried_often_for_a_minute() {
        let mut supervisor = live(ms(0));
        supervisor.lost(ms(1000), gone(), 0.0);
        let first = waits(&mut supervisor, ms(1100), 120, 0.0);
        assert_eq!(first[..3], [200, 400, 500]);
        let total: u64 = first.iter().take_while(|wait| **wait <= 500).sum();
        assert!((58_000..60_000).contains(&total), "{total}");
        assert_eq!(first.last(), Some(&10_000));
    }

    #[test]
    fn ten_seconds_live_forget_earlier_losses() {
        for (lasts, wait) in [(9_999, 400), (10_000, 100)] {
            let mut supervisor = Supervisor::new(Policy::default(), ms(0));
            waits(&mut supervisor, ms(0), 2, 0.0);
            assert_eq!(supervisor.step(ms(900)), Step::Connect);
            supervisor.connected(ms(900));
            supervisor.frame(ms(1000));
            supervisor.frame(ms(1000 + lasts));
            supervisor.lost(ms(20_000), gone(), 0.0);
            assert_eq!(supervisor.step(ms(20_000)), Step::Sleep(Some(ms(20_000 + wait))));
        }
    }

    #[test]
    fn silence_is_a_stall() {
        let mut supervisor = live(ms(500));
        assert_eq!(supervisor.step(ms(10_499)), Step::Sleep(Some(ms(10_500))));
        assert_eq!(supervisor.step(ms(10_500)), Step::GiveUp);
        let fault = supervisor.overdue();
        supervisor.lost(ms(10_500), fault, 0.0);
        assert_eq!(supervisor.state(), FeedState::Stalled);
        assert_eq!(supervisor.detail(), "connected, but no frame came for 10 s");
        assert_eq!(supervisor.step(ms(10_600)), Step::Connect);
        supervisor.connected(ms(10_700));
        assert_eq!(supervisor.state(), FeedState::Stalled, "until a frame comes");
        supervisor.frame(ms(10_800));
        assert_eq!((supervisor.state(), supervisor.since()), (FeedState::Live, ms(10_800)));
        assert_eq!(supervisor.connects(), 2);
    }

    #[test]
    fn a_connection_has_a_limit() {
        let mut supervisor = Supervisor::new(Policy::default(), ms(0));
        assert_eq!(supervisor.step(ms(0)), Step::Connect);
        assert_eq!(supervisor.step(ms(19_999)), Step::Sleep(Some(ms(20_000))));
        assert_eq!(supervisor.step(ms(20_000)), Step::GiveUp);
        assert_eq!(supervisor.overdue(), Fault::TimedOut(ms(20_000)));
        assert_eq!(supervisor.connects(), 0);
    }

    #[test]
    fn a_rejection_is_tried_every_five_minutes() {
        let mut supervisor = live(ms(0));
        for attempt in 0..3 {
            let now = ms(attempt * 300_000 + 100);
            supervisor.lost(now, Fault::Rejected("401".into()), 0.0);
            assert_eq!((supervisor.state(), supervisor.detail()), (FeedState::Failed, "401"));
            assert_eq!(supervisor.step(now), Step::Sleep(Some(now + ms(300_000))));
            assert_eq!(supervisor.step(now + ms(300_000)), Step::Connect);
        }
        supervisor.lost(ms(900_100), Fault::Rejected("401".into()), 0.0);
        supervisor.resume(ms(900_200));
        assert_eq!(supervisor.step(ms(900_200)), Step::Connect, "somebody acted");
    }

    #[test]
    fn a_path_that_was_there_may_come_back() {
        let mut supervisor = live(ms(0));
        supervisor.lost(ms(1000), Fault::Missing("404".into()), 0.0);
        assert_eq!(supervisor.state(), FeedState::Connecting);
        assert_eq!(supervisor.step(ms(1100)), Step::Connect);
        supervisor.lost(ms(61_000), Fault::Missing("404".into()), 0.0);
        assert_eq!(supervisor.state(), FeedState::Failed);
        let mut supervisor = Supervisor::new(Policy::default(), ms(0));
        assert_eq!(supervisor.step(ms(0)), Step::Connect);
        supervisor.lost(ms(10), Fault::Missing("404".into()), 0.0);
        assert_eq!(supervisor.state(), FeedState::Failed);
    }

    #[test]
    fn a_pause_ends_by_an_order_only() {
        let mut supervisor = live(ms(0));
        supervisor.pause(ms(100));
        assert_eq!(supervisor.step(ms(1_000_000)), Step::Sleep(None));
        supervisor.lost(ms(200), gone(), 0.0);
        supervisor.frame(ms(300));
        supervisor.connected(ms(300));
        assert_eq!((supervisor.state(), supervisor.connects()), (FeedState::Paused, 1));
        supervisor.resume(ms(400));
        assert_eq!((supervisor.state(), supervisor.step(ms(400))), (FeedState::Connecting, Step::Connect));
    }
}
