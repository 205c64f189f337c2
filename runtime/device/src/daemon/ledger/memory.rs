//! Memory that sessions may hold: of the device, and of their tenants.
use super::{Ledger, Session};
use crate::child::ToChild;

impl Ledger {
    pub(super) fn is_unlimited(&self, session: u64) -> bool {
        self.given.memory.is_none() && self.limit_of(session).is_some_and(|tenant| tenant.memory.is_none())
    }

    pub(super) fn grant(&mut self, session: u64, granted: u64, limit: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.granted = granted;
        }
        self.outgoing.push((session, ToChild::Room { granted, limit }));
    }

    /// Grants what a session needs, if its tenant and the device have it. What processes hold that are being ended is soon free: the answer
    /// waits for that.
    pub(super) fn more(&mut self, session: u64, held: u64, wanted: u64) {
        if self.is_unlimited(session) {
            return self.grant(session, u64::MAX, u64::MAX);
        }
        let needed = held.saturating_add(wanted);
        let limit = self.left_beside(session, |_| true);
        if needed > limit && needed <= self.left_beside(session, |other| !other.ends || other.is_stuck) {
            return self.postponed.push((session, held, wanted));
        }
        self.grant(session, if needed <= limit { needed } else { held }, limit);
    }

    /// Bytes that others leave a session, of those that count.
    fn left_beside(&self, session: u64, counts: impl Fn(&Session) -> bool) -> u64 {
        let tenant = self.tenant_of(session);
        let others = self.sessions.iter().filter(|(other, _)| **other != session).map(|(_, other)| other);
        let (mut of_tenant, mut of_all) = (0u64, 0u64);
        for other in others.filter(|other| counts(other)) {
            let is_same = other.admitted.as_ref().map(|admitted| admitted.tenant.as_str()) == tenant;
            of_tenant = of_tenant.saturating_add(if is_same { other.granted } else { 0 });
            of_all = of_all.saturating_add(other.granted);
        }
        let left = |limit: Option<u64>, taken: u64| limit.map(|limit| limit.saturating_sub(taken));
        let of_its_tenant = left(self.limit_of(session).and_then(|tenant| tenant.memory), of_tenant);
        let limits = [of_its_tenant, left(self.given.memory, of_all)];
        limits.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Answers questions for memory that waited for the end of a process.
    pub(super) fn answer_postponed(&mut self) {
        for (session, held, wanted) in std::mem::take(&mut self.postponed) {
            self.more(session, held, wanted);
        }
    }
}
