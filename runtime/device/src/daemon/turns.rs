//! Who runs when: weighted fair turns, one run each.
//!
//! Each tenant has a *virtual time*: the time that the device computed for it while others waited, divided by its share. The tenant
//! with the least is next (start-time fair queueing), and in it the session that waits for longest. A tenant that was idle begins at the virtual time of
//! the device, so that it neither saves time up nor pays for time that nobody else wanted. While no more sessions are active
//! than run at once, each has a *standing* turn, and runs without asking.
//!
//! A session whose last run was followed by the next one soon is expected to want again: if its tenant is next, the device waits for it,
//! for an eighth of its run, [`EXPECTED`] at least and [`MOST_EXPECTED`] at most. Otherwise two tenants of one session each would always
//! get half.
use std::collections::BTreeMap;
use std::time::Duration;

/// Time after a run during which a session counts as active.
pub const ACTIVE: Duration = Duration::from_millis(100);
/// How long the device waits for the next run of a session with short runs that comes at once as a rule.
pub const EXPECTED: Duration = Duration::from_micros(500);
/// How long it waits at most, for one with long runs.
pub const MOST_EXPECTED: Duration = Duration::from_millis(20);
/// Part of a run that its session may take to come again.
const PART_EXPECTED: u32 = 8;

/// What a session is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Run once.
    Turn(u64),
    /// Run until recalled.
    Standing(u64),
    /// End the standing turn.
    Recall(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Wants nothing. When its last run ended, if it had one.
    Idle {
        ran: Option<Duration>,
    },
    /// Wants to run since then.
    Waiting {
        since: Duration,
    },
    /// Has one turn since then.
    Running {
        since: Duration,
    },
    Standing,
    /// Had a standing turn, and is to end it since then.
    Recalled {
        since: Duration,
    },
}

#[derive(Debug)]
struct Session {
    tenant: String,
    state: State,
    /// Its last run followed the one before within this session's patience.
    is_prompt: bool,
    /// How long the device waits for its next run.
    patience: Duration,
}

#[derive(Debug)]
struct Tenant {
    share: f64,
    /// Seconds of the device, divided by the share.
    virtual_time: f64,
}

/// Gives turns. Times are those since some moment.
///
/// ```
/// use std::time::Duration;
/// use tidemill_device::daemon::turns::{Order, Turns};
/// let mut turns = Turns::new(1);
/// turns.share("a", 0.7);
/// turns.join(1, "a");
/// turns.want(1, Duration::ZERO);
/// assert_eq!(turns.next(Duration::ZERO), [Order::Standing(1)]);
/// ```
#[derive(Debug)]
pub struct Turns {
    slots: usize,
    tenants: BTreeMap<String, Tenant>,
    sessions: BTreeMap<u64, Session>,
    /// Until when the device computes runs whose turns are over, one a slot.
    busy: Vec<Duration>,
    /// Virtual time of the device: that of the tenant which had the last turn, at its begin.
    virtual_time: f64,
}

impl Turns {
    /// Of a device that computes so many runs at once.
    pub fn new(slots: usize) -> Self {
        Self {
            slots: slots.max(1),
            tenants: BTreeMap::new(),
            sessions: BTreeMap::new(),
            busy: Vec::new(),
            virtual_time: 0.0,
        }
    }

    /// Sets the share of a tenant. Shares count relative to those of the others that want the device.
    pub fn share(&mut self, tenant: &str, share: f64) {
        // A share of nothing would never end its first turn.
        let share = share.max(1e-3);
        let virtual_time = self.virtual_time;
        let tenant = self.tenants.entry(tenant.to_owned()).or_insert(Tenant { share, virtual_time });
        tenant.share = share;
    }

    /// Adds a session.
    pub fn join(&mut self, session: u64, tenant: &str) {
        if !self.tenants.contains_key(tenant) {
            self.share(tenant, 1.0);
        }
        let state = State::Idle { ran: None };
        self.sessions.insert(
            session,
            Session { tenant: tenant.to_owned(), state, is_prompt: false, patience: EXPECTED },
        );
    }

    /// A session wants to run.
    pub fn want(&mut self, session: u64, now: Duration) {
        let Some(Session { tenant, state, is_prompt, patience }) = self.sessions.get_mut(&session) else {
            return;
        };
        let State::Idle { ran } = *state else { return };
        *is_prompt = ran.is_some_and(|ran| now.saturating_sub(ran) <= *patience);
        *state = State::Waiting { since: now };
        let tenant = tenant.clone();
        let others = self.sessions.iter().filter(|(other, _)| **other != session);
        let mut others = others.filter(|(_, other)| other.tenant == tenant);
        let was_idle = others.all(|(_, other)| matches!(other.state, State::Idle { .. }));
        if let (true, Some(tenant)) = (was_idle, self.tenants.get_mut(&tenant)) {
            tenant.virtual_time = tenant.virtual_time.max(self.virtual_time);
        }
    }

    /// A session's turn is over, single or standing. The device computes for it until `busy`.
    pub fn over(&mut self, session: u64, now: Duration, busy: Duration) {
        let Some(Session { tenant, state, patience, .. }) = self.sessions.get_mut(&session) else { return };
        let since = match *state {
            State::Running { since } | State::Recalled { since } => since,
            State::Standing => now,
            State::Idle { .. } | State::Waiting { .. } => return,
        };
        let ends = busy.max(now);
        *state = State::Idle { ran: Some(ends) };
        *patience = (ends.saturating_sub(since) / PART_EXPECTED).clamp(EXPECTED, MOST_EXPECTED);
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.virtual_time += ends.saturating_sub(since).as_secs_f64() / tenant.share;
        }
        if ends > now {
            self.busy.push(ends);
        }
    }

    /// A session has ended. What it computed last is charged.
    pub fn leave(&mut self, session: u64, now: Duration) {
        self.over(session, now, now);
        self.sessions.remove(&session);
    }

    /// Returns since when a session has its single turn, or should have ended its standing one.
    pub fn holds_since(&self, session: u64) -> Option<Duration> {
        match self.sessions.get(&session)?.state {
            State::Running { since } | State::Recalled { since } => Some(since),
            _ => None,
        }
    }

    /// Returns the sessions that wait.
    pub fn waiting(&self) -> usize {
        self.sessions.values().filter(|session| matches!(session.state, State::Waiting { .. })).count()
    }

    /// Returns whether this one waits.
    pub fn waits(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|session| matches!(session.state, State::Waiting { .. }))
    }

    /// Returns whether this one has a turn.
    pub fn has_turn(&self, session: u64) -> bool {
        let state = self.sessions.get(&session).map(|session| session.state);
        state.is_some_and(|state| !matches!(state, State::Idle { .. } | State::Waiting { .. }))
    }

    /// Returns when [`Self::next`] has something to say though nothing is told: a slot becomes free, or a session did not come.
    pub fn wakes_at(&self, now: Duration) -> Option<Duration> {
        if self.waiting() == 0 {
            return None;
        }
        let expected = self.sessions.values().filter_map(|session| session.expected_until(now));
        self.busy.iter().copied().chain(expected).filter(|time| *time > now).min()
    }

    /// Gives the turns that can be given now.
    pub fn next(&mut self, now: Duration) -> Vec<Order> {
        self.busy.retain(|until| *until > now);
        let mut orders = Vec::new();
        while self.waiting() > 0 && self.free() > 0 {
            let Some(tenant) = self.first(now) else { return orders };
            let waiting = self.sessions.iter_mut().filter(|(_, session)| session.tenant == tenant);
            let waiting = waiting.filter_map(|(id, session)| match session.state {
                State::Waiting { since } => Some((since, *id, session)),
                _ => None,
            });
            let Some((_, id, _)) = waiting.min_by_key(|(since, id, _)| (*since, *id)) else { return orders };
            let is_standing = self.active(now) <= self.slots;
            let virtual_time = self.tenants.get(&tenant).map(|tenant| tenant.virtual_time);
            self.virtual_time = self.virtual_time.max(virtual_time.unwrap_or_default());
            if let Some(session) = self.sessions.get_mut(&id) {
                session.state = if is_standing { State::Standing } else { State::Running { since: now } };
            }
            orders.push(if is_standing { Order::Standing(id) } else { Order::Turn(id) });
        }
        if self.waiting() > 0 {
            for (id, session) in &mut self.sessions {
                if session.state == State::Standing {
                    session.state = State::Recalled { since: now };
                    orders.push(Order::Recall(*id));
                }
            }
        }
        orders
    }

    fn free(&self) -> usize {
        let taken = self.sessions.values().filter(|session| {
            matches!(session.state, State::Running { .. } | State::Standing | State::Recalled { .. })
        });
        self.slots.saturating_sub(taken.count() + self.busy.len())
    }

    /// Sessions that run, wait, or ran a moment ago.
    fn active(&self, now: Duration) -> usize {
        let is_active = |session: &&Session| match session.state {
            State::Idle { ran } => ran.is_some_and(|ran| now < ran + ACTIVE),
            _ => true,
        };
        self.sessions.values().filter(is_active).count()
    }

    /// The tenant that is next, if one of its sessions waits.
    fn first(&self, now: Duration) -> Option<String> {
        let mut first: Option<(f64, &str, bool)> = None;
        for session in self.sessions.values() {
            let waits = matches!(session.state, State::Waiting { .. });
            if !waits && session.expected_until(now).is_none() {
                continue;
            }
            let Some(tenant) = self.tenants.get(&session.tenant) else { continue };
            let key = (tenant.virtual_time, session.tenant.as_str());
            let is_before = first.is_none_or(|(time, name, waiting)| {
                key.0 < time || key.0 == time && (waits, name) > (waiting, key.1)
            });
            if is_before {
                first = Some((key.0, key.1, waits));
            }
        }
        first.filter(|(.., waits)| *waits).map(|(_, tenant, _)| tenant.to_owned())
    }
}

impl Session {
    /// Until when it may come at once, if that is to be waited for.
    fn expected_until(&self, now: Duration) -> Option<Duration> {
        match self.state {
            State::Idle { ran: Some(ran) } if self.is_prompt && now < ran + self.patience => {
                Some(ran + self.patience)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
