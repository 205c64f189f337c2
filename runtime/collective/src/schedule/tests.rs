//! Schedules of all ranks, executed in memory in random orders, compared with a direct computation.
use super::*;
use crate::element::{Element, Reduction, combine};
use crate::strategy::{Channel, Trees};
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use std::collections::{BTreeMap, VecDeque};
use tidemill_random::Random;

/// The buffers of the ranks, and how far they are.
struct Ranks {
    numbered: Numbered,
    buffers: BTreeMap<u32, Vec<u8>>,
    doing: Vec<Doing>,
    wires: BTreeMap<(u32, u32, u16), VecDeque<Vec<u8>>>,
    /// Messages that a wire holds. With 0 only what is staged leaves before the receiver applies it.
    capacity: usize,
}

struct Doing {
    rank: u32,
    program: Program,
    sent: usize,
    applied: usize,
}

impl Ranks {
    fn new(
        strategy: &Strategy,
        numbered: Numbered,
        buffers: BTreeMap<u32, Vec<u8>>,
        capacity: usize,
    ) -> Self {
        let doing = buffers.keys().flat_map(|rank| {
            let programs = programs(strategy, &numbered, *rank).into_iter();
            programs.map(|program| Doing { rank: *rank, program, sent: 0, applied: 0 })
        });
        let doing = doing.collect();
        Self { numbered, buffers, doing, wires: BTreeMap::new(), capacity }
    }

    /// Whether the next send of a program may start.
    fn sends(&self, index: usize) -> Option<&super::Send> {
        let doing = &self.doing[index];
        doing.program.sends.get(doing.sent).filter(|send| send.after <= doing.applied)
    }

    /// Lets the next send of a program leave, if it may.
    fn leave(&mut self, index: usize) -> bool {
        let Some(send) = self.sends(index).cloned() else { return false };
        let (rank, lane) = (self.doing[index].rank, self.doing[index].program.lane);
        let wire = self.wires.entry((rank, send.to, lane)).or_default();
        if wire.len() >= self.capacity + usize::from(send.staged) {
            return false;
        }
        wire.push_back(self.buffers[&rank][send.bytes.start as usize..send.bytes.end as usize].to_vec());
        self.doing[index].sent += 1;
        true
    }

    /// Applies the next receive of a program, if it may.
    fn apply(&mut self, index: usize) -> bool {
        let (rank, lane) = (self.doing[index].rank, self.doing[index].program.lane);
        let Some(receive) = self.doing[index].program.receives.get(self.doing[index].applied).cloned() else {
            return false;
        };
        if receive.after > self.doing[index].sent {
            return false;
        }
        let wire = self.wires.entry((receive.from, rank, lane)).or_default();
        let came = if let Some(came) = wire.pop_front() {
            came
        } else {
            // Directly from the other rank, where it is about to send that.
            let other = |doing: &Doing| doing.rank == receive.from && doing.program.lane == lane;
            let Some(other) = self.doing.iter().position(other) else { return false };
            let Some(send) = self.sends(other).filter(|send| send.to == rank) else { return false };
            let bytes = &self.buffers[&receive.from][send.bytes.start as usize..send.bytes.end as usize];
            let bytes = bytes.to_vec();
            self.doing[other].sent += 1;
            bytes
        };
        let range = receive.bytes.start as usize..receive.bytes.end as usize;
        let buffer = &mut self.buffers.get_mut(&rank).unwrap()[range];
        assert_eq!(buffer.len(), came.len(), "both sides mean the same bytes");
        if receive.combined {
            combine(self.numbered.element, reduction(self.numbered.operation).unwrap(), buffer, &came);
        } else {
            buffer.copy_from_slice(&came);
        }
        self.doing[index].applied += 1;
        true
    }

    fn is_done(&self) -> bool {
        let done = |doing: &Doing| {
            doing.sent == doing.program.sends.len() && doing.applied == doing.program.receives.len()
        };
        self.doing.iter().all(done)
    }

    /// Executes all programs; false: nothing can continue.
    fn run(&mut self, random: &mut Random) -> bool {
        while !self.is_done() {
            // From a random one on; some ranks are slow for a while.
            let (count, first) = (self.doing.len(), random.below(self.doing.len()));
            let sends_first = random.chance(0.5);
            let moves = |index: usize, ranks: &mut Self| {
                let first = if sends_first { ranks.leave(index) } else { ranks.apply(index) };
                first || if sends_first { ranks.apply(index) } else { ranks.leave(index) }
            };
            if !(0..count).any(|n| moves((first + n) % count, self)) {
                return false;
            }
        }
        self.wires.values().all(VecDeque::is_empty)
    }
}

fn reduction(operation: Operation) -> Option<Reduction> {
    match operation {
        Operation::AllReduce { reduction } | Operation::ReduceScatter { reduction } => Some(reduction),
        _ => None,
    }
}

/// A small whole number, exact in all types, and so are sums of nine.
pub(crate) fn value(element: Element, number: i8) -> Vec<u8> {
    match element {
        Element::F32 => f32::from(number).to_le_bytes().to_vec(),
        Element::F16 => f16::from_f32(f32::from(number)).to_le_bytes().to_vec(),
        Element::Bf16 => bf16::from_f32(f32::from(number)).to_le_bytes().to_vec(),
        Element::I32 => i32::from(number).to_le_bytes().to_vec(),
        Element::I64 => i64::from(number).to_le_bytes().to_vec(),
    }
}

/// Returns the range of elements of each rank that an operation defines, and all elements that it should have.
pub(crate) fn expected(
    strategy: &Strategy,
    numbered: &Numbered,
    values: &[Vec<i8>],
) -> Vec<(Range<usize>, Vec<i8>)> {
    let (count, length) = (values.len(), numbered.length as usize);
    let part = |p: usize| p * length / count..(p + 1) * length / count;
    let all = |from: &dyn Fn(usize) -> i8| (0..length).map(from).collect::<Vec<i8>>();
    let combined = |reduction: Reduction| {
        all(&|n| {
            let column = values.iter().map(|buffer| buffer[n]);
            match reduction {
                Reduction::Sum => column.sum(),
                Reduction::Min => column.min().unwrap(),
                Reduction::Max => column.max().unwrap(),
            }
        })
    };
    (0..count)
        .map(|own| match numbered.operation {
            Operation::Broadcast { root } => {
                let root = strategy.members.iter().position(|rank| *rank == root).unwrap();
                (0..length, values[root].clone())
            }
            Operation::AllReduce { reduction } => (0..length, combined(reduction)),
            Operation::ReduceScatter { reduction } => (part(own), combined(reduction)),
            Operation::AllGather => {
                let owner = |n: usize| (0..count).find(|p| part(*p).contains(&n)).unwrap();
                (0..length, all(&|n| values[owner(n)][n]))
            }
            Operation::AllToAll => {
                let each = length / count;
                (0..length, all(&|n| values[n / each][own * each + n % each]))
            }
        })
        .collect()
}

fn shuffled(random: &mut Random, members: &[u32]) -> Vec<u32> {
    let mut ring = members.to_vec();
    for n in (1..ring.len()).rev() {
        ring.swap(n, random.below(n + 1));
    }
    ring
}

/// Random trees of random weights; none where `count` is 0.
fn trees(random: &mut Random, members: &[u32], count: usize, most: Option<u64>) -> Option<Trees> {
    let tree = |random: &mut Random| {
        let order = shuffled(random, members);
        // Some are chains, some are stars, most are neither.
        let reach = [1, 2, order.len()][random.below(3)];
        let edge = |random: &mut Random, at: usize| {
            let ends = (order[at - 1 - random.below(at.min(reach))], order[at]);
            // Only that of the root has to begin at the root.
            if at > 1 && random.chance(0.5) { (ends.1, ends.0) } else { ends }
        };
        let edges = (1..order.len()).map(|at| edge(random, at)).collect();
        Tree { edges, weight: 1 + random.below(1000) as u32 }
    };
    let trees: Vec<Tree> = (0..count).map(|_| tree(random)).collect();
    (!trees.is_empty()).then_some(Trees { trees, most })
}

pub(crate) fn strategy(
    random: &mut Random,
    count: usize,
    channels: usize,
    piece: u32,
    small: u64,
) -> Strategy {
    // Ranks have left: numbers are not positions.
    let members: Vec<u32> = (0..count as u32).map(|n| n * 3 + 1).collect();
    let channels = (0..channels)
        .map(|_| Channel { ring: shuffled(random, &members), paths: vec![None; count] })
        .collect();
    let (reducing, broadcasting) = (random.below(4), random.below(4));
    let most = [None, Some(random.below(1000) as u64)][random.below(2)];
    let all_reduce = trees(random, &members, reducing, None);
    let broadcast = trees(random, &members, broadcasting, most);
    let strategy = Strategy {
        epoch: 1,
        members,
        channels,
        piece,
        small,
        all_reduce,
        broadcast,
        windows: None,
        yields: Vec::new(),
        same_wires: false,
    };
    assert_eq!(strategy.check(), Ok(()));
    strategy
}

pub(crate) fn operation(kind: usize, reduction: Reduction, root: u32) -> Operation {
    match kind {
        0 => Operation::Broadcast { root },
        1 => Operation::AllReduce { reduction },
        2 => Operation::ReduceScatter { reduction },
        3 => Operation::AllGather,
        _ => Operation::AllToAll,
    }
}

pub(crate) const REDUCTIONS: [Reduction; 3] = [Reduction::Sum, Reduction::Min, Reduction::Max];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_is_right_in_every_order_of_events(
        count in 1usize..10, length in prop_oneof![0u64..12, 0u64..400], channels in 1usize..4, piece in 1u32..300,
        is_small in any::<bool>(), kind in 0usize..5, of in (0usize..5, 0usize..3), capacity in 0usize..4, seed in any::<u64>(),
    ) {
        let random = &mut Random::of_seed(seed);
        let small = if is_small { u64::MAX } else { 0 };
        let strategy = strategy(random, count, channels, piece, small);
        let root = strategy.members[random.below(count)];
        let operation = operation(kind, REDUCTIONS[of.1], root);
        let length = if operation == Operation::AllToAll { length / count as u64 * count as u64 } else { length };
        let numbered = Numbered::new(1, operation, Element::ALL[of.0], length);
        let values: Vec<Vec<i8>> =
            (0..count).map(|_| (0..length).map(|_| random.below(9) as i8 - 4).collect()).collect();
        let bytes_of = |values: &[i8]| values.iter().flat_map(|one| value(numbered.element, *one)).collect::<Vec<u8>>();
        let buffers = strategy.members.iter().zip(&values).map(|(rank, values)| (*rank, bytes_of(values)));
        let mut ranks = Ranks::new(&strategy, numbered, buffers.collect(), capacity);
        prop_assert!(ranks.run(random), "a deadlock");
        for ((range, values), (rank, buffer)) in expected(&strategy, &numbered, &values).iter().zip(&ranks.buffers) {
            let bytes = numbered.element.bytes();
            let range = range.start * bytes..range.end * bytes;
            prop_assert_eq!(&buffer[range.clone()], &bytes_of(values)[range], "rank {}", rank);
        }
    }

    #[test]
    fn all_ranks_have_the_same_bytes_of_any_floats(
        count in 2usize..10, elements in 1u64..60, is_small in any::<bool>(), of in (0usize..3, 0usize..3), seed in any::<u64>(),
    ) {
        let random = &mut Random::of_seed(seed);
        let strategy = strategy(random, count, 2, 16, if is_small { u64::MAX } else { 0 });
        let (element, reduction) = (Element::ALL[of.0], REDUCTIONS[of.1]);
        let numbered = Numbered::new(1, Operation::AllReduce { reduction }, element, elements);
        let bytes = elements as usize * element.bytes();
        // Any bits: infinities and NaN of all kinds too.
        let mut buffer = || (0..bytes).map(|_| random.draw() as u8).collect::<Vec<u8>>();
        let buffers = strategy.members.iter().map(|rank| (*rank, buffer())).collect();
        let mut ranks = Ranks::new(&strategy, numbered, buffers, 1);
        prop_assert!(ranks.run(random), "a deadlock");
        let first = ranks.buffers.values().next().unwrap().clone();
        prop_assert!(ranks.buffers.values().all(|buffer| *buffer == first));
    }
}

#[test]
fn large_operations_send_no_more_than_they_must() {
    let strategy =
        Strategy { all_reduce: None, broadcast: None, ..strategy(&mut Random::of_seed(1), 8, 2, 1 << 10, 0) };
    let sent = |operation| {
        let numbered = Numbered::new(1, operation, Element::I32, 64 << 10);
        let of = |rank: &u32| {
            let programs = programs(&strategy, &numbered, *rank);
            let sends = programs.iter().flat_map(|program| &program.sends);
            sends.map(|send| send.bytes.end - send.bytes.start).sum::<u64>()
        };
        strategy.members.iter().map(of).collect::<Vec<u64>>()
    };
    let block = (256 << 10) / 8;
    let reduction = Reduction::Sum;
    assert_eq!(sent(Operation::AllReduce { reduction }), [14 * block; 8]);
    assert_eq!(sent(Operation::ReduceScatter { reduction }), [7 * block; 8]);
    assert_eq!(sent(Operation::AllGather), [7 * block; 8]);
    assert_eq!(sent(Operation::AllToAll), [7 * block; 8]);
    assert_eq!(sent(Operation::Broadcast { root: 1 }).iter().sum::<u64>(), 7 * 8 * block);
}

#[test]
fn trees_carry_what_their_weights_say() {
    let members = [0, 1, 2];
    let star = |root: u32, weight| {
        let edges = members.into_iter().filter(|rank| *rank != root).map(|rank| (root, rank));
        Tree { edges: edges.collect(), weight }
    };
    let trees = Trees { trees: vec![star(0, 1), star(1, 999_999)], most: Some(80) };
    let strategy =
        Strategy { all_reduce: Some(trees), small: 0, ..Strategy::rank_order(1, members.to_vec()) };
    let lanes = |length| {
        let operation = Operation::AllReduce { reduction: Reduction::Sum };
        let numbered = Numbered::new(1, operation, Element::I64, length);
        let bytes = |program: &Program| program.sends.iter().map(|one| one.bytes.end - one.bytes.start).sum();
        let programs = programs(&strategy, &numbered, 2);
        programs.iter().map(|program| (program.lane, bytes(program))).collect::<Vec<(u16, u64)>>()
    };
    assert_eq!(lanes(10), [(2, 80)], "a millionth of ten elements is none");
    assert_eq!(lanes(0), []);
    assert_eq!(lanes(11), [(0, 15 * 8)], "more than 80 bytes go by the ring");
}

#[test]
fn a_rank_that_is_no_member_does_nothing() {
    let strategy = strategy(&mut Random::of_seed(1), 3, 1, 64, 0);
    let numbered = Numbered::new(1, Operation::AllGather, Element::I32, 30);
    assert!(programs(&strategy, &numbered, 2).is_empty());
    assert!(programs(&Strategy::rank_order(1, vec![2]), &numbered, 2).is_empty(), "alone");
}
