//! Rings, trees, paths and pieces by which a group carries out its operations.
//!
//! Each strategy has rings. All-reduces and broadcasts may go by trees instead, each kind by its own: [`Strategy::trees_of`] says
//! which. Reduce-scatter and all-gather always go by the rings, since a tree would carry all of the buffer over each edge.
//!
//! ```
//! use tidemill_collective::strategy::{Strategy, Tree, Trees};
//! // Three quarters of each all-reduce are combined at rank 0, and a quarter at rank 1.
//! let tree = |edges: &[(u32, u32)], weight| Tree { edges: edges.to_vec(), weight };
//! let trees = vec![tree(&[(0, 1), (0, 2)], 3), tree(&[(1, 0), (0, 2)], 1)];
//! let strategy = Strategy { all_reduce: Some(Trees { trees, most: None }), ..Strategy::rank_order(1, vec![0, 1, 2]) };
//! assert_eq!(strategy.check(), Ok(()));
//! ```
use crate::operation::Operation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How a group carries out its operations. The service changes it between two operations; programs do not notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strategy {
    /// The number of the strategy in its group; the first is 1. Each change has a higher one.
    pub epoch: u64,
    /// The ranks that take part, ascending. A rank keeps its number when others leave; its position here is what operations count by.
    pub members: Vec<u32>,
    /// Large operations are cut into as many even parts as there are channels, and each goes its own way.
    pub channels: Vec<Channel>,
    /// Bytes of a piece: the next rank gets it while the following one is on its way.
    pub piece: u32,
    /// Operations of at most this many bytes go by a tree instead of the rings: fewer steps, more bytes.
    pub small: u64,
    /// Trees that all-reduces go by; none: they go by the rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_reduce: Option<Trees>,
    /// Trees that broadcasts go by, whichever rank they begin at; none: they go by the rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Trees>,
    /// When the group may send between hosts; none: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Windows>,
    /// Groups that go first, each as `USER/NAME`: a host sends nothing of this group to others while it carries out an operation
    /// of one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub yields: Vec<String>,
    /// Only the times at which it sends differ from the strategy before: its wires stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_wires: bool,
}

/// A ring of all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// The members, each once. Each sends to the next one, the last one to the first.
    pub ring: Vec<u32>,
    /// The path from each to the next one, by name; none: as the system routes it. As many as there are members.
    pub paths: Vec<Option<String>>,
}

/// Trees by which operations of one kind go, each with its part of the buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trees {
    /// The trees.
    pub trees: Vec<Tree>,
    /// Operations of more than this many bytes go by the rings; none: all go by the trees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

/// A tree of all members, routed by the system. Its edges carry bytes in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// The edges. The first member of the first one combines all in an all-reduce; a broadcast goes away from its root, so the
    /// direction of the others does not matter. A rank serves its edges in this order.
    pub edges: Vec<(u32, u32)>,
    /// The part of the buffer that goes by the tree, in proportion to the weights of the others.
    #[serde(default = "one")]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

/// An edge of a tree that hangs on a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// Its place among the edges of the tree.
    pub edge: usize,
    /// The member that is nearer to the root.
    pub above: u32,
    /// The other one.
    pub below: u32,
    /// Edges from the root to the other one.
    pub depth: usize,
}

impl Tree {
    /// Returns the member that combines all in an all-reduce. None: the tree has no edges.
    pub fn root(&self) -> Option<u32> {
        self.edges.first().map(|(root, _)| *root)
    }

    /// Returns the edges that are reached from a root, nearer ones first.
    pub fn from(&self, root: u32) -> Vec<Branch> {
        let mut at: BTreeMap<u32, Vec<(usize, u32)>> = BTreeMap::new();
        for (edge, (one, other)) in self.edges.iter().enumerate() {
            at.entry(*one).or_default().push((edge, *other));
            at.entry(*other).or_default().push((edge, *one));
        }
        let mut reached = VecDeque::from([(root, 0)]);
        let mut branches: Vec<Branch> = Vec::with_capacity(self.edges.len());
        // Each member is taken once, so what does not hang together or goes around ends, too.
        while let Some((above, depth)) = reached.pop_front() {
            for (edge, below) in at.remove(&above).unwrap_or_default() {
                if at.contains_key(&below) {
                    branches.push(Branch { edge, above, below, depth: depth + 1 });
                    reached.push_back((below, depth + 1));
                }
            }
        }
        branches
    }

    /// Whether it has each member once, and all hang together.
    fn connects(&self, members: &BTreeSet<u32>) -> bool {
        let Some(root) = self.root() else { return members.len() == 1 };
        let mut below: BTreeSet<u32> = self.from(root).into_iter().map(|branch| branch.below).collect();
        below.insert(root);
        self.edges.len() + 1 == members.len() && below == *members
    }
}

/// Times in which a group may send between hosts, by the clock of the host, in microseconds of a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// The period.
    pub period_us: u64,
    /// When it may send: from and to, ascending, without overlap, within the period.
    pub open_us: Vec<(u64, u64)>,
    /// Windows of other periods: it may send while all are open. They have none in turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Windows>,
}

/// Bytes of a piece, where nothing else was chosen.
pub const PIECE: u32 = 256 << 10;
/// [`Strategy::small`], where nothing else was chosen.
pub const SMALL: u64 = 16 << 10;

/// Most channels and trees of a strategy.
pub const MAX_CHANNELS: usize = 64;
/// Most bytes of a piece: each wire keeps one.
pub const MAX_PIECE: u32 = 64 << 20;

/// Most groups that one yields to, by windows or on the same host.
pub const MAX_FIRST: usize = 64;
/// Times that openings of windows with different periods are looked for, before the caller looks again.
const MOST_OPENINGS: usize = 64;

/// The highest number of a strategy: none of a group that runs comes near it.
pub const MAX_EPOCH: u64 = 1 << 62;

/// Why a strategy cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A number that no group comes to.
    #[error("the strategy has the number {0}; {MAX_EPOCH} is the highest")]
    Epoch(u64),
    /// Nobody takes part.
    #[error("the strategy has no members")]
    Empty,
    /// Members twice, or not ascending.
    #[error("the members of the strategy are not ascending")]
    Order,
    /// None, or too many.
    #[error("the strategy has {0} channels and trees; it needs a channel, and {MAX_CHANNELS} in all at most")]
    Channels(usize),
    /// The ring of this channel.
    #[error("the ring of channel {0} does not have each member once")]
    Ring(usize),
    /// The paths of this channel.
    #[error("channel {0} does not have one path per member")]
    Paths(usize),
    /// The edges of this tree. Trees of all-reduces are counted first.
    #[error("tree {0} does not connect each member once")]
    Tree(usize),
    /// The weight of this tree.
    #[error("tree {0} has no part of the buffer: its weight is 0")]
    Weight(usize),
    /// Trees are announced, and there is none.
    #[error("the strategy has no trees where it announces some")]
    NoTrees,
    /// Bytes of a piece.
    #[error("pieces of {0} bytes: they have 1 byte to {MAX_PIECE} bytes")]
    Piece(u32),
    /// Windows that never open, or are out of order.
    #[error("the windows of the strategy never open, overlap, or exceed their period")]
    Windows,
    /// Groups that go first.
    #[error("the strategy yields to {0} groups; {MAX_FIRST} are the most")]
    First(usize),
}

impl Windows {
    fn check(&self) -> Result<(), Invalid> {
        if self.also.len() > MAX_FIRST || self.also.iter().any(|other| !other.also.is_empty()) {
            return Err(Invalid::Windows);
        }
        for windows in self.each() {
            let mut last = 0;
            for (open, close) in &windows.open_us {
                if *open < last || close <= open || *close > windows.period_us {
                    return Err(Invalid::Windows);
                }
                last = *close;
            }
            // One that never opens would stop the group for ever.
            if last == 0 {
                return Err(Invalid::Windows);
            }
        }
        Ok(())
    }

    /// Returns all that must be open.
    pub fn each(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.also)
    }

    /// Returns for how many microseconds from now on the group may not send; 0: it may. `now_us`: since the epoch of Unix. Where
    /// windows of several periods are hardly ever open at once it is a part of that time.
    pub fn closed_for(&self, now_us: u64) -> u64 {
        let mut at = now_us;
        for _ in 0..MOST_OPENINGS {
            match self.each().map(|windows| windows.opens_after(at)).max() {
                None | Some(0) => break,
                Some(longest) => at = at.saturating_add(longest),
            }
        }
        at - now_us
    }

    /// The same without the others.
    fn opens_after(&self, now_us: u64) -> u64 {
        let at = now_us % self.period_us.max(1);
        if self.open_us.iter().any(|(open, close)| (*open..*close).contains(&at)) {
            return 0;
        }
        let next = self.open_us.iter().map(|(open, _)| *open).find(|open| *open > at);
        let first = self.open_us.first().map_or(0, |(open, _)| *open);
        next.map_or(self.period_us - at + first, |open| open - at)
    }
}

impl Strategy {
    /// Returns the baseline: one ring in the order of ranks, routed by the system.
    pub fn rank_order(epoch: u64, members: Vec<u32>) -> Self {
        let channel = Channel { ring: members.clone(), paths: vec![None; members.len()] };
        Self {
            epoch,
            members,
            channels: vec![channel],
            piece: PIECE,
            small: SMALL,
            all_reduce: None,
            broadcast: None,
            windows: None,
            yields: Vec::new(),
            same_wires: false,
        }
    }

    /// Whether it yields to other groups at times.
    pub fn gives_way(&self) -> bool {
        self.windows.is_some() || !self.yields.is_empty()
    }

    /// Returns all trees in the order of their lanes, which follow those of the channels.
    pub fn trees(&self) -> impl Iterator<Item = &Tree> {
        self.all_reduce.iter().chain(&self.broadcast).flat_map(|trees| &trees.trees)
    }

    /// Returns the trees by which an operation with a buffer of this many bytes goes, and the lane of the first one. None: it goes by
    /// the rings. Operations of at most [`Self::small`] bytes go by neither.
    pub fn trees_of(&self, operation: Operation, bytes: u64) -> Option<(usize, &[Tree])> {
        let first = self.channels.len();
        let (lane, trees) = match operation {
            Operation::AllReduce { .. } => (first, self.all_reduce.as_ref()?),
            Operation::Broadcast { .. } => {
                let before = self.all_reduce.as_ref().map_or(0, |trees| trees.trees.len());
                (first + before, self.broadcast.as_ref()?)
            }
            Operation::ReduceScatter { .. } | Operation::AllGather | Operation::AllToAll => return None,
        };
        trees.most.is_none_or(|most| bytes <= most).then_some((lane, trees.trees.as_slice()))
    }

    /// Returns the path of the wire on which a rank sends small operations and exchanges to another one: that by which a ring leaves its
    /// rack; none within the rack, or where rings have no paths. Pairs of ranks take turns with the rings.
    pub fn mesh_path(&self, from: u32, to: u32) -> Option<&str> {
        let turn = from.wrapping_add(to) as usize;
        let channel = self.channels.get(turn.checked_rem(self.channels.len())?)?;
        let count = channel.ring.len();
        let at = channel.ring.iter().position(|rank| *rank == from)?;
        // Edges without a path stay within a rack: it reaches from the edge after which it begins to that by which it is left.
        let path = |edge: usize| channel.paths.get(edge % count).and_then(Option::as_deref);
        let after = (0..count).find(|step| path(at + step).is_some())?;
        let before = (0..count - after).find(|step| path(at + count - step - 1).is_some())?;
        let mut rack = (at + count - before..=at + count + after).map(|place| channel.ring[place % count]);
        if rack.any(|rank| rank == to) { None } else { path(at + after) }
    }

    /// Returns why it is none, if so.
    ///
    /// # Errors
    /// [`Invalid`], which names the part that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.epoch > MAX_EPOCH {
            return Err(Invalid::Epoch(self.epoch));
        }
        if self.members.is_empty() {
            return Err(Invalid::Empty);
        }
        if !self.members.is_sorted_by(|one, next| one < next) {
            return Err(Invalid::Order);
        }
        let lanes = self.channels.len() + self.trees().count();
        if self.channels.is_empty() || lanes > MAX_CHANNELS {
            return Err(Invalid::Channels(lanes));
        }
        let members: BTreeSet<u32> = self.members.iter().copied().collect();
        for (number, channel) in self.channels.iter().enumerate() {
            if channel.ring.len() != members.len()
                || channel.ring.iter().copied().collect::<BTreeSet<_>>() != members
            {
                return Err(Invalid::Ring(number));
            }
            if channel.paths.len() != members.len() {
                return Err(Invalid::Paths(number));
            }
        }
        if self.all_reduce.iter().chain(&self.broadcast).any(|trees| trees.trees.is_empty()) {
            return Err(Invalid::NoTrees);
        }
        for (number, tree) in self.trees().enumerate() {
            if !tree.connects(&members) {
                return Err(Invalid::Tree(number));
            }
            if tree.weight == 0 {
                return Err(Invalid::Weight(number));
            }
        }
        if self.piece == 0 || self.piece > MAX_PIECE {
            return Err(Invalid::Piece(self.piece));
        }
        if self.yields.len() > MAX_FIRST {
            return Err(Invalid::First(self.yields.len()));
        }
        self.windows.as_ref().map_or(Ok(()), Windows::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(period_us: u64, open_us: &[(u64, u64)]) -> Windows {
        Windows { period_us, open_us: open_us.to_vec(), also: Vec::new() }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let valid = || Strategy::rank_order(1, vec![0, 2, 5]);
        assert_eq!(valid().check(), Ok(()));
        let wrong = |change: fn(&mut Strategy)| {
            let mut strategy = valid();
            change(&mut strategy);
            strategy.check()
        };
        assert_eq!(wrong(|one| one.epoch = u64::MAX), Err(Invalid::Epoch(u64::MAX)));
        assert_eq!(wrong(|one| one.members.clear()), Err(Invalid::Empty));
        assert_eq!(wrong(|one| one.members = vec![0, 5, 2]), Err(Invalid::Order));
        assert_eq!(wrong(|one| one.channels.clear()), Err(Invalid::Channels(0)));
        assert_eq!(wrong(|one| one.channels[0].ring = vec![0, 2, 2]), Err(Invalid::Ring(0)));
        assert_eq!(wrong(|one| one.channels[0].ring = vec![0, 2, 6]), Err(Invalid::Ring(0)));
        assert_eq!(wrong(|one| one.channels[0].ring = vec![0, 2]), Err(Invalid::Ring(0)));
        assert_eq!(wrong(|one| one.channels[0].paths.truncate(1)), Err(Invalid::Paths(0)));
        assert_eq!(wrong(|one| one.piece = 0), Err(Invalid::Piece(0)));
        for open_us in [vec![], vec![(5, 5)], vec![(0, 11)], vec![(0, 5), (4, 6)]] {
            let mut strategy = valid();
            strategy.windows = Some(windows(10, &open_us));
            assert_eq!(strategy.check(), Err(Invalid::Windows));
        }
        let (one, never) = (windows(10, &[(0, 5)]), windows(10, &[]));
        for also in [vec![never], vec![Windows { also: vec![one.clone()], ..one.clone() }]] {
            let strategy = Strategy { windows: Some(Windows { also, ..one.clone() }), ..valid() };
            assert_eq!(strategy.check(), Err(Invalid::Windows));
        }
        assert_eq!(wrong(|one| one.yields = vec![String::new(); 65]), Err(Invalid::First(65)));
    }

    #[test]
    fn a_tree_has_each_member_once() {
        let with = |edges: &[(u32, u32)], weight| {
            let trees = Trees { trees: vec![Tree { edges: edges.to_vec(), weight }], most: None };
            Strategy { broadcast: Some(trees), ..Strategy::rank_order(1, vec![0, 2, 5]) }.check()
        };
        assert_eq!(with(&[(2, 0), (5, 2)], 7), Ok(()));
        assert_eq!(with(&[(2, 0), (2, 5)], 0), Err(Invalid::Weight(0)));
        let wrong: [&[(u32, u32)]; 7] = [
            &[],
            &[(0, 2)],
            &[(0, 2), (0, 2)],
            &[(0, 2), (5, 5)],
            &[(0, 2), (2, 7)],
            &[(0, 2), (2, 5), (5, 0)],
            &[(0, 0), (2, 5)],
        ];
        for edges in wrong {
            assert_eq!(with(edges, 1), Err(Invalid::Tree(0)), "{edges:?}");
        }
        let none = Trees { trees: Vec::new(), most: None };
        let strategy = Strategy { all_reduce: Some(none), ..Strategy::rank_order(1, vec![0]) };
        assert_eq!(strategy.check(), Err(Invalid::NoTrees));
        let tree = Tree { edges: Vec::new(), weight: 1 };
        let many = Trees { trees: vec![tree; MAX_CHANNELS], most: None };
        let strategy = Strategy { all_reduce: Some(many), ..Strategy::rank_order(1, vec![0]) };
        assert_eq!(strategy.check(), Err(Invalid::Channels(MAX_CHANNELS + 1)));
    }

    #[test]
    fn a_tree_hangs_on_any_root() {
        let tree = Tree { edges: vec![(1, 2), (3, 2), (2, 4)], weight: 1 };
        assert_eq!(tree.root(), Some(1));
        let branch = |edge, above, below, depth| Branch { edge, above, below, depth };
        assert_eq!(tree.from(1), [branch(0, 1, 2, 1), branch(1, 2, 3, 2), branch(2, 2, 4, 2)]);
        assert_eq!(tree.from(4), [branch(2, 4, 2, 1), branch(0, 2, 1, 2), branch(1, 2, 3, 2)]);
    }

    #[test]
    fn strategies_of_before_are_read() {
        let text = r#"{"epoch":3,"members":[0,1],"channels":[{"ring":[1,0],"paths":[null,"lte"]}],"piece":4096,"small":9}"#;
        let read: Strategy = serde_json::from_str(text).unwrap();
        assert_eq!((read.all_reduce.is_none(), read.broadcast.is_none(), read.check()), (true, true, Ok(())));
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let text = text.replace("9}", r#"9,"broadcast":{"trees":[{"edges":[[1,0]]}],"most":100}}"#);
        let read: Strategy = serde_json::from_str(&text).unwrap();
        let broadcast = Operation::Broadcast { root: 0 };
        let of = |bytes| read.trees_of(broadcast, bytes).map(|(lane, trees)| (lane, trees[0].weight));
        assert_eq!((of(100), of(101), read.trees_of(Operation::AllGather, 1)), (Some((1, 1)), None, None));
    }

    #[test]
    fn small_operations_leave_a_rack_by_the_paths_of_the_rings() {
        let path = |name: &str| Some(name.to_owned());
        let channel =
            |name| Channel { ring: vec![0, 1, 2, 3], paths: vec![None, path(name), None, path(name)] };
        let mut strategy = Strategy::rank_order(1, vec![0, 1, 2, 3]);
        assert_eq!(strategy.mesh_path(0, 2), None, "the ring has no paths");
        strategy.channels = vec![channel("one"), channel("other")];
        let found = [(0, 2), (2, 0), (0, 3), (1, 2), (3, 1), (0, 1), (1, 0), (2, 3), (3, 2), (0, 9), (9, 0)]
            .map(|(from, to)| strategy.mesh_path(from, to));
        let (one, other) = (Some("one"), Some("other"));
        assert_eq!(found, [one, one, other, other, one, None, None, None, None, other, None]);
        strategy.channels = vec![Channel { ring: vec![1, 0], paths: vec![path("there"), path("back")] }];
        assert_eq!((strategy.mesh_path(1, 0), strategy.mesh_path(0, 1)), (Some("there"), Some("back")));
    }

    #[test]
    fn windows_say_how_long_they_are_closed() {
        let windows = windows(100, &[(10, 20), (60, 80)]);
        let closed = [0, 10, 19, 20, 59, 60, 80, 99, 100, 115].map(|now| windows.closed_for(now));
        assert_eq!(closed, [10, 0, 0, 40, 1, 0, 30, 11, 10, 0]);
    }

    #[test]
    fn windows_of_several_periods_are_open_together() {
        let one = Windows { also: vec![windows(70, &[(0, 10)])], ..windows(100, &[(0, 50)]) };
        let is_open = |at: u64| at % 100 < 50 && at % 70 < 10;
        for now in 0..1000 {
            let closed = one.closed_for(now);
            assert!(is_open(now + closed), "{now}");
            assert!((now..now + closed).all(|at| !is_open(at)), "{now}");
        }
        // Never at once: it ends, and the caller looks again.
        let never = Windows { also: vec![windows(10, &[(5, 10)])], ..windows(10, &[(0, 5)]) };
        assert!(never.closed_for(3) > 0);
    }
}
