//! Rates of links from hints.
use super::{Link, Network};
use crate::topology::Loads;
use tidemill_hints::tree::{Direction, Link as Hinted, Tree};

/// Returns what one more flow would get on a link. None: the hints do not know it.
///
/// Hints are of all paths of a rack together. A path has as much of that as its rate is of the rates of all paths.
pub(super) fn left(network: &Network<'_>, loads: &Loads, link: Link<'_>) -> Option<f64> {
    let racks: Vec<&str> = loads.tree.iter().map(|(_, rack)| rack.as_str()).collect();
    let tree = Tree::of(&racks);
    let of = |link: Hinted| loads.rates.get(tree.id(link)).copied();
    let host = |name: &str, direction| {
        let machine = loads.tree.iter().position(|(host, _)| host == name)?;
        of(Hinted::Machine(machine, direction))
    };
    let rack = |name: &str, path: &str, direction| {
        let machine = racks.iter().position(|rack| *rack == name)?;
        Some(of(Hinted::Rack(tree.rack_of(machine), direction))? * part(network, name, path))
    };
    match link {
        Link::Memory(_) => None,
        Link::HostOut(name) => host(name, Direction::Up),
        Link::HostIn(name) => host(name, Direction::Down),
        Link::RackOut(name, path) => rack(name, path, Direction::Up),
        Link::RackIn(name, path) => rack(name, path, Direction::Down),
        Link::Between(from, to, path) => {
            Some(rack(from, path, Direction::Up)?.min(rack(to, path, Direction::Down)?))
        }
    }
}

/// The part of a path in what leaves a rack; 1 where the rack has no such path.
fn part(network: &Network<'_>, rack: &str, path: &str) -> f64 {
    let mut names: Vec<&str> = Vec::new();
    let hosts = network.hosts.iter().filter(|host| host.rack == rack);
    for known in hosts.flat_map(|host| &host.paths) {
        if !names.contains(&known.name.as_str()) {
            names.push(&known.name);
        }
    }
    if !names.contains(&path) {
        return 1.0;
    }
    let rate = |path: &str| network.rate(Link::RackOut(rack, path));
    rate(path) / names.iter().map(|name| rate(name)).sum::<f64>()
}
