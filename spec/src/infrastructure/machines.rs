//! Machines of an infrastructure by their names.
use super::{Infrastructure, Tier, WorkerType};

/// A machine of an infrastructure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine<'a> {
    /// Its tier.
    pub tier: &'a Tier,
    /// Its location, where the tier has some.
    pub location: Option<&'a str>,
    /// Its type.
    pub of: &'a WorkerType,
}

/// Returns the name of a machine that the infrastructure does not name.
///
/// ```
/// use tidemill_spec::infrastructure::numbered_machine;
/// assert_eq!(numbered_machine("hub", None, "large", 0), "hub-large-0");
/// assert_eq!(numbered_machine("edge", Some("north"), "small", 2), "edge-north-small-2");
/// ```
pub fn numbered_machine(tier: &str, location: Option<&str>, worker_type: &str, index: u32) -> String {
    match location {
        Some(location) => format!("{tier}-{location}-{worker_type}-{index}"),
        None => format!("{tier}-{worker_type}-{index}"),
    }
}

impl Infrastructure {
    /// Finds the machine with this name, which the infrastructure gives or [`numbered_machine`] makes.
    pub fn machine(&self, name: &str) -> Option<Machine<'_>> {
        self.tiers.iter().find_map(|tier| {
            let locations: Vec<Option<&str>> = match tier.locations.is_empty() {
                true => vec![None],
                false => tier.locations.iter().map(|location| Some(location.as_str())).collect(),
            };
            let is_it = |of: &WorkerType, location: Option<&str>| match of.names.is_empty() {
                true => (0..of.count.value).any(|index| {
                    numbered_machine(tier.id.as_str(), location, of.worker_type.as_str(), index) == name
                }),
                false => of.names_at(tier, location).iter().any(|own| own.value == name),
            };
            tier.workers.iter().find_map(|of| {
                let mut here = locations.iter().copied().filter(|location| of.is_at(*location));
                here.find(|location| is_it(of, *location)).map(|location| Machine { tier, location, of })
            })
        })
    }
}

impl WorkerType {
    /// Returns the names of the machines at a location; empty: they are numbered.
    pub fn names_at(&self, tier: &Tier, location: Option<&str>) -> &[crate::span::Located<String>] {
        let sites = if self.locations.is_empty() { &tier.locations } else { &self.locations };
        let before = sites.iter().position(|other| Some(other.as_str()) == location).unwrap_or(0);
        let count = self.count.value as usize;
        let start = before.saturating_mul(count).min(self.names.len());
        &self.names[start..start.saturating_add(count).min(self.names.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_found_by_their_names_and_their_numbers() {
        let text = "
version: 1
name: named
tiers:
  - id: edge
    locations: [north, south]
    workers:
      - {type: small, price: 0.1 $/h, names: [n, s]}
      - {type: big, count: 2, price: 0.1 $/h, locations: [south]}
  - {id: hub, workers: [{type: large, price: 0.1 $/h}]}
";
        let infrastructure = Infrastructure::parse(text, "infrastructure.yaml").expect("it is valid");
        let found = |name: &str| {
            let machine = infrastructure.machine(name)?;
            Some((machine.tier.id.as_str(), machine.location, machine.of.worker_type.as_str()))
        };
        assert_eq!(found("n"), Some(("edge", Some("north"), "small")));
        assert_eq!(found("s"), Some(("edge", Some("south"), "small")));
        assert_eq!(found("edge-south-big-1"), Some(("edge", Some("south"), "big")));
        assert_eq!(found("hub-large-0"), Some(("hub", None, "large")));
        for other in ["edge-north-big-0", "edge-north-small-0", "edge-south-big-2", "hub-large-1", ""] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
