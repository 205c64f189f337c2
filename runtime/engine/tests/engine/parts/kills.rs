//! Slots that die at named points, or at many random points, with counters.
use super::{Collected, drive, lines, until};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use tidemill_engine::clock::ManualClock;
use tidemill_engine::faults::{Faults, Point};
use tidemill_engine::{Program, Run, RunOptions, RunReport};
use tidemill_random::Random;

/// Events before a slot's point.
pub(crate) struct Seen<'a> {
    pub(crate) point: Point<'a>,
    emitted: &'a BTreeMap<String, u64>,
}

impl Seen<'_> {
    /// Records that a node has passed on, repeated ones included.
    pub(crate) fn emitted(&self, node: &str) -> u64 {
        self.emitted.get(node).copied().unwrap_or(0)
    }
}

type When = Box<dyn Fn(&Seen<'_>) -> bool + Send>;

#[derive(Default)]
struct State {
    /// Slots and the conditions of their deaths, each once.
    orders: Vec<(String, When)>,
    deaths: Vec<String>,
    emitted: BTreeMap<String, u64>,
    /// Newest incarnation of each slot that had a turn, and all its turns.
    turns: BTreeMap<String, (u32, u64)>,
    finished: BTreeSet<String>,
}

/// Kills by order.
#[derive(Default)]
pub(crate) struct Kills(Mutex<State>);

impl Kills {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    /// Kills a slot at the first of its points at which `when` holds.
    pub(crate) fn order(&self, slot: &str, when: impl Fn(&Seen<'_>) -> bool + Send + 'static) {
        self.state().orders.push((slot.to_owned(), Box::new(when)));
    }

    /// Kills a slot now; returns when its next incarnation runs.
    pub(crate) fn kill(&self, slot: &str, clock: &ManualClock) {
        let incarnation = self.incarnation(slot);
        self.order(slot, |_| true);
        until(clock, || self.incarnation(slot) > incarnation);
    }

    /// The newest incarnation of a slot that had a turn; 0 if none had.
    pub(crate) fn incarnation(&self, slot: &str) -> u32 {
        self.state().turns.get(slot).map_or(0, |turns| turns.0)
    }

    /// Records that a node has passed on, repeated ones included.
    pub(crate) fn emitted(&self, node: &str) -> u64 {
        self.state().emitted.get(node).copied().unwrap_or(0)
    }

    /// Turns that a slot has had.
    pub(crate) fn turns(&self, slot: &str) -> u64 {
        self.state().turns.get(slot).map_or(0, |turns| turns.1)
    }

    /// Whether a slot has ended.
    pub(crate) fn finished(&self, slot: &str) -> bool {
        self.state().finished.contains(slot)
    }

    /// Advances time until the run has ended; checks that every order was carried out, and each death caused one restart.
    pub(crate) fn drive(&self, run: &Run, clock: &ManualClock) -> RunReport {
        let report = drive(run, clock);
        self.check(&report);
        report
    }

    pub(crate) fn check(&self, report: &RunReport) {
        let state = self.state();
        let open: Vec<_> = state.orders.iter().map(|order| &order.0).collect();
        assert!(open.is_empty(), "{open:?} did not die; {:?} did", state.deaths);
        assert_eq!(report.restarts, state.deaths.len() as u64, "{:?}", state.deaths);
    }
}

impl Faults for Kills {
    fn dies(&self, slot: &str, incarnation: u32, point: Point<'_>) -> bool {
        let mut state = self.state();
        let State { orders, deaths, emitted, turns, finished } = &mut *state;
        match point {
            Point::Emitted { node, records } => *emitted.entry(node.to_owned()).or_default() += records,
            Point::Turn => {
                let turns = turns.entry(slot.to_owned()).or_default();
                *turns = (incarnation, turns.1 + 1);
            }
            Point::Finished => {
                finished.insert(slot.to_owned());
                return false;
            }
            _ => {}
        }
        let seen = Seen { point, emitted };
        let struck = orders.iter().position(|(of, when)| of == slot && when(&seen));
        if let Some(order) = struck {
            drop(orders.remove(order));
            deaths.push(format!("{slot} at {point:?}"));
        }
        struck.is_some()
    }
}

/// Kinds of points.
const KINDS: [&str; 5] = ["emitted", "committing", "committed", "snapshot", "restoring"];

fn kind(point: Point<'_>) -> &'static str {
    match point {
        Point::Emitted { .. } => KINDS[0],
        Point::Committing { .. } => KINDS[1],
        Point::Committed { .. } => KINDS[2],
        Point::Snapshot { .. } => KINDS[3],
        Point::Restoring { .. } => KINDS[4],
        Point::Turn | Point::Finished => "turn",
    }
}

/// Random kills, spread over the records of a run.
pub(crate) struct Chaos {
    /// Slots that die each time.
    together: usize,
    state: Mutex<ChaosState>,
}

struct ChaosState {
    random: Random,
    left: u64,
    /// Average number of records from one time to the next.
    every: u64,
    emitted: u64,
    next: u64,
    wanted: &'static str,
    slots: BTreeSet<String>,
    /// To die at their next points.
    condemned: BTreeSet<String>,
    deaths: BTreeMap<&'static str, u64>,
}

impl Chaos {
    /// `times` deaths among the first `records` that all nodes pass on.
    pub(crate) fn new(seed: u64, times: u64, together: usize, records: u64) -> Arc<Self> {
        let mut random = Random::of_seed(seed);
        let every = records / (times + 1);
        let (next, wanted) = (1 + random.below(every as usize) as u64, KINDS[random.below(KINDS.len())]);
        let state = ChaosState {
            random,
            left: times,
            every,
            emitted: 0,
            next,
            wanted,
            slots: BTreeSet::new(),
            condemned: BTreeSet::new(),
            deaths: BTreeMap::new(),
        };
        Arc::new(Self { together, state: Mutex::new(state) })
    }

    /// Slots that died so far.
    pub(crate) fn deaths(&self) -> u64 {
        self.state.lock().expect("not poisoned").deaths.values().sum()
    }

    /// Records that were passed on, deaths by kind of point, and whether all deaths happened.
    fn result(&self) -> (u64, BTreeMap<&'static str, u64>, bool) {
        let state = self.state.lock().expect("not poisoned");
        (state.emitted, state.deaths.clone(), state.left == 0)
    }
}

impl Faults for Chaos {
    fn dies(&self, slot: &str, _incarnation: u32, point: Point<'_>) -> bool {
        let mut state = self.state.lock().expect("not poisoned");
        let state = &mut *state;
        if point == Point::Finished {
            state.slots.remove(slot);
            return false;
        }
        state.slots.insert(slot.to_owned());
        if let Point::Emitted { records, .. } = point {
            state.emitted += records;
        }
        let mut dies = state.condemned.remove(slot);
        if !dies && state.left > 0 && state.emitted >= state.next {
            // A point of the drawn kind need not come soon.
            dies = kind(point) == state.wanted || state.emitted >= state.next + state.every / 2;
            if dies {
                state.left -= 1;
                let every = state.every as usize;
                state.next = state.emitted + state.random.below(every) as u64;
                state.wanted = KINDS[state.random.below(KINDS.len())];
                let others: Vec<&String> = state.slots.iter().filter(|other| *other != slot).collect();
                let first = state.random.below(others.len());
                let others = others.iter().cycle().skip(first).take(others.len().min(self.together - 1));
                state.condemned.extend(others.map(|other| (*other).clone()));
            }
        }
        if dies {
            *state.deaths.entry(kind(point)).or_default() += 1;
        }
        dies
    }
}

/// Disturbance of a program.
pub(crate) struct Disturbance {
    pub(crate) rounds: u64,
    /// Times in each round.
    pub(crate) times: u64,
    /// Slots that die each time.
    pub(crate) together: usize,
    pub(crate) seed: u64,
}

/// Runs a program undisturbed, then several times while slots die. Its sinks get equal rows in equal order, since a reader
/// of a file must not see a difference, and as many dead letters. Returns the deaths by kind of point.
pub(crate) fn survives(
    build: impl Fn() -> (Program, Vec<Collected>),
    options: impl Fn() -> RunOptions,
    disturbance: Disturbance,
) -> BTreeMap<&'static str, u64> {
    let run = |chaos: &Arc<Chaos>| {
        let clock = Arc::new(ManualClock::new());
        let (program, found) = build();
        let options = RunOptions { clock: clock.clone(), faults: Some(chaos.clone()), ..options() };
        let report = drive(&Run::start(program, options).expect("starts"), &clock);
        assert!(report.complete);
        let (emitted, deaths, all) = chaos.result();
        assert_eq!(report.restarts, deaths.values().sum::<u64>(), "{deaths:?}");
        assert!(all, "too few: {deaths:?}");
        (found.iter().map(lines).collect::<Vec<_>>(), report.dead_letters, emitted, deaths)
    };
    let Disturbance { rounds, times, together, seed } = disturbance;
    let (expected, letters, records, _) = run(&Chaos::new(0, 0, 1, 0));
    let mut all = BTreeMap::new();
    for round in 0..rounds {
        let (found, letters_again, _, deaths) = run(&Chaos::new(seed + round, times, together, records));
        for (found, expected) in found.iter().zip(&expected) {
            let differs = found.iter().zip(expected).position(|(a, b)| a != b);
            assert!(
                found.len() == expected.len() && differs.is_none(),
                "seed {}: {} of {} lines, first difference at {differs:?}",
                seed + round,
                found.len(),
                expected.len()
            );
        }
        assert_eq!(letters_again, letters, "dead letters, seed {}", seed + round);
        deaths.into_iter().for_each(|(kind, n)| *all.entry(kind).or_default() += n);
    }
    all
}
