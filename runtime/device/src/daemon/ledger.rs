//! The sessions of a device and its tenants: who is admitted, who may hold how much, and who runs next. No processes, no clock.
//!
//! A process that serves several sessions of a tenant is a session of its own here, a *group*: it takes the turns of its sessions and
//! holds their models. It begins with the first of them and ends with the last.
mod listing;
mod memory;

use super::processes::STARTING;
use super::tenants::{Tenant, Tenants};
use super::turns::{Order, Turns};
use crate::call::Hello;
use crate::child::{ASKS, Figures, FromChild, ToChild};
use crate::device::Limits;
use std::collections::BTreeMap;
use std::time::Duration;

/// Letters of the name of a client that lists show.
const MOST_NAME: usize = 200;
/// Time in which a client greets, once its process can begin.
pub(super) const GREETING: Duration = Duration::from_secs(10);
/// Time in which a process that has no session any more ends by itself.
const LEAVING: Duration = Duration::from_secs(5);
/// The reason for a client whose session alone is ended.
const ENDED: &str = "an operator ended the session with `tidemill device drain`";

/// Questions for figures without an answer, after which the process of a session counts as one that stands still.
const UNANSWERED: u32 = 3;

/// What a device gives.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) slots: usize,
    pub(super) memory: Option<u64>,
    /// The longest that a run may take while others wait.
    pub(super) longest_run: Duration,
    pub(super) most_sessions: usize,
}

#[derive(Debug)]
pub(super) struct Ledger {
    given: Given,
    tenants: Tenants,
    turns: Turns,
    sessions: BTreeMap<u64, Session>,
    /// Clients that have come, and have no session yet.
    coming: usize,
    last: u64,
    /// Number of the last group. They count down, so that sessions have the small numbers.
    last_group: u64,
    /// Why no session is admitted any more.
    drains: Option<String>,
    /// Those of sessions that have ended.
    ended: Figures,
    /// Batches of groups that have ended.
    batches: u64,
    /// Messages to processes.
    outgoing: Vec<(u64, ToChild)>,
    /// Sessions whose processes are to end.
    ending: Vec<(u64, Ending)>,
    /// Listings that wait for figures.
    listings: usize,
    /// When all processes are asked for figures.
    asks_at: Duration,
    /// Questions for memory that processes which are being ended still hold: the session, what it holds, and what it wants.
    postponed: Vec<(u64, u64, u64)>,
}

#[derive(Debug)]
struct Session {
    since: Duration,
    /// When its process could begin; none: it loads libraries, say.
    ready: Option<Duration>,
    process: u32,
    peer: String,
    /// None: it has not greeted.
    admitted: Option<Admitted>,
    figures: Figures,
    /// How often it has reported.
    reports: u64,
    /// Questions for figures since its process last said something.
    unanswered: u32,
    /// Bytes that it may hold.
    granted: u64,
    /// When it was told to end.
    told: Option<Duration>,
    /// Its process is being ended.
    ends: bool,
    /// When its process must have ended by itself.
    leaves_by: Option<Duration>,
    /// Its process was killed, and the kernel does not end it.
    is_stuck: bool,
    kind: Kind,
}

impl Session {
    /// When its client or its process takes too long to begin.
    fn is_late_at(&self) -> Option<Duration> {
        match self.ready {
            None => Some(self.since + STARTING),
            Some(ready) => self.admitted.is_none().then_some(ready + GREETING),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its process is its own.
    Alone,
    /// The sessions of a process together.
    Group,
    /// Its process is that of this group.
    In(u64),
}

/// Why a process is ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// Something is wrong.
    Because(String),
    /// It has no session any more.
    Unused,
}

#[derive(Debug)]
struct Admitted {
    tenant: String,
    client: String,
}

impl Ledger {
    pub(super) fn new(given: Given, tenants: Tenants) -> Self {
        let mut turns = Turns::new(given.slots);
        for (name, tenant) in tenants.all() {
            turns.share(name, tenant.share);
        }
        Self {
            given,
            tenants,
            turns,
            sessions: BTreeMap::new(),
            coming: 0,
            last: 0,
            last_group: u64::MAX,
            drains: None,
            ended: Figures::default(),
            batches: 0,
            outgoing: Vec::new(),
            ending: Vec::new(),
            listings: 0,
            asks_at: Duration::ZERO,
            postponed: Vec::new(),
        }
    }

    /// Keeps a place for a client that has come, until [`Self::placed`]. Returns why it cannot be served, if so.
    pub(super) fn refuses(&mut self) -> Option<String> {
        if let Some(reason) = &self.drains {
            return Some(reason.clone());
        }
        let most = self.given.most_sessions;
        let counts = |session: &&Session| session.kind != Kind::Group && !session.is_stuck;
        let sessions = self.sessions.values().filter(counts);
        if sessions.count() + self.coming >= most {
            return Some(format!("it serves {most} sessions, and no more at once"));
        }
        self.coming += 1;
        None
    }

    /// A client that has come has its session, or has none.
    pub(super) fn placed(&mut self) {
        self.coming = self.coming.saturating_sub(1);
    }

    /// Adds a session, and returns its number.
    pub(super) fn begin(&mut self, process: u32, peer: String, now: Duration) -> u64 {
        self.last += 1;
        self.add(self.last, process, peer, Kind::Alone, now);
        self.last
    }

    /// Adds a group for the tenant of this name, and returns its number. None: it is no tenant.
    pub(super) fn begin_group(&mut self, process: u32, tenant: &str, now: Duration) -> Option<u64> {
        let (name, _) = self.tenants.of(tenant).ok()?;
        let tenant = name.to_owned();
        self.last_group -= 1;
        let group = self.last_group;
        self.turns.join(group, &tenant);
        self.add(group, process, String::new(), Kind::Group, now);
        if let Some(session) = self.sessions.get_mut(&group) {
            session.admitted = Some(Admitted { tenant, client: String::new() });
        }
        if self.is_unlimited(group) {
            self.grant(group, u64::MAX, u64::MAX);
        }
        Some(group)
    }

    /// The group of the tenant of this name.
    pub(super) fn group_of(&self, tenant: &str) -> Option<u64> {
        let (tenant, _) = self.tenants.of(tenant).ok()?;
        let is_its = |(id, session): &(&u64, &Session)| {
            session.kind == Kind::Group && !session.ends && self.tenant_of(**id) == Some(tenant)
        };
        self.sessions.iter().find(is_its).map(|(id, _)| *id)
    }

    /// Adds a session of a group, and returns its number.
    pub(super) fn begin_in(&mut self, group: u64, peer: String, now: Duration) -> u64 {
        self.last += 1;
        let process = self.sessions.get(&group).map_or(0, |group| group.process);
        self.add(self.last, process, peer, Kind::In(group), now);
        self.last
    }

    fn add(&mut self, id: u64, process: u32, peer: String, kind: Kind, now: Duration) {
        let session = Session {
            since: now,
            ready: None,
            process,
            peer,
            admitted: None,
            figures: Figures::default(),
            reports: 0,
            unanswered: 0,
            granted: 0,
            told: None,
            ends: false,
            leaves_by: None,
            is_stuck: false,
            kind,
        };
        self.sessions.insert(id, session);
    }

    /// Names a session or a group for logs.
    pub(super) fn name_of(&self, session: u64) -> String {
        match self.sessions.get(&session) {
            Some(Session { kind: Kind::Group, admitted: Some(group), .. }) => {
                format!("the process of all sessions of `{}`", group.tenant)
            }
            _ => format!("session {session}"),
        }
    }

    /// Handles a message of the process of a session.
    pub(super) fn hear(&mut self, session: u64, message: FromChild, now: Duration) {
        let Some(this) = self.sessions.get_mut(&session) else { return };
        this.unanswered = 0;
        let busy = |busy: u64| now.saturating_add(Duration::from_nanos(busy));
        match message {
            FromChild::Closed { .. } => {}
            FromChild::Ready => self.is_ready(session, now),
            FromChild::Admit(hello) => {
                self.is_ready(session, now);
                let admitted = self.admit(session, &hello);
                if admitted.is_ok() && self.is_unlimited(session) {
                    self.grant(session, u64::MAX, u64::MAX);
                }
                self.outgoing.push((session, ToChild::Admitted(admitted)));
            }
            FromChild::Want => self.turns.want(session, now),
            FromChild::Ran { busy: left } | FromChild::Returned { busy: left } => {
                self.turns.over(session, now, busy(left));
            }
            FromChild::More { held, wanted } => self.more(session, held, wanted),
            FromChild::Less { held } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.granted = held;
                }
            }
            FromChild::Figures(figures) => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    (session.figures, session.reports) = (figures, session.reports + 1);
                }
            }
        }
        self.give(now);
    }

    fn admit(&mut self, session: u64, hello: &Hello) -> Result<Limits, String> {
        if let Some(reason) = &self.drains {
            return Err(reason.clone());
        }
        let (name, tenant) = self.tenants.of(&hello.tenant)?;
        let (name, tenant) = (name.to_owned(), *tenant);
        let kind = self.sessions.get(&session).map(|session| session.kind);
        if let Some(Kind::In(group)) = kind
            && self.tenant_of(group) != Some(name.as_str())
        {
            return Err(format!("it connected as another tenant than `{}`", hello.tenant));
        }
        let Some(this) = self.sessions.get_mut(&session) else { return Err("it has ended".to_owned()) };
        if this.told.is_some() {
            return Err(ENDED.to_owned());
        }
        // For lists: a client cannot make them too long to be sent, or give them lines of its own.
        let client = hello.client.chars().filter(|letter| !letter.is_control()).take(MOST_NAME).collect();
        this.admitted = Some(Admitted { tenant: name.clone(), client });
        if kind == Some(Kind::Alone) {
            self.turns.join(session, &name);
        }
        let memory = [tenant.memory, self.given.memory].into_iter().flatten().min();
        let longest_run = self.given.longest_run;
        Ok(Limits { memory, share: Some(tenant.share), longest_run, ..Limits::default() })
    }

    /// The process of a session or a group can begin.
    pub(super) fn is_ready(&mut self, session: u64, now: Duration) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.ready.get_or_insert(now);
        }
    }

    fn tenant_of(&self, session: u64) -> Option<&str> {
        self.sessions.get(&session)?.admitted.as_ref().map(|admitted| admitted.tenant.as_str())
    }

    fn limit_of(&self, session: u64) -> Option<Tenant> {
        self.tenants.get(self.tenant_of(session)?).copied()
    }

    /// Gives turns.
    fn give(&mut self, now: Duration) {
        for order in self.turns.next(now) {
            self.outgoing.push(match order {
                Order::Turn(session) => (session, ToChild::Turn),
                Order::Standing(session) => (session, ToChild::Standing),
                Order::Recall(session) => (session, ToChild::Recall),
            });
        }
    }

    /// Does what is due without a message.
    pub(super) fn tick(&mut self, now: Duration) {
        if now >= self.asks_at {
            self.asks_at = now + ASKS;
            self.ask_for_life();
        }
        let mut stuck = Vec::new();
        for (id, session) in &mut self.sessions {
            if session.leaves_by.take_if(|by| now >= *by).is_some() {
                let why = Ending::Because("it has no session, and does not end".to_owned());
                self.ending.push((*id, why));
            }
            let is_late = session.is_late_at().is_some_and(|late| now >= late);
            let holds = self.turns.holds_since(*id).filter(|_| self.turns.waiting() > 0);
            let hangs = holds.is_some_and(|since| now >= since + self.given.longest_run);
            let stays = session.told.is_some_and(|told| now >= told + self.given.longest_run);
            if session.ends || !(is_late || hangs || stays) {
                continue;
            }
            session.ends = true;
            let longest = self.given.longest_run.as_secs_f64();
            let reason = if hangs {
                format!("a run took longer than {longest} s while others waited")
            } else if stays {
                format!("it was told to end {longest} s ago")
            } else if session.ready.is_some() {
                format!("the client did not greet within {} s", GREETING.as_secs())
            } else {
                format!("its process could not begin within {} s", STARTING.as_secs())
            };
            match session.kind {
                // It does not end because a run of its process does not.
                Kind::In(group) if stays => stuck.push((group, reason)),
                _ => self.ending.push((*id, Ending::Because(reason))),
            }
        }
        for (group, reason) in stuck {
            self.end_process(group, Ending::Because(reason));
        }
        self.give(now);
    }

    /// Ends the sessions whose processes stand still, and asks the others for figures. Questions are counted, not the time: a daemon that
    /// stood still itself asks again first.
    fn ask_for_life(&mut self) {
        let mut still = Vec::new();
        for (id, session) in &mut self.sessions {
            // Before it can begin, a process may load libraries.
            if session.admitted.is_none() || session.ready.is_none() || session.ends {
                continue;
            }
            if session.unanswered >= UNANSWERED {
                still.push(match session.kind {
                    Kind::In(group) => group,
                    Kind::Alone | Kind::Group => *id,
                });
                continue;
            }
            session.unanswered += 1;
            self.outgoing.push((*id, ToChild::Report));
        }
        for process in still {
            self.end_process(process, Ending::Because("its process does not answer".to_owned()));
        }
    }

    /// The process of a group is found to be dead or stuck: it gets no further session.
    pub(super) fn is_lost(&mut self, group: u64) {
        self.end_process(group, Ending::Because("it does not answer".to_owned()));
    }

    /// Ends the process of a session, or of a group.
    fn end_process(&mut self, id: u64, why: Ending) {
        if let Some(session) = self.sessions.get_mut(&id).filter(|session| !session.ends) {
            session.ends = true;
            self.ending.push((id, why));
        }
    }

    /// When [`Self::tick`] is due.
    pub(super) fn wakes_at(&self, now: Duration) -> Option<Duration> {
        let mut due: Vec<Duration> = self.turns.wakes_at(now).into_iter().collect();
        due.extend(self.sessions.values().any(|session| session.admitted.is_some()).then_some(self.asks_at));
        due.extend(self.sessions.values().filter_map(|session| session.leaves_by));
        for (id, session) in self.sessions.iter().filter(|(_, session)| !session.ends) {
            due.extend(session.is_late_at());
            if let (Some(since), true) = (self.turns.holds_since(*id), self.turns.waiting() > 0) {
                due.push(since + self.given.longest_run);
            }
            due.extend(session.told.map(|told| told + self.given.longest_run));
        }
        due.into_iter().min()
    }

    /// The process of a session or a group was killed and does not end, as one that waits for a driver: others have its turn. What it holds
    /// is not free.
    pub(super) fn is_stuck(&mut self, session: u64, now: Duration) {
        self.turns.leave(session, now);
        if let Some(session) = self.sessions.get_mut(&session) {
            (session.ends, session.is_stuck) = (true, true);
        }
        self.answer_postponed();
        self.give(now);
    }

    /// The process of a session is gone: what it had is free.
    pub(super) fn gone(&mut self, session: u64, now: Duration) {
        self.turns.leave(session, now);
        let Some(Session { figures, kind, .. }) = self.sessions.remove(&session) else { return };
        if kind == Kind::Group {
            self.batches += figures.runs;
        } else {
            self.ended.runs += figures.runs;
            self.ended.failed += figures.failed;
            self.ended.computed_us += figures.computed_us;
            self.ended.waited_us += figures.waited_us;
            if let Kind::In(group) = kind
                && !self.sessions.values().any(|session| session.kind == kind)
            {
                self.end_process(group, Ending::Unused);
                if let Some(group) = self.sessions.get_mut(&group) {
                    group.leaves_by = Some(now + LEAVING);
                }
            }
        }
        self.answer_postponed();
        self.give(now);
    }

    /// Admits nobody any more, and ends all sessions at their next run.
    pub(super) fn drain(&mut self, now: Duration) {
        let reason = "the device is drained: it serves nobody any more";
        self.drains = Some(reason.to_owned());
        for (id, session) in self.sessions.iter_mut().filter(|(_, session)| session.kind != Kind::Group) {
            session.told.get_or_insert(now);
            self.outgoing.push((*id, ToChild::Drained(reason.to_owned())));
        }
    }

    /// Ends one session at its next run.
    ///
    /// # Errors
    /// If there is none of this number.
    pub(super) fn drain_one(&mut self, session: u64, now: Duration) -> Result<(), String> {
        let found = self.sessions.get_mut(&session).filter(|session| session.kind != Kind::Group);
        let Some(told) = found.map(|session| &mut session.told) else {
            return Err(format!("no session has the number {session}; `tidemill device ls` lists them"));
        };
        told.get_or_insert(now);
        // Before it has greeted it may hear nothing: it is refused then.
        self.outgoing.push((session, ToChild::End(ENDED.to_owned())));
        Ok(())
    }

    /// Returns whether it was drained and the last session is gone.
    pub(super) fn is_over(&self) -> bool {
        self.drains.is_some() && self.sessions.values().all(|session| session.is_stuck)
    }

    /// Changes the limits of a tenant at once. `new`: lists one.
    ///
    /// # Errors
    /// As [`Tenants::change`].
    pub(super) fn limit(
        &mut self,
        tenant: &str,
        share: Option<f64>,
        memory: Option<Option<u64>>,
        new: bool,
    ) -> Result<(), String> {
        self.tenants.change(tenant, share, memory, new)?;
        // The share of the default tenant may follow from the others.
        for (name, tenant) in self.tenants.all() {
            self.turns.share(name, tenant.share);
        }
        let is_its = |session: &Session| session.admitted.as_ref().is_some_and(|by| by.tenant == tenant);
        for (id, _) in self.sessions.iter().filter(|(_, session)| is_its(session)) {
            self.outgoing.push((*id, ToChild::AskAgain));
        }
        Ok(())
    }

    /// Asks all sessions for their figures, and returns how often each had reported.
    pub(super) fn ask_all(&mut self) -> BTreeMap<u64, u64> {
        let admitted =
            self.sessions.iter().filter(|(_, session)| session.admitted.is_some() && !session.ends);
        let asked: BTreeMap<u64, u64> = admitted.map(|(id, session)| (*id, session.reports)).collect();
        self.listings += 1;
        self.outgoing.extend(asked.keys().map(|session| (*session, ToChild::Report)));
        asked
    }

    /// A listing has its figures, or does without.
    pub(super) fn has_answered(&mut self) {
        self.listings -= 1;
    }

    /// Returns whether somebody waits for figures, or for the end.
    pub(super) fn is_waited_for(&self) -> bool {
        self.listings > 0 || self.is_over()
    }

    /// Returns whether all have reported since, or are gone.
    pub(super) fn have_reported(&self, asked: &BTreeMap<u64, u64>) -> bool {
        asked.iter().all(|(id, before)| self.sessions.get(id).is_none_or(|session| session.reports > *before))
    }

    /// Messages that are to be sent. A process that is being ended hears nothing more.
    pub(super) fn outgoing(&mut self) -> Vec<(u64, ToChild)> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.retain(|(session, _)| self.sessions.get(session).is_none_or(|session| !session.ends));
        outgoing
    }

    /// Sessions whose processes are to be killed, with the reasons.
    pub(super) fn ending(&mut self) -> Vec<(u64, Ending)> {
        std::mem::take(&mut self.ending)
    }
}

#[cfg(test)]
mod tests;
