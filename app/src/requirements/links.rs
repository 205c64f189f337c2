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
    /// Device and operator of a plan, which alone are judged on it; none: it is no link of a plan.
    of_plan: Option<(String, String)>,
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

    /// The link that a plan expects between an operator and its device.
    pub(super) fn of_plan(
        name: String,
        round_trip: f64,
        bits: f64,
        (device, operator): (&str, &str),
    ) -> Self {
        let of_plan = Some((device.to_owned(), operator.to_owned()));
        Self { name, round_trip, up: bits, down: bits, devices: Some(Vec::new()), of_plan }
    }

    /// Whether a model is judged on it: on a kind of device, or as a plan has it.
    pub(super) fn is_judged(&self, device: &str, planned: Option<(&str, &str)>) -> bool {
        match &self.of_plan {
            None => self.leads_to(device),
            Some((id, operator)) => planned == Some((id, operator)),
        }
    }
}

/// Returns the links to judge. A named round trip alone is a link without a limit of bandwidth, if there is no other: which
/// bandwidth it needs is what is asked for. A named bandwidth alone is none: the answer is the longest round trip.
pub(super) fn known(asked: &Asked, infrastructure: Option<&Infrastructure>) -> Vec<KnownLink> {
    let mut all = infrastructure.map(of_infrastructure).unwrap_or_default();
    // A device that no link leads to may be put anywhere.
    if asked.devices.iter().any(|device| !all.iter().any(|link| link.leads_to(device))) {
        all.iter_mut().for_each(|link| link.devices = None);
    }
    let given = match (asked.round_trip, asked.bandwidth) {
        (Some(round_trip), Some(bandwidth)) => Some((round_trip, bandwidth, "the given link")),
        (Some(round_trip), None) if all.is_empty() => {
            Some((round_trip, f64::INFINITY, "the given round trip"))
        }
        _ => None,
    };
    all.extend(given.map(|(round_trip, bits, name)| KnownLink {
        name: name.to_owned(),
        round_trip,
        up: bits,
        down: bits,
        devices: None,
        of_plan: None,
    }));
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
                of_plan: None,
            });
        }
    }
    all
}

/// Kinds of devices of a tier: those that its machines offer to others, else the machines themselves.
fn kinds(tier: &Tier) -> Vec<String> {
    let devices = tier.workers.iter().flat_map(|worker| &worker.devices);
    let offered: Vec<String> =
        devices.filter(|device| device.remotable).map(|device| device.kind.value.clone()).collect();
    match offered.is_empty() {
        true => tier.workers.iter().map(|worker| worker.worker_type.value.clone()).collect(),
        false => offered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_what_its_tier_offers() {
        let text = "version: 1\nname: x\ntiers:\n  - {id: edge, workers: [{type: small, price: 1 $/h}]}\n  \
                    - {id: hub, workers: [{type: large, price: 1 $/h, devices: [{kind: card}, \
                    {kind: own, remotable: false}]}]}\n  - {id: cloud, workers: [{type: huge, price: 1 $/h}]}\n\
                    links:\n  - {from: edge, to: hub, delay: 5ms, bandwidth: 100Mbps}\n  \
                    - {from: hub, to: cloud, delay: 20ms}\n  - {from: cloud, to: hub, delay: 10ms, bandwidth: 1Mbps}\n";
        let infrastructure = Infrastructure::parse(text, "i.yaml").unwrap_or_else(|found| panic!("{found}"));
        let all = of_infrastructure(&infrastructure);
        let names: Vec<&str> = all.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["edge -> hub", "hub -> cloud"]);
        assert_eq!(all[0].devices().collect::<Vec<_>>(), ["card"]);
        assert_eq!((all[0].round_trip, all[0].up, all[0].down), (0.010, 100e6, 100e6));
        assert_eq!(all[1].devices().collect::<Vec<_>>(), ["huge"]);
        assert_eq!((all[1].round_trip, all[1].up, all[1].down), (0.030, f64::INFINITY, 1e6));
    }
}
