//! Junction trees: when distributions over parts of a graph combine into one distribution over the whole.
//!
//! The location of an operator is a random variable over the key space, and a flow per edge is the joint distribution
//! of its two ends. On a forest, any such distributions that agree on the operators come from one distribution over
//! whole routes. With circles (a stream that is split and joined again) they need not. Distributions over the cliques
//! of a triangulated graph that agree on the separators of its junction tree always do (Lauritzen and Spiegelhalter
//! 1988; Wainwright and Jordan 2008, section 2.5). So a planner that carries flows per clique plans route classes
//! exactly.

/// Maximal cliques of a triangulated graph, ordered so that each shares its nodes with earlier ones through one of
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JunctionTree {
    /// The cliques.
    pub cliques: Vec<Clique>,
}

/// A clique with its place in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clique {
    /// Its nodes, ascending.
    pub nodes: Vec<usize>,
    /// Position of an earlier clique; none for the first of a connected part.
    pub parent: Option<usize>,
    /// The nodes that it shares with the parent, ascending; it shares no others with earlier cliques.
    pub separator: Vec<usize>,
}

impl JunctionTree {
    /// Triangulates a graph of nodes `0..nodes`: eliminates at each step the node that needs the fewest new edges, the
    /// first of them at a tie.
    pub fn new(nodes: usize, edges: &[(usize, usize)]) -> Self {
        let mut adjacent = vec![vec![false; nodes]; nodes];
        for &(a, b) in edges {
            adjacent[a][b] = a != b;
            adjacent[b][a] = a != b;
        }
        let mut left: Vec<usize> = (0..nodes).collect();
        let mut found: Vec<Vec<usize>> = Vec::new();
        while !left.is_empty() {
            let neighbours = |node: usize| -> Vec<usize> {
                left.iter().copied().filter(|&other| adjacent[node][other]).collect()
            };
            let missing = |node: usize| {
                let around = neighbours(node);
                let pairs = around
                    .iter()
                    .enumerate()
                    .flat_map(|(i, &a)| around[i + 1..].iter().map(move |&b| (a, b)));
                pairs.filter(|&(a, b)| !adjacent[a][b]).count()
            };
            let node = left.iter().copied().min_by_key(|&node| (missing(node), node)).unwrap_or(left[0]);
            let mut clique = neighbours(node);
            for &a in &clique {
                for &b in &clique {
                    adjacent[a][b] = a != b;
                }
            }
            clique.push(node);
            clique.sort_unstable();
            left.retain(|&other| other != node);
            if !found.iter().any(|other| clique.iter().all(|node| other.contains(node))) {
                found.push(clique);
            }
        }
        Self { cliques: tree(found) }
    }
}

/// A maximum spanning tree of the cliques, weighted by the number of shared nodes (Prim's algorithm).
fn tree(mut waiting: Vec<Vec<usize>>) -> Vec<Clique> {
    let mut placed: Vec<Clique> = Vec::with_capacity(waiting.len());
    waiting.sort();
    while !waiting.is_empty() {
        let mut best = (0, 0, None); // size of the separator, waiting clique, parent
        for (index, nodes) in waiting.iter().enumerate() {
            for (parent, clique) in placed.iter().enumerate() {
                let size = nodes.iter().filter(|node| clique.nodes.contains(node)).count();
                if size > best.0 {
                    best = (size, index, Some(parent));
                }
            }
        }
        let (_, index, parent) = best;
        let nodes = waiting.remove(index);
        let separator = parent.map_or_else(Vec::new, |parent: usize| {
            nodes.iter().copied().filter(|node| placed[parent].nodes.contains(node)).collect()
        });
        placed.push(Clique { nodes, parent, separator });
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(tree: &JunctionTree) -> Vec<Vec<usize>> {
        tree.cliques.iter().map(|clique| clique.nodes.clone()).collect()
    }

    #[test]
    fn a_forest_has_its_edges_as_cliques() {
        let tree = JunctionTree::new(4, &[(0, 2), (1, 2)]);
        assert_eq!(nodes(&tree), [vec![0, 2], vec![1, 2], vec![3]]);
        assert_eq!(tree.cliques[1].separator, [2]);
        assert_eq!(tree.cliques[2].parent, None);
    }

    #[test]
    fn a_diamond_has_two_triangles() {
        let tree = JunctionTree::new(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        assert_eq!(nodes(&tree), [vec![0, 1, 2], vec![1, 2, 3]]);
        assert_eq!(tree.cliques[1].separator, [1, 2]);
    }

    #[test]
    fn what_a_clique_shares_with_earlier_ones_is_in_its_separator() {
        let edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 4), (4, 5), (2, 5), (6, 5)];
        let tree = JunctionTree::new(7, &edges);
        for (index, clique) in tree.cliques.iter().enumerate() {
            let earlier = |node: &usize| tree.cliques[..index].iter().any(|other| other.nodes.contains(node));
            let shared: Vec<usize> = clique.nodes.iter().copied().filter(earlier).collect();
            assert_eq!(shared, clique.separator);
        }
        for (a, b) in edges {
            assert!(tree.cliques.iter().any(|clique| clique.nodes.contains(&a) && clique.nodes.contains(&b)));
        }
    }
}
