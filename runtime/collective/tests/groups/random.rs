//! Random calls while strategies, paths and members change at random.
use crate::place::{PATIENCE, Place, until};
use half::{bf16, f16};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_collective::client::{Buffer, CallOptions, Error, Group, Pending};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::number::Number;
use tidemill_collective::operation::Operation;
use tidemill_collective::protocol::{Answer, FailureKind, Question};
use tidemill_collective::topology::Path;
use tidemill_random::Random;

/// A number that holds small integers, and sums of a few of them, exactly.
trait Exact: Number + PartialEq + std::fmt::Debug {
    fn of(value: u8) -> Self;
}

macro_rules! exact {
    ($($number:ty, $of:expr;)+) => {$(
        impl Exact for $number {
            fn of(value: u8) -> Self {
                $of(value)
            }
        }
    )+};
}

exact! {
    f32, f32::from;
    f16, |value| f16::from_f32(f32::from(value));
    bf16, |value| bf16::from_f32(f32::from(value));
    i32, i32::from;
    i64, i64::from;
}

/// The element of a rank in a call.
fn value(rank: u32, call: u64, index: usize) -> u8 {
    let mixed =
        (u64::from(rank) + 1).wrapping_mul(call.wrapping_mul(31) ^ (index as u64).wrapping_mul(0x9E37));
    ((mixed >> 3) % 13) as u8
}

/// A call, the same at all ranks of a group.
#[derive(Debug, Clone, Copy)]
struct Call {
    number: u64,
    operation: Operation,
    element: Element,
    length: usize,
}

impl Call {
    fn random(seed: u64, number: u64, members: &[u32]) -> Self {
        let mut random = Random::of_seed(seed ^ (number << 20));
        let reduction = [Reduction::Sum, Reduction::Min, Reduction::Max][random.below(3)];
        let operation = match random.below(6) {
            0 => Operation::Broadcast { root: members[random.below(members.len())] },
            1 => Operation::ReduceScatter { reduction },
            2 => Operation::AllGather,
            3 => Operation::AllToAll,
            _ => Operation::AllReduce { reduction },
        };
        let element =
            [Element::F32, Element::F16, Element::Bf16, Element::I32, Element::I64][random.below(5)];
        let most = [40, 40, 5000, 5000, 5000, 100_000][random.below(6)];
        let mut length = 1 + random.below(most);
        if operation == Operation::AllToAll {
            length = length.next_multiple_of(members.len());
        }
        Self { number, operation, element, length }
    }

    fn begin(&self, group: &Group) -> Result<(Buffer, Pending), Error> {
        let buffer = group.buffer(self.element, self.length)?;
        match self.element {
            Element::F32 => self.fill::<f32>(group, &buffer)?,
            Element::F16 => self.fill::<f16>(group, &buffer)?,
            Element::Bf16 => self.fill::<bf16>(group, &buffer)?,
            Element::I32 => self.fill::<i32>(group, &buffer)?,
            Element::I64 => self.fill::<i64>(group, &buffer)?,
        }
        let pending = group.call(&buffer, self.operation, &CallOptions::default())?;
        Ok((buffer, pending))
    }

    fn fill<T: Exact>(&self, group: &Group, buffer: &Buffer) -> Result<(), Error> {
        let of = |index| T::of(value(group.rank(), self.number, index));
        buffer.write(0, &(0..self.length).map(of).collect::<Vec<T>>())
    }

    fn check(&self, group: &Group, buffer: &Buffer, members: &[u32]) {
        match self.element {
            Element::F32 => self.compare::<f32>(group, buffer, members),
            Element::F16 => self.compare::<f16>(group, buffer, members),
            Element::Bf16 => self.compare::<bf16>(group, buffer, members),
            Element::I32 => self.compare::<i32>(group, buffer, members),
            Element::I64 => self.compare::<i64>(group, buffer, members),
        }
    }

    /// Compares what the operation says about the buffer of this rank.
    fn compare<T: Exact>(&self, group: &Group, buffer: &Buffer, members: &[u32]) {
        let found: Vec<T> = buffer.to_vec().unwrap();
        let count = members.len();
        let me = members.iter().position(|rank| *rank == group.rank()).unwrap();
        let part_at = |position: usize| position * self.length / count;
        let part_of = |index: usize| (0..count).rfind(|part| part_at(*part) <= index).unwrap();
        let combined = |reduction, index| {
            let of_all = members.iter().map(|rank| value(*rank, self.number, index));
            match reduction {
                Reduction::Sum => of_all.sum(),
                Reduction::Min => of_all.min().unwrap(),
                Reduction::Max => of_all.max().unwrap(),
            }
        };
        let expected = |index: usize| match self.operation {
            Operation::Broadcast { root } => value(root, self.number, index),
            Operation::AllReduce { reduction } | Operation::ReduceScatter { reduction } => {
                combined(reduction, index)
            }
            Operation::AllGather => value(members[part_of(index)], self.number, index),
            Operation::AllToAll => {
                let part = self.length / count;
                value(members[index / part], self.number, me * part + index % part)
            }
        };
        let range = match self.operation {
            Operation::ReduceScatter { .. } => part_at(me)..part_at(me + 1),
            _ => 0..self.length,
        };
        for index in range {
            assert_eq!(found[index], T::of(expected(index)), "element {index} of {self:?} at rank {me}");
        }
    }
}

/// How far a group is. All ranks agree on it after members have changed.
#[derive(Debug, Clone, Copy, Default)]
struct At {
    /// Calls that have been made.
    call: u64,
    /// Changes of the members.
    generation: u64,
    /// The call since which no member has changed.
    since: u64,
    is_over: bool,
}

impl At {
    /// The rank that leaves next, after how many calls, and whether the others continue without it for a while.
    fn next_loss(self, seed: u64, size: u32) -> (u32, u64, bool) {
        let mut random = Random::of_seed(seed ^ 0xA5A5 ^ (self.generation << 8));
        let rank = random.below(size as usize) as u32;
        (rank, self.since + 30 + random.below(60) as u64, random.chance(0.5))
    }

    /// Agrees with the others.
    fn agreed(self, group: &Group) -> Result<Self, Error> {
        let buffer = group.buffer(Element::I64, 4)?;
        let words = [self.call, self.generation, self.since, u64::from(self.is_over)];
        buffer.write(0, &words.map(u64::cast_signed))?;
        group.all_reduce(&buffer, Reduction::Max)?.wait()?;
        let words = buffer.to_vec::<i64>()?;
        let word = |at: usize| words[at].cast_unsigned();
        Ok(Self { call: word(0), generation: word(1), since: word(2), is_over: word(3) > 0 })
    }
}

/// Counters of all ranks.
#[derive(Default)]
struct Counts {
    is_over: AtomicBool,
    /// Calls of ranks whose result was right, and those that failed because a rank was lost.
    right: AtomicU64,
    failed: AtomicU64,
    losses: AtomicU64,
}

/// Joins until the service has noticed that the program before is gone.
fn joined(place: &Place, name: &str, rank: u32, size: u32) -> Group {
    let end = Instant::now() + PATIENCE;
    loop {
        match Group::join(&place.options(name, rank, size)) {
            Err(error) if error.to_string().contains("another program") && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result.unwrap_or_else(|error| panic!("rank {rank} of {name}: {error}")),
        }
    }
}

/// A rank, until all is over.
fn computes((name, seed): (&str, u64), place: &Place, (rank, size): (u32, u32), counts: &Counts) {
    let mut group = joined(place, name, rank, size);
    let mut at = At::default().agreed(&group).unwrap();
    loop {
        let members = group.members();
        let is_full = members.len() == size as usize;
        let (leaver, leaves_at, without) = at.next_loss(seed, size);
        // At the end no rank waits for another one, so all come back before.
        let comes_back = !is_full && (at.is_over || at.call >= at.since + 20);
        if comes_back {
            group = group.rejoin(PATIENCE).unwrap();
            at.since = at.call;
            at = at.agreed(&group).unwrap();
            continue;
        }
        if at.is_over {
            return;
        }
        if is_full && at.call >= leaves_at && leaver == rank {
            drop(group);
            counts.losses.fetch_add(1, Ordering::Relaxed);
            group = joined(place, name, rank, size);
            at = At::default().agreed(&group).unwrap();
            continue;
        }
        // Where a strategy changes at that moment, the last calls of the one that leaves fail at others.
        let is_lost = is_full && at.call + 3 >= leaves_at;
        match batch(&group, &mut at, seed, &members, counts) {
            Ok(()) => assert!(at.call < leaves_at + 1000, "rank {leaver} of {name} has not left"),
            Err(Error::Failed(failure)) if is_lost => {
                assert_eq!(failure.kind, FailureKind::Lost, "{failure}");
                counts.failed.fetch_add(1, Ordering::Relaxed);
                (at.generation, at.since) = (at.generation + 1, at.call);
                match without {
                    true => group.shrink(PATIENCE).unwrap(),
                    false => group = group.rejoin(PATIENCE).unwrap(),
                }
                at = at.agreed(&group).unwrap();
            }
            Err(error) => panic!("rank {rank} of {name} at {at:?}: {error}"),
        }
    }
}

/// Some calls at once.
fn batch(group: &Group, at: &mut At, seed: u64, members: &[u32], counts: &Counts) -> Result<(), Error> {
    let many = 1 + Random::of_seed(seed ^ at.call).below(3) as u64;
    let calls = (1..=many).map(|number| Call::random(seed, at.call + number, members));
    let begun: Vec<(Call, Result<_, Error>)> = calls.map(|call| (call, call.begin(group))).collect();
    for (call, begun) in begun {
        let (buffer, pending) = begun?;
        pending.wait()?;
        call.check(group, &buffer, members);
        at.call = call.number;
        counts.right.fetch_add(1, Ordering::Relaxed);
    }
    if at.call % 8 < many {
        at.is_over = counts.is_over.load(Ordering::Acquire);
        *at = at.agreed(group)?;
    }
    Ok(())
}

/// A strategy of this group, as an operator might choose it.
fn strategy(random: &mut Random, members: &[u32]) -> String {
    let names = ["ffa", "locality", "locality:reversed", "pfa", "pfa:two", "ts", "rank-order"];
    let at = random.below(2 * names.len());
    if let Some(name) = names.get(at) {
        return (*name).to_owned();
    }
    let mut ring = members.to_vec();
    for place in (1..ring.len()).rev() {
        ring.swap(place, random.below(place + 1));
    }
    format!("ring:{}", ring.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

/// Orders strategies of random groups until as many were taken up. Returns how many were refused, since members changed.
fn orders(place: &Place, names: &[&str], changes: u64) -> u64 {
    let (mut random, mut done, mut refused) = (Random::of_seed(97), 0, 0);
    while done < changes {
        let name = names[random.below(names.len())];
        let Some(before) = place.group(name).and_then(|group| group.strategy) else { continue };
        let strategy = strategy(&mut random, &before.members);
        match place.ask(Question::Strategy { group: name.to_owned(), strategy }) {
            Answer::Done(view) => {
                done += 1;
                let epoch = view.strategy.unwrap().epoch;
                // Half of them are overtaken by the next ones.
                if random.chance(0.5) {
                    until("it has changed", || {
                        place.group(name).is_some_and(|group| {
                            group.figures.epoch >= epoch
                                || group.strategy.is_some_and(|strategy| strategy.epoch > epoch)
                        })
                    });
                }
            }
            Answer::Refused(_) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    refused
}

fn reconfigured(changes: u64) {
    let path = |name: &str, from: &str| Path {
        name: name.to_owned(),
        interface: Some(from.to_owned()),
        rate: 1e9,
        ..Path::default()
    };
    let with_paths = |name: &str, rack: &str, conductor: Option<&Place>| {
        let mut place = Place::new(name, conductor);
        place.service = None;
        place.options.host.rack = rack.to_owned();
        place.options.host.paths = vec![path("one", "127.0.0.2"), path("two", "127.0.0.3")];
        place.start();
        place
    };
    let a = with_paths("a", "left", None);
    let (b, c) = (with_paths("b", "right", Some(&a)), with_paths("c", "left", Some(&a)));
    until("all are registered", || a.listing().hosts.len() == 3);
    let places = [&a, &b, &c];
    let groups = [("broad", 4_u32, 11_u64), ("small", 3, 12), ("pair", 2, 13)];
    let (counts, begun) = (Counts::default(), Instant::now());
    let refused = std::thread::scope(|scope| {
        for (name, size, seed) in groups {
            for rank in 0..size {
                // Groups are on other hosts each.
                let (place, counts) = (places[(rank as usize + seed as usize) % places.len()], &counts);
                scope.spawn(move || computes((name, seed), place, (rank, size), counts));
            }
        }
        let refused = orders(&a, &groups.map(|(name, ..)| name), changes);
        counts.is_over.store(true, Ordering::Release);
        refused
    });
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    assert!(count(&counts.losses) > 0 && count(&counts.failed) > 0, "members have changed, too");
    println!(
        "{changes} changes of strategies, {refused} refused while members changed, {} ranks lost and found, {} right results, \
         {} calls failed by a loss, in {:?}",
        count(&counts.losses),
        count(&counts.right),
        count(&counts.failed),
        begun.elapsed()
    );
}

#[test]
fn nothing_is_lost_or_wrong_while_everything_changes() {
    reconfigured(200);
}

#[test]
#[ignore = "long: make test-long"]
fn nothing_is_lost_or_wrong_in_ten_thousand_changes() {
    reconfigured(10_000);
}

#[test]
fn no_message_of_control_is_sent_when_nothing_is_ordered() {
    let a = Place::new("a", None);
    let b = Place::new("b", Some(&a));
    until("both are registered", || a.listing().hosts.len() == 2);
    let (view, both) = (|| a.group("quiet").unwrap(), std::sync::Barrier::new(2));
    crate::place::with_ranks(&[&a, &b], "quiet", 2, |group| {
        let sum = |from: u64| {
            for number in from..from + 50 {
                let call = Call {
                    number,
                    operation: Operation::AllReduce { reduction: Reduction::Sum },
                    element: Element::I32,
                    length: 100,
                };
                let (buffer, pending) = call.begin(&group).unwrap();
                pending.wait().unwrap();
                call.check(&group, &buffer, &[0, 1]);
            }
        };
        sum(0);
        if group.rank() == 0 {
            until("figures came", || view().figures.operations >= 50);
            assert_eq!(view().figures.control_messages, 0);
            let ask = Question::Strategy { group: "quiet".into(), strategy: "ring:1,0".into() };
            assert!(matches!(a.ask(ask), Answer::Done(_)));
        }
        sum(50);
        if group.rank() == 0 {
            // Each host tells the other one where it is.
            until("it has changed", || view().figures.epoch == 2 && view().figures.control_messages == 2);
        }
        both.wait();
    });
}
