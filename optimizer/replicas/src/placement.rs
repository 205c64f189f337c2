//! Replicas on nodes.
use serde::Serialize;

/// The most nodes of a placement: sets of nodes are the bits of a `u128`.
pub const MAX_NODES: usize = 128;

/// The reason why replicas cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The number of nodes is out of range.
    #[error("{nodes} nodes: a plan has 1 to {MAX_NODES}")]
    Nodes {
        /// The number that was given.
        nodes: usize,
    },
    /// The number of slots of a node is out of range.
    #[error("{slots} slots a node: at least one is needed, and the slots of all nodes must be countable")]
    Slots {
        /// The number that was given.
        slots: usize,
    },
    /// Nothing is to be placed.
    #[error("there are no experts: give a load for each")]
    NoExperts,
    /// The floor is out of range.
    #[error("a floor of {floor} replicas on {nodes} nodes: it is 1 to the number of nodes")]
    Floor {
        /// The floor that was given.
        floor: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// The replicas need more slots than there are.
    #[error(
        "{needed} replicas need as many slots, and there are {room}: add nodes or slots, or lower the floor"
    )]
    TooFewSlots {
        /// The number of replicas.
        needed: usize,
        /// The slots of all nodes.
        room: usize,
    },
    /// An expert has no replica.
    #[error("expert {expert} has no replica: each needs at least one")]
    NoReplica {
        /// The expert, from 0 on.
        expert: usize,
    },
    /// A node has more replicas than slots.
    #[error("node {node} has {replicas} replicas and {slots} slots")]
    Overfull {
        /// The node, from 0 on.
        node: usize,
        /// Its replicas.
        replicas: usize,
        /// Its slots.
        slots: usize,
    },
    /// A node names an expert that does not exist.
    #[error("node {node} names expert {expert}, and there are {experts}, from 0 on")]
    UnknownExpert {
        /// The node, from 0 on.
        node: usize,
        /// The number that it names.
        expert: usize,
        /// The number of experts.
        experts: usize,
    },
}

/// The replicas of one layer on nodes. A node may have several replicas of an expert: they share its tokens as others do, and are lost
/// together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    experts: usize,
    slots: usize,
    /// The experts of each node, ascending.
    nodes: Vec<Vec<usize>>,
}

impl Placement {
    /// Creates a placement from the experts of each node.
    ///
    /// # Errors
    /// No node has more replicas than slots or names an unknown expert.
    pub fn new(mut nodes: Vec<Vec<usize>>, experts: usize, slots: usize) -> Result<Self, PlacementError> {
        if nodes.is_empty() || nodes.len() > MAX_NODES {
            return Err(PlacementError::Nodes { nodes: nodes.len() });
        }
        for (node, held) in nodes.iter_mut().enumerate() {
            if held.len() > slots {
                return Err(PlacementError::Overfull { node, replicas: held.len(), slots });
            }
            if let Some(expert) = held.iter().copied().find(|expert| *expert >= experts) {
                return Err(PlacementError::UnknownExpert { node, expert, experts });
            }
            held.sort_unstable();
        }
        Ok(Self { experts, slots, nodes })
    }

    /// Returns the experts of each node, ascending; an expert with several replicas there stands several times.
    pub fn nodes(&self) -> &[Vec<usize>] {
        &self.nodes
    }

    /// Returns the number of experts.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Returns the slots of a node.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the number of replicas of each expert.
    pub fn replicas(&self) -> Vec<usize> {
        let mut counts = vec![0; self.experts];
        for expert in self.nodes.iter().flatten() {
            counts[*expert] += 1;
        }
        counts
    }

    /// Returns the number of replicas by expert and node, for [`Dispatch`](crate::Dispatch).
    pub fn copies(&self) -> Vec<Vec<u32>> {
        let mut copies = vec![vec![0; self.nodes.len()]; self.experts];
        for (node, held) in self.nodes.iter().enumerate() {
            for expert in held {
                copies[*expert][node] += 1;
            }
        }
        copies
    }

    /// Returns the nodes with each expert, as bits.
    pub fn holders(&self) -> Vec<u128> {
        let mut holders = vec![0; self.experts];
        for (node, held) in self.nodes.iter().enumerate() {
            for expert in held {
                holders[*expert] |= 1 << node;
            }
        }
        holders
    }

    /// Whether the node has the expert.
    pub fn has(&self, node: usize, expert: usize) -> bool {
        self.nodes.get(node).is_some_and(|held| held.binary_search(&expert).is_ok())
    }

    /// Returns what is left without these nodes; those that stay keep their order.
    ///
    /// # Errors
    /// A node must be left.
    pub fn without(&self, lost: &[usize]) -> Result<Self, PlacementError> {
        let kept = (0..self.nodes.len()).filter(|node| !lost.contains(node));
        let nodes = kept.map(|node| self.nodes[node].clone()).collect();
        Self::new(nodes, self.experts, self.slots)
    }

    /// Exchanges the replica of `one.1` on node `one.0` for that of `other.1` on node `other.0`, which both exist.
    pub(crate) fn swap(&mut self, one: (usize, usize), other: (usize, usize)) {
        for ((node, old), new) in [(one, other.1), (other, one.1)] {
            let held = &mut self.nodes[node];
            if let Some(slot) = held.iter().position(|expert| *expert == old) {
                held[slot] = new;
                held.sort_unstable();
            }
        }
    }

    /// Exchanges all that two nodes hold.
    pub(crate) fn exchange(&mut self, one: usize, other: usize) {
        self.nodes.swap(one, other);
    }
}

/// The experts by ascending number of replicas, after a check that all of them can be placed.
pub(crate) fn ascending(
    replicas: &[usize],
    nodes: usize,
    slots: usize,
) -> Result<Vec<usize>, PlacementError> {
    let room = crate::allocation::room(nodes, slots)?;
    if replicas.is_empty() {
        return Err(PlacementError::NoExperts);
    }
    if let Some(expert) = replicas.iter().position(|count| *count == 0) {
        return Err(PlacementError::NoReplica { expert });
    }
    let needed = replicas.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if needed > room {
        return Err(PlacementError::TooFewSlots { needed, room });
    }
    let mut order: Vec<usize> = (0..replicas.len()).collect();
    order.sort_by_key(|expert| (replicas[*expert], *expert));
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_counts_its_replicas() {
        let placement = Placement::new(vec![vec![1, 0], vec![1, 1], vec![]], 2, 2).unwrap();
        assert_eq!(placement.replicas(), [1, 3]);
        assert_eq!(placement.holders(), [0b001, 0b011]);
        assert_eq!(placement.copies(), [[1, 0, 0], [1, 2, 0]]);
        assert!(placement.has(0, 1) && !placement.has(2, 1));
        assert_eq!(placement.without(&[0]).unwrap().nodes(), [vec![1, 1], vec![]]);
        assert_eq!(placement.without(&[0, 1, 2]), Err(PlacementError::Nodes { nodes: 0 }));
    }

    #[test]
    fn wrong_placements_are_refused() {
        let overfull = PlacementError::Overfull { node: 0, replicas: 2, slots: 1 };
        assert_eq!(Placement::new(vec![vec![0, 0]], 1, 1), Err(overfull));
        let unknown = PlacementError::UnknownExpert { node: 1, expert: 3, experts: 2 };
        assert_eq!(Placement::new(vec![vec![0], vec![3]], 2, 1), Err(unknown));
    }
}
