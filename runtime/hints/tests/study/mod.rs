//! A group that reduces again and again in virtual time, while the traffic of others changes.
//!
//! Sixteen machines in four racks, with 100 each and 200 between racks. The traffic of others is that of the published study:
//! part of it is skewed over the links, half of one at most and a tenth of all, and changes each period; the rest is up to a
//! tenth of each link and changes each 10 ms. Hints are means of 100 ms, 160 ms old when a schedule begins, and it is used for
//! 100 ms.
use std::time::Duration;
use tidemill_hints::changes::Changes;
use tidemill_hints::estimate::Load;
use tidemill_hints::schedule::{Goal, schedule};
use tidemill_hints::staleness::{COLLECT, Choice, Delays, decide};
use tidemill_hints::tree::{Link, Tree, time};
use tidemill_random::{Random, mixed};

/// The shortest times in which anything changes, and of which a schedule is used for ten.
const STEP: Duration = Duration::from_millis(10);
/// Steps of one schedule, and of one period of hints.
const USED: u64 = 10;
/// Steps from hints to the schedule made from them.
const ADAPTATION: u64 = 16;
/// The delays of a group of 64 workers.
pub(crate) const DELAYS: Delays =
    Delays { collect: COLLECT, compute: Duration::from_millis(10), used: Duration::from_millis(100) };

/// Traffic of others, the same for a seed each time.
pub(crate) struct Background {
    seed: u64,
    /// The part that others use of the busiest link.
    peak: f64,
    /// Steps between changes, times 2: the shortest period is two and a half steps.
    half_steps: u64,
    tree: Tree,
}

/// The tree of the group.
pub(crate) fn group() -> Tree {
    Tree::of(&(0..16).map(|machine| machine / 4).collect::<Vec<_>>())
}

impl Background {
    /// Creates one whose skewed part changes each `period`, at least 5 ms.
    pub(crate) fn new(seed: u64, period: Duration, peak: f64) -> Self {
        let half_steps = u64::try_from(period.as_millis() / 5).unwrap_or(u64::MAX).max(1);
        Self { seed, peak, half_steps, tree: group() }
    }

    /// The totals of all links.
    pub(crate) fn totals(&self) -> Vec<f64> {
        let total = |link| if matches!(self.tree.link(link), Some(Link::Rack(..))) { 200.0 } else { 100.0 };
        (0..self.tree.links()).map(total).collect()
    }

    /// The part of each link that others use in a step.
    fn used(&self, step: u64) -> Vec<f64> {
        let links = self.tree.links();
        let epoch = 2 * step / self.half_steps;
        let mut random = Random::of_seed(self.seed ^ mixed(2 * epoch));
        let mut order: Vec<usize> = (0..links).collect();
        (1..links).rev().for_each(|last| order.swap(last, random.below(last + 1)));
        let mut used = vec![0.0; links];
        for (rank, link) in order.into_iter().enumerate() {
            used[link] = self.peak / (1.0 + rank as f64).powf(0.65);
        }
        let mut random = Random::of_seed(self.seed ^ mixed(2 * step + 1));
        used.iter_mut().for_each(|part| *part = (*part + random.uniform(0.0, 0.1)).min(0.95));
        used
    }

    /// The rate that is left of each link in a step.
    pub(crate) fn residuals(&self, step: u64) -> Vec<f64> {
        let used = self.used(step);
        self.totals().iter().zip(used).map(|(total, used)| total * (1.0 - used)).collect()
    }

    /// Hints about the steps before this one: means of a period, with noise of up to this part of the use.
    pub(crate) fn hints(&self, step: u64, noise: f64) -> Vec<Load> {
        let mut sums = vec![0.0; self.tree.links()];
        for before in step.saturating_sub(USED)..step {
            sums.iter_mut().zip(self.used(before)).for_each(|(sum, used)| *sum += used / USED as f64);
        }
        let mut random = Random::of_seed(self.seed ^ mixed(step) ^ 1);
        let load = |(total, used): (f64, f64)| {
            let seen = (used * random.uniform(1.0 - noise, 1.0 + noise)).min(1.0);
            Load { total, residual: total * (1.0 - seen), sharers: 1.0 }
        };
        self.totals().into_iter().zip(sums).map(load).collect()
    }
}

/// The result of one period of the background. Speeds are buffers per unit of time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Time between changes.
    pub(crate) period: Duration,
    /// Speed with topology only.
    pub(crate) topology: f64,
    /// Speed with topology and loads.
    pub(crate) loads: f64,
    /// Speed of what was chosen by the true time between changes.
    pub(crate) by_truth: f64,
    /// Speed of what was chosen by the estimated one.
    pub(crate) by_estimate: f64,
    /// The estimate at the end.
    pub(crate) estimated: Duration,
    /// The part of the time in which loads were chosen by the estimate.
    pub(crate) chose_loads: f64,
}

impl Row {
    /// The part of the better policy's speed that the worse one of both choices reaches.
    pub(crate) fn least(&self) -> f64 {
        self.by_truth.min(self.by_estimate) / self.topology.max(self.loads)
    }
}

/// The thirteen periods: 25 ms, doubled until 102.4 s.
pub(crate) fn periods() -> impl Iterator<Item = Duration> {
    (0..13).map(|power| Duration::from_millis(25 << power))
}

/// Loads of links by topology only: as if nobody else used them.
pub(crate) fn topology_only(background: &Background) -> Vec<f64> {
    loads_for(&background.tree, &background.totals())
}

/// Loads of links by the schedule for these rates.
pub(crate) fn loads_for(tree: &Tree, rates: &[f64]) -> Vec<f64> {
    let found = schedule(tree, rates, Goal::AllReduce).expect("it has a schedule");
    found.loads(tree, Goal::AllReduce)
}

/// Runs the group for at least `least` and three periods of the background.
pub(crate) fn run(seed: u64, period: Duration, peak: f64, least: Duration) -> Row {
    let background = Background::new(seed, period, peak);
    let tree = group();
    let fixed = topology_only(&background);
    let by_truth = decide(DELAYS, Some(period)).choice;
    let mut changes = Changes::default();
    let steps = u64::try_from(least.max(period * 3).as_millis() / STEP.as_millis()).unwrap_or(u64::MAX);
    let (mut topology, mut with_loads, mut by_estimate, mut chosen, mut turns) =
        (0.0, 0.0, 0.0, 0_u64, 0_u64);
    for begin in (ADAPTATION + USED..steps).step_by(USED as usize) {
        let hints = background.hints(begin - ADAPTATION, 0.0);
        changes.observe(&hints, STEP * u32::try_from(begin - ADAPTATION).unwrap_or(u32::MAX));
        let choice = decide(DELAYS, changes.between()).choice;
        let rates: Vec<f64> = hints.iter().map(|load| load.residual).collect();
        let adapted = loads_for(&tree, &rates);
        (turns, chosen) = (turns + 1, chosen + u64::from(choice == Choice::Loads));
        for step in begin..begin + USED {
            let residuals = background.residuals(step);
            let (fixed, adapted) = (1.0 / time(&fixed, &residuals), 1.0 / time(&adapted, &residuals));
            topology += fixed;
            with_loads += adapted;
            by_estimate += if choice == Choice::Loads { adapted } else { fixed };
        }
    }
    let mean = |sum: f64| sum / (turns * USED) as f64;
    let by_truth = mean(if by_truth == Choice::Loads { with_loads } else { topology });
    Row {
        period,
        topology: mean(topology),
        loads: mean(with_loads),
        by_truth,
        by_estimate: mean(by_estimate),
        estimated: changes.between().unwrap_or_default(),
        chose_loads: chosen as f64 / turns as f64,
    }
}

/// Speeds without hints, where a ring has the machines in any order, and with loads that have noise of up to this part of the
/// use. The background changes each 10 s.
pub(crate) fn run_noise(seed: u64, noise: f64, length: Duration) -> (f64, f64) {
    let background = Background::new(seed, Duration::from_secs(10), 0.5);
    let tree = group();
    let mut random = Random::of_seed(seed);
    let mut order: Vec<usize> = (0..tree.machines()).collect();
    (1..order.len()).rev().for_each(|last| order.swap(last, random.below(last + 1)));
    let share = 2.0 * (order.len() - 1) as f64 / order.len() as f64;
    let ring = tree.loads((0..order.len()).map(|at| (order[at], order[(at + 1) % order.len()], share)));
    let steps = u64::try_from(length.as_millis() / STEP.as_millis()).unwrap_or(u64::MAX);
    let (mut without, mut with_loads) = (0.0, 0.0);
    for begin in (ADAPTATION + USED..steps).step_by(USED as usize) {
        let hints = background.hints(begin - ADAPTATION, noise);
        let adapted = loads_for(&tree, &hints.iter().map(|load| load.residual).collect::<Vec<_>>());
        for step in begin..begin + USED {
            let residuals = background.residuals(step);
            without += 1.0 / time(&ring, &residuals);
            with_loads += 1.0 / time(&adapted, &residuals);
        }
    }
    (without, with_loads)
}
