//! The part of the network that a tenant uses, as a tree: a root, its racks, its machines.
//!
//! Racks and machines are numbered as the tenant's own list has them, so the tree says nothing about places that the tenant does not
//! use, nor where its own ones are. Each link has two directions, which are separate.
//!
//! ```
//! use tidemill_hints::tree::{Direction::{Down, Up}, Link, Tree};
//! let tree = Tree::of(&["hall-7/rack-3", "hall-7/rack-3", "hall-2/rack-9"]);
//! let path: Vec<Link> = tree.path(0, 2).collect();
//! assert_eq!(path, [Link::Machine(0, Up), Link::Rack(0, Up), Link::Rack(1, Down), Link::Machine(2, Down)]);
//! ```

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Away from the machine, to the root.
    Up,
    /// To the machine.
    Down,
}

/// A link of the tree, one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Link {
    /// Between a machine and its rack.
    Machine(usize, Direction),
    /// Between a rack and the root.
    Rack(usize, Direction),
}

/// The machines of a tenant and their racks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    rack_of: Vec<usize>,
    racks: Vec<Vec<usize>>,
}

impl Tree {
    /// Creates the tree of machines by the rack of each. The first rack named is number 0.
    pub fn of<R: PartialEq>(racks: &[R]) -> Self {
        let mut known: Vec<&R> = Vec::new();
        let (mut rack_of, mut members) = (Vec::with_capacity(racks.len()), Vec::<Vec<usize>>::new());
        for (machine, rack) in racks.iter().enumerate() {
            let number = known.iter().position(|other| *other == rack).unwrap_or_else(|| {
                known.push(rack);
                members.push(Vec::new());
                known.len() - 1
            });
            rack_of.push(number);
            members[number].push(machine);
        }
        Self { rack_of, racks: members }
    }

    /// Number of machines.
    pub fn machines(&self) -> usize {
        self.rack_of.len()
    }

    /// The machines of each rack.
    pub fn racks(&self) -> &[Vec<usize>] {
        &self.racks
    }

    /// The rack of a machine.
    pub fn rack_of(&self, machine: usize) -> usize {
        self.rack_of[machine]
    }

    /// Number of links, each direction counted.
    pub fn links(&self) -> usize {
        2 * (self.machines() + self.racks.len())
    }

    /// The number of a link, below [`Self::links`]: machines first, then racks, up before down.
    pub fn id(&self, link: Link) -> usize {
        let (node, direction) = match link {
            Link::Machine(machine, direction) => (machine, direction),
            Link::Rack(rack, direction) => (self.machines() + rack, direction),
        };
        2 * node + usize::from(direction == Direction::Down)
    }

    /// The link of a number; none where there is none.
    pub fn link(&self, id: usize) -> Option<Link> {
        let direction = if id.is_multiple_of(2) { Direction::Up } else { Direction::Down };
        let node = id / 2;
        if node < self.machines() {
            Some(Link::Machine(node, direction))
        } else {
            (id < self.links()).then(|| Link::Rack(node - self.machines(), direction))
        }
    }

    /// The links from a machine to another one; none to itself.
    pub fn path(&self, from: usize, to: usize) -> impl Iterator<Item = Link> + use<> {
        let (out, into) = (self.rack_of[from], self.rack_of[to]);
        let between = [Link::Rack(out, Direction::Up), Link::Rack(into, Direction::Down)];
        std::iter::once(Link::Machine(from, Direction::Up))
            .chain(between.into_iter().filter(move |_| out != into))
            .chain(std::iter::once(Link::Machine(to, Direction::Down)))
            .filter(move |_| from != to)
    }

    /// Adds up what each link carries, by its number, of transfers from a machine to another one.
    pub fn loads(&self, transfers: impl IntoIterator<Item = (usize, usize, f64)>) -> Vec<f64> {
        let mut loads = vec![0.0; self.links()];
        for (from, to, volume) in transfers {
            self.path(from, to).for_each(|link| loads[self.id(link)] += volume);
        }
        loads
    }
}

/// Returns the time of the most loaded link, by loads and rates of the same links. Infinite where something goes over a link without
/// a rate.
pub fn time(loads: &[f64], rates: &[f64]) -> f64 {
    let used = loads.iter().zip(rates).filter(|(load, _)| **load > 0.0);
    used.map(|(load, rate)| load / rate.max(0.0)).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::Direction::{Down, Up};
    use super::*;

    #[test]
    fn links_have_numbers_without_gaps() {
        let tree = Tree::of(&[7, 7, 2, 7, 2]);
        assert_eq!(tree.racks(), [vec![0, 1, 3], vec![2, 4]]);
        assert_eq!(tree.links(), 14);
        for id in 0..tree.links() {
            let link = tree.link(id);
            assert_eq!(link.map(|link| tree.id(link)), Some(id));
        }
        assert_eq!(tree.link(14), None);
    }

    #[test]
    fn paths_leave_the_rack_only_where_they_must() {
        let tree = Tree::of(&["a", "a", "b"]);
        assert_eq!(tree.path(0, 1).collect::<Vec<_>>(), [Link::Machine(0, Up), Link::Machine(1, Down)]);
        assert_eq!(tree.path(2, 1).count(), 4);
        assert_eq!(tree.path(1, 1).count(), 0);
        let loads = tree.loads([(0, 2, 2.0), (1, 2, 3.0)]);
        assert_eq!(loads[tree.id(Link::Rack(0, Up))], 5.0);
        assert_eq!(loads[tree.id(Link::Machine(1, Up))], 3.0);
        assert_eq!(loads[tree.id(Link::Rack(1, Up))], 0.0);
    }

    #[test]
    fn the_names_of_racks_leave_no_trace() {
        assert_eq!(Tree::of(&["x", "y", "x"]), Tree::of(&[40, 3, 40]));
        assert_ne!(Tree::of(&["x", "y", "x"]), Tree::of(&["x", "x", "y"]));
    }

    #[test]
    fn time_is_that_of_the_slowest_link() {
        assert_eq!(time(&[1.0, 3.0, 0.0], &[1.0, 2.0, 0.0]), 1.5);
        assert_eq!(time(&[1.0], &[0.0]), f64::INFINITY);
        assert_eq!(time(&[], &[]), 0.0);
    }
}
