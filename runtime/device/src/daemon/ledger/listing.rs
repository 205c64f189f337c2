//! Lists sessions and tenants of a device.
use super::{Kind, Ledger, Session};
use crate::daemon::views::{Listing, SessionState, SessionView, TenantView};
use std::collections::BTreeMap;
use std::time::Duration;

impl Ledger {
    /// State of a session of a group.
    fn state_in(&self, session: &Session) -> SessionState {
        match session.kind {
            Kind::In(group) if session.figures.is_waiting && self.turns.has_turn(group) => {
                SessionState::Running
            }
            _ if session.figures.is_waiting => SessionState::Waiting,
            _ => SessionState::Idle,
        }
    }

    /// Everything, for people and programs.
    pub(in crate::daemon) fn listing(&self, now: Duration) -> Listing {
        let seconds = |micros: u64| micros as f64 / 1e6;
        let mut all = self.ended;
        let mut sessions = Vec::new();
        let mut batches = self.batches;
        // Memory of models of groups, and models that are apart.
        let mut shared = BTreeMap::new();
        for (id, session) in &self.sessions {
            let Session { figures, admitted, .. } = session;
            if let (Kind::Group, Some(admitted)) = (session.kind, admitted) {
                batches += figures.runs;
                let (memory, apart) = shared.entry(admitted.tenant.as_str()).or_insert((0, 0));
                (*memory, *apart) = (*memory + figures.memory, *apart + figures.apart);
                continue;
            }
            all.runs += figures.runs;
            all.failed += figures.failed;
            all.computed_us += figures.computed_us;
            all.waited_us += figures.waited_us;
            sessions.push(SessionView {
                session: *id,
                tenant: admitted.as_ref().map(|admitted| admitted.tenant.clone()).unwrap_or_default(),
                client: admitted.as_ref().map(|admitted| admitted.client.clone()).unwrap_or_default(),
                peer: session.peer.clone(),
                process: session.process,
                seconds: now.saturating_sub(session.since).as_secs_f64(),
                state: match admitted {
                    None => SessionState::Greeting,
                    Some(_) if matches!(session.kind, Kind::In(_)) => self.state_in(session),
                    Some(_) if self.turns.waits(*id) => SessionState::Waiting,
                    Some(_) if self.turns.has_turn(*id) => SessionState::Running,
                    Some(_) => SessionState::Idle,
                },
                models: figures.models,
                memory: figures.memory,
                runs: figures.runs,
                failed: figures.failed,
                computed_seconds: seconds(figures.computed_us),
                waited_seconds: seconds(figures.waited_us),
            });
        }
        let tenants = self.tenants.all().map(|(name, tenant)| {
            let (of_group, apart) = shared.get(name).copied().unwrap_or_default();
            let its = sessions.iter().filter(|session| session.tenant == *name);
            TenantView {
                tenant: name.to_owned(),
                share: tenant.share,
                memory_limit: tenant.memory,
                memory: its.clone().map(|session| session.memory).sum::<u64>() + of_group,
                sessions: its.count() as u64,
                apart,
            }
        });
        Listing {
            seconds: now.as_secs_f64(),
            slots: self.given.slots as u64,
            memory_limit: self.given.memory,
            drains: self.drains.is_some(),
            queue: self.turns.waiting() as u64,
            runs: all.runs,
            failed: all.failed,
            batches,
            computed_seconds: seconds(all.computed_us),
            waited_seconds: seconds(all.waited_us),
            tenants: tenants.collect(),
            sessions,
            ..Listing::default()
        }
    }
}
