//! Links that are judged: those of the infrastructure that lead to a higher tier, and the one that the user names.
use super::Asked;
use tidemill_replay::link::Link;
use tidemill_spec::infrastructure::{Infrastructure, Tier};

/// A link with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownLink {
    /// Name: `edge -> cloud`.
    pub name: String,
    /// Round trip, in seconds.
    pub round_trip: f64,
    /// Nominal bandwidth to the device, in bits per second; infinite if it is not limited.
    pub up: f64,
    /// Nominal bandwidth back, in bits per second.
    pub down: f64,
    /// Kinds of devices at its end; none: any.
    devices: Option<Vec<String>>,
}

impl KnownLink {
    /// Returns the link as TCP uses it.
    pub fn link(&self) -> Link {
        Link::nominal(self.round_trip, self.up, self.down)
    }

    /// Kinds of devices at its end, if they are known.
    pub(super) fn devices(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().flatten().map(String::as_str)
    }

    pub(super) fn leads_to(&self, device: &str) -> bool {
        self.devices.is_none() || self.devices().any(|known| known == device)
    }
}

/// Returns the links to judge. A named round trip without a bandwidth, or the reverse, is no link: the other figure is
/// what is asked for.
pub(super) fn known(asked: &Asked, infrastructure: Option<&Infrastructure>) -> Vec<KnownLink> {
    let mut all = infrastructure.map(of_infrastructure).unwrap_or_default();
    // A device that no link leads to may be put anywhere.
    if asked.devices.iter().any(|device| !all.iter().any(|link| link.leads_to(device))) {
        all.iter_mut().for_each(|link| link.devices = None);
    }
    if let (Some(round_trip), Some(bandwidth)) = (asked.round_trip, asked.bandwidth) {
        let name = "the given link".to_owned();
        all.push(KnownLink { name, round_trip, up: bandwidth, down: bandwidth, devices: None });
    }
    all
}

fn of_infrastructure(infrastructure: &Infrastructure) -> Vec<KnownLink> {
    let mut all = Vec::new();
    for (place, from) in infrastructure.tiers.iter().enumerate() {
        for to in &infrastructure.tiers[place + 1..] {
            let Some(link) = infrastructure.link(&from.id, &to.id) else { continue };
            // Without a link back, answers are assumed to travel as questions do.
            let back = infrastructure.link(&to.id, &from.id).unwrap_or(link);
            let bits = |link: &tidemill_spec::infrastructure::Link| {
                link.bandwidth.as_ref().map_or(f64::INFINITY, |bandwidth| bandwidth.0 as f64)
            };
            all.push(KnownLink {
                name: format!("{} -> {}", from.id, to.id),
                round_trip: (link.delay.0 + back.delay.0) as f64 / 1e9,
                up: bits(link),
                down: bits(back),
                devices: Some(kinds(to)),
            });
        }
    }
    all
}

/// Kinds of devices of a tier.
fn kinds(tier: &Tier) -> Vec<String> {
    tier.workers.iter().map(|worker| worker.worker_type.value.clone()).collect()
}
