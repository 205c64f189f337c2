//! Groups that end: here, or because another host says so.
use super::super::local::Standing;
use super::Work;
use crate::peers::{Between, ToConductor};
use crate::protocol::{Failure, FailureKind, ToProgram};

impl Work {
    pub(super) fn lose_host(&mut self, host: u32, text: String) {
        let Some(formation) = &self.formation else { return };
        let rank = formation.formed.hosts.get(host as usize).and_then(|place| place.ranks.first().copied());
        let name = formation.name_of(host);
        self.break_off(Failure { kind: FailureKind::Lost, rank, host: name, text }, true);
    }

    pub(super) fn lose_rank(&mut self, rank: u32, why: &str) {
        let host = self.own.host.name.clone();
        let text = format!("rank {rank} on host {host} is gone: {why}");
        self.break_off(Failure { kind: FailureKind::Lost, rank: Some(rank), host, text }, true);
    }

    /// The group does nothing more until it is formed anew.
    pub(super) fn break_off(&mut self, failure: Failure, tell: bool) {
        let Some(formation) = self.formation.as_mut().filter(|formation| formation.broken.is_none()) else {
            return;
        };
        tracing::info!("group {} is broken: {failure}", self.key);
        let last = formation.ended();
        formation.broken = Some(failure.clone());
        formation.team = None;
        formation.building = None;
        formation.current = None;
        formation.suspected = None;
        if tell {
            formation.tell(&Between::Broken { failure: failure.clone(), last });
        }
        let token = formation.formed.token.clone();
        let ranks = formation.own_ranks().to_vec();
        let has_begun = formation.has_begun;
        for rank in ranks {
            let Some(local) = self.locals.get_mut(&rank) else { continue };
            if !has_begun && matches!(local.standing, Standing::Waits { .. }) {
                // It waits for the group to begin, which it never does.
                local.standing = Standing::Member;
                local.say(ToProgram::Refused { reason: failure.text.clone() }, None);
            }
            local.fail(&failure);
        }
        self.has_broken(&failure);
        self.up.send(ToConductor::Broken { key: self.key.clone(), token, failure, last });
    }

    /// Another host is broken. Operations that it has carried out can still end here.
    pub(super) fn doom(&mut self, failure: Failure, last: u64, host: Option<u32>) {
        let Some(formation) = &mut self.formation else { return };
        if formation.ended() >= last {
            return self.break_off(failure, true);
        }
        formation.doomed.get_or_insert((failure, last));
        let actions = host.map(|host| formation.barrier.ended(host, last)).unwrap_or_default();
        self.act(actions);
    }

    /// Another host is broken, and the wires to it are to be exchanged: they never are.
    pub(super) fn end_if_stuck(&mut self) {
        let Some(formation) = self.formation.as_ref().filter(|formation| formation.building.is_some()) else {
            return;
        };
        if let Some((failure, _)) = formation.doomed.clone() {
            self.break_off(failure, true);
        }
    }
}
