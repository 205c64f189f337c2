//! Nominal rates of links, from the file of machines that a run was submitted with.
use crate::controller::planning::machine_names;
use std::collections::BTreeMap;
use tidemill_spec::infrastructure::Infrastructure;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Nominal {
    /// The tier of each machine.
    tiers: BTreeMap<String, String>,
    /// Bits per second between tiers.
    rates: BTreeMap<(String, String), f64>,
}

impl Nominal {
    pub(crate) fn of(file: &Infrastructure) -> Self {
        let mut found = Self::default();
        for from in &file.tiers {
            for worker in from.workers.iter() {
                let names = machine_names(from, worker).into_iter();
                found.tiers.extend(names.map(|(name, _)| (name, from.id.value.clone())));
            }
            for to in &file.tiers {
                let link = file.link(from.id.as_str(), to.id.as_str());
                if let Some(rate) = link.and_then(|link| link.bandwidth.as_ref()) {
                    found.rates.insert((from.id.value.clone(), to.id.value.clone()), rate.value.0 as f64);
                }
            }
        }
        found
    }

    /// Bits per second of the link from one machine to another; none: the file has no such link, or not its rate.
    pub(crate) fn rate(&self, from: &str, to: &str) -> Option<f64> {
        let (from, to) = (self.tiers.get(from)?, self.tiers.get(to)?);
        self.rates.get(&(from.clone(), to.clone())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_the_links_of_their_tiers() {
        let file = "version: 1\nname: two\ntiers:\n\
                    - {id: edge, workers: [{type: small, count: 2, memory: 4GiB, price: 0.02 $/h}]}\n\
                    - {id: cloud, workers: [{type: large, price: 0.5 $/h, names: [big]}]}\n\
                    links: [{from: edge, to: cloud, price: 0.1 $/GiB, bandwidth: 10Mbps, direction: both}]\n";
        let nominal = Nominal::of(&Infrastructure::parse(file, "two.yaml").unwrap());
        assert_eq!(nominal.rate("edge-small-1", "big"), Some(10e6));
        assert_eq!(nominal.rate("big", "edge-small-0"), Some(10e6));
        assert_eq!(nominal.rate("edge-small-0", "edge-small-1"), None, "no link within the tier");
        assert_eq!(nominal.rate("edge-small-2", "big"), None);
    }
}
