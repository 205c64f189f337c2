//! Services that come: their host, the groups that run there, and the ranks that they have lost.
use super::{Conductor, Group, Link, Messages, Registered, claims};
use crate::peers::{FromConductor, Key, Running};
use crate::protocol::{Failure, FailureKind};
use crate::topology::Host;
use tidemill_link::remote::Address;

impl Conductor {
    /// A service registers, or says once more what it is.
    pub(super) fn register(
        &mut self,
        from: Link,
        host: Host,
        address: Option<Address>,
        running: Vec<Running>,
    ) -> Messages {
        let turned = |reason: String| vec![(from, FromConductor::Turned { reason })];
        // As what it registered before it stays: its groups know it by that name.
        let is_other = |(link, of): (&Link, &Registered)| (*link == from) != (of.host.name == host.name);
        if self.hosts.iter().any(is_other) {
            let name = &host.name;
            return turned(format!(
                "a service of another host is registered as {name:?}: start this one with another --host"
            ));
        }
        if let Some(reason) = claims::of_host(&host) {
            return turned(reason);
        }
        for running in running {
            if !claims::is_possible(&running, &host.name) {
                continue;
            }
            let Some(formed) = running.formed else { continue };
            if self.groups.len() >= claims::MOST_GROUPS && !self.groups.contains_key(&running.key) {
                continue;
            }
            let new = || Group::new(running.size, running.priority);
            let group = self.groups.entry(running.key).or_insert_with(new);
            // Only who knows the secret has been in it. One with an older secret was left out.
            if group.size != running.size
                || group.formed.as_ref().is_some_and(|known| known.token != formed.token)
            {
                continue;
            }
            for rank in running.ranks {
                if group.ranks.get(&rank).is_none_or(|(link, _)| link.is_none() || *link == Some(from)) {
                    group.ranks.insert(rank, (Some(from), host.name.clone()));
                }
            }
            if group.strategy.as_ref().is_none_or(|of| of.epoch < formed.strategy.epoch) {
                group.strategy = Some(formed.strategy.clone());
            }
            group.formed.get_or_insert(formed);
        }
        let name = host.name.clone();
        self.hosts.insert(from, Registered { host, address });
        self.forgotten(&name)
    }

    /// A service that comes back without a rank has lost its program, or was started again.
    fn forgotten(&mut self, host: &str) -> Messages {
        let mut out = Messages::new();
        let keys: Vec<Key> = self.groups.keys().cloned().collect();
        for key in keys {
            let Some(group) = self.groups.get_mut(&key) else { continue };
            let lost = group.ranks.iter().find(|(_, (link, of))| link.is_none() && of == host);
            let Some(rank) = lost.map(|(rank, _)| *rank) else { continue };
            group.ranks.retain(|_, (link, of)| link.is_some() || of != host);
            if group.strategy.as_ref().is_some_and(|strategy| strategy.members.contains(&rank)) {
                let text = format!("rank {rank} on host {host} is gone");
                let (rank, host) = (Some(rank), host.to_owned());
                let failure = Failure { kind: FailureKind::Lost, rank, host, text };
                // Hosts that wait for its connections learn it, too.
                if let Some(formed) = group.formed.as_ref().filter(|_| group.broken.is_none()) {
                    let (token, failure) = (formed.token.clone(), failure.clone());
                    let told = FromConductor::Broken { key: key.clone(), token, failure, last: 0 };
                    out.extend(group.links().into_iter().map(|link| (link, told.clone())));
                }
                group.broken.get_or_insert(failure);
            }
            out.extend(self.form(&key));
        }
        out
    }
}
