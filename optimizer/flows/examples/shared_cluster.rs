//! All-reduces of many jobs in a cluster of 768 ranks: rings in random order, rings that cross each rack once (OR), and those with a
//! spine for each edge that a controller chooses (OR + FFA: flows of all jobs in turn, each by the route with the least excess of demand).
//! Prints mean times of jobs and their ratios beside the published ones.
//!
//! `shared_cluster [JOBS] [ITERATIONS] [SEEDS] [MILLISECONDS BETWEEN ARRIVALS]`
//!
//! 16 spines and 24 leaves with 4 hosts of 8 ranks, a port of 200 Gbit/s for each rank and for each pair of leaf and spine: oversubscription
//! 2. A job of 16 or 32 ranks reduces 100 MB in each iteration. The text names no iterations; the published settings have 100. They also
//! have 8 or 16 rings for OR and OR + FFA but one for the random order, background traffic on each port (0 to 50 %, 10 % in the mean,
//! another one every 10 s; and 0 to 10 %, every 10 ms), and half of the hosts occupied where jobs are placed compactly. Their compact
//! placement takes one rank of each host, host after host, and so spreads a job over many racks.
use std::collections::{BTreeMap, VecDeque};
use tidemill_flows::patterns::{barrier, streamed_ring};
use tidemill_flows::{Flow, FlowError, FlowId, LinkId, Load, Simulation, gigabits};
use tidemill_random::{Random, mixed};

const SPINES: usize = 16;
const LEAVES: usize = 24;
const RANKS_PER_HOST: usize = 8;
const RANKS_PER_LEAF: usize = 4 * RANKS_PER_HOST;
const RANKS: usize = LEAVES * RANKS_PER_LEAF;
const PORT_GIGABITS: f64 = 200.0;
const BYTES: f64 = 100e6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strategy {
    Random,
    Locality,
    LocalityAndFlows,
}

/// Which free ranks a job gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    Random,
    /// Positions of the first leaf with room for all of it, else the first ones.
    Compact,
    /// One of each host, in order, and then another one of each.
    HostAfterHost,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    name: &'static str,
    placement: Placement,
    is_half_occupied: bool,
    has_background: bool,
    /// Rings of a job whose ring has an order: each with its part of the bytes, and its own spines. Rings in random order are alone.
    rings: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) jobs: usize,
    pub(crate) iterations: usize,
    pub(crate) between: f64,
    pub(crate) seed: u64,
}

/// The links of each rank, and of each pair of leaf and spine.
struct Cluster {
    from_rank: Vec<LinkId>,
    to_rank: Vec<LinkId>,
    up: Vec<Vec<LinkId>>,
    down: Vec<Vec<LinkId>>,
}

impl Cluster {
    fn new(simulation: &mut Simulation, setting: Setting, seed: u64) -> Result<Self, FlowError> {
        let mut ports = |count: usize| {
            (0..count).map(|_| simulation.link(gigabits(PORT_GIGABITS))).collect::<Result<Vec<_>, _>>()
        };
        let (from_rank, to_rank) = (ports(RANKS)?, ports(RANKS)?);
        let up = (0..LEAVES).map(|_| ports(SPINES)).collect::<Result<Vec<_>, _>>()?;
        let down = (0..LEAVES).map(|_| ports(SPINES)).collect::<Result<Vec<_>, _>>()?;
        if setting.has_background {
            for &link in
                from_rank.iter().chain(&to_rank).chain(up.iter().flatten()).chain(down.iter().flatten())
            {
                let own = mixed(seed ^ ((link.position() as u64) << 20));
                simulation.background(link, move |now| background(own, now))?;
            }
        }
        Ok(Self { from_rank, to_rank, up, down })
    }

    fn route(&self, from: usize, to: usize, spine: usize) -> Vec<LinkId> {
        let (one, other) = (leaf(from), leaf(to));
        if from / RANKS_PER_HOST == to / RANKS_PER_HOST {
            Vec::new()
        } else if one == other {
            vec![self.from_rank[from], self.to_rank[to]]
        } else {
            vec![self.from_rank[from], self.up[one][spine], self.down[other][spine], self.to_rank[to]]
        }
    }
}

fn leaf(rank: usize) -> usize {
    rank / RANKS_PER_LEAF
}

/// Returns the part of a port that others use: tens of percent with probabilities that fall by a power, and some percent more.
fn background(own: u64, now: f64) -> Load {
    const TICK: f64 = 0.01;
    let tick = (now / TICK + 0.5).floor();
    let mut slow = Random::of_seed(own ^ mixed((tick / 1000.0) as u64));
    let weights: Vec<f64> = (1..=6u32).map(|tens| f64::from(tens).powf(-1.5)).collect();
    let mut drawn = slow.unit() * weights.iter().sum::<f64>();
    let mut tens = 0usize;
    while tens < 5 && drawn >= weights[tens] {
        drawn -= weights[tens];
        tens += 1;
    }
    let part = tens as f64 / 10.0 + 0.1 * Random::of_seed(own ^ mixed(tick as u64 + (1 << 40))).unit();
    Load { rate: part * gigabits(PORT_GIGABITS), until: (tick + 1.0) * TICK }
}

/// A job that runs.
struct Job {
    ring: Vec<usize>,
    /// The spine of each edge, for each ring.
    spines: Vec<Vec<usize>>,
    began: f64,
    left: usize,
    /// Flows of the iteration, ring by ring.
    flows: Vec<FlowId>,
}

struct Run<'a> {
    options: &'a Options,
    strategy: Strategy,
    simulation: Simulation,
    cluster: Cluster,
    free: Vec<usize>,
    queue: VecDeque<(usize, usize)>,
    running: BTreeMap<usize, Job>,
    /// The job whose iteration ends with a flow.
    ends: BTreeMap<FlowId, usize>,
    seconds: Vec<f64>,
    setting: Setting,
    rings: usize,
}

impl Run<'_> {
    /// Starts the jobs that wait, as far as there are ranks.
    fn place(&mut self) -> Result<(), FlowError> {
        while let Some(&(job, size)) = self.queue.front() {
            if self.free.len() < size {
                return Ok(());
            }
            self.queue.pop_front();
            let mut random = Random::of_seed(mixed(self.options.seed) ^ mixed(job as u64 + 1));
            let mut ring = self.ranks(size, &mut random);
            self.free.retain(|rank| !ring.contains(rank));
            shuffle(&mut ring, &mut random);
            if self.strategy != Strategy::Random {
                ring.sort_by_key(|&rank| rank / RANKS_PER_HOST);
            }
            let spines =
                (0..self.rings).map(|_| ring.iter().map(|_| random.below(SPINES)).collect()).collect();
            let began = self.simulation.now();
            let left = self.options.iterations;
            self.running.insert(job, Job { ring, spines, began, left, flows: Vec::new() });
            self.choose_spines()?;
            self.iterate(job)?;
        }
        Ok(())
    }

    /// Returns free ranks for a job.
    fn ranks(&self, size: usize, random: &mut Random) -> Vec<usize> {
        let mut free = self.free.clone();
        match self.setting.placement {
            Placement::Random => shuffle(&mut free, random),
            Placement::Compact => {
                let room = |leaf: usize| free.iter().filter(|&&rank| self::leaf(rank) == leaf).count();
                if let Some(leaf) = (0..LEAVES).find(|&leaf| room(leaf) >= size) {
                    free.retain(|&rank| self::leaf(rank) == leaf);
                }
            }
            Placement::HostAfterHost => {
                let host = |rank: usize| rank / RANKS_PER_HOST;
                let turn = |&rank: &usize| {
                    free.iter().filter(|&&other| host(other) == host(rank) && other < rank).count()
                };
                let turns: BTreeMap<usize, usize> = free.iter().map(|rank| (*rank, turn(rank))).collect();
                free.sort_by_key(|rank| (turns[rank], *rank));
            }
        }
        free.truncate(size);
        free
    }

    /// Begins an iteration of a job.
    fn iterate(&mut self, number: usize) -> Result<(), FlowError> {
        let Some(job) = self.running.get_mut(&number) else { return Ok(()) };
        let members = job.ring.len();
        job.flows.clear();
        for spines in &job.spines {
            let routes: Vec<_> = (0..members)
                .map(|edge| self.cluster.route(job.ring[edge], job.ring[(edge + 1) % members], spines[edge]))
                .collect();
            let bytes = BYTES / self.rings as f64;
            job.flows.extend(streamed_ring(&mut self.simulation, &routes, bytes, 2 * (members - 1), &[])?);
        }
        let end = barrier(&mut self.simulation, &job.flows)?;
        self.ends.insert(end, number);
        Ok(())
    }

    /// Gives each edge between leaves the spine with the least excess of demand over capacity: an edge of each job, then the next one of
    /// each. Edges that run are moved.
    fn choose_spines(&mut self) -> Result<(), FlowError> {
        if self.strategy != Strategy::LocalityAndFlows {
            return Ok(());
        }
        let (mut up, mut down) = ([[0usize; SPINES]; LEAVES], [[0usize; SPINES]; LEAVES]);
        let most = self.running.values().map(|job| job.ring.len()).max().unwrap_or(0);
        for edge in 0..most {
            for job in self.running.values_mut().filter(|job| job.ring.len() > edge) {
                let members = job.ring.len();
                let (from, to) = (job.ring[edge], job.ring[(edge + 1) % members]);
                let (one, other) = (leaf(from), leaf(to));
                if one == other {
                    continue;
                }
                for ring in 0..self.rings {
                    // Demands are parts of a port: as many as there are rings fill it.
                    let excess = |taken: usize| (taken + 1).saturating_sub(self.rings);
                    let cost = |&spine: &usize| {
                        let (up, down) = (up[one][spine], down[other][spine]);
                        (excess(up).max(excess(down)), up.max(down), spine != job.spines[ring][edge])
                    };
                    let spine = (0..SPINES).min_by_key(cost).unwrap_or_default();
                    up[one][spine] += 1;
                    down[other][spine] += 1;
                    if std::mem::replace(&mut job.spines[ring][edge], spine) != spine
                        && let Some(&flow) = job.flows.get(ring * members + edge)
                    {
                        self.simulation.reroute(flow, &self.cluster.route(from, to, spine))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts an iteration of a job.
    fn iteration_ended(&mut self, number: usize) -> Result<(), FlowError> {
        let Some(job) = self.running.get_mut(&number) else { return Ok(()) };
        job.left -= 1;
        if job.left > 0 {
            return self.iterate(number);
        }
        if let Some(job) = self.running.remove(&number) {
            self.seconds[number] = self.simulation.now() - job.began;
            self.free.extend(job.ring);
            self.free.sort_unstable();
        }
        self.choose_spines()?;
        self.place()
    }
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last + 1));
    }
}

/// Returns the seconds of each job.
fn simulate(options: &Options, setting: Setting, strategy: Strategy) -> Result<Vec<f64>, FlowError> {
    let mut simulation = Simulation::default();
    let cluster = Cluster::new(&mut simulation, setting, options.seed)?;
    let mut random = Random::of_seed(options.seed);
    let mut hosts: Vec<usize> = (0..RANKS / RANKS_PER_HOST).collect();
    shuffle(&mut hosts, &mut random);
    hosts.truncate(if setting.is_half_occupied { hosts.len() / 2 } else { hosts.len() });
    hosts.sort_unstable();
    let free = hosts.iter().flat_map(|host| host * RANKS_PER_HOST..(host + 1) * RANKS_PER_HOST).collect();
    let mut arrivals = BTreeMap::new();
    let mut at = 0.0;
    for job in 0..options.jobs {
        at -= options.between * (1.0 - random.unit()).ln();
        let size = if random.chance(0.5) { 16 } else { 32 };
        arrivals.insert(simulation.flow(Flow::pause(0.0).at(at))?, (job, size));
    }
    let (queue, running, ends) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
    let seconds = vec![0.0; options.jobs];
    let rings = if strategy == Strategy::Random { 1 } else { setting.rings };
    #[rustfmt::skip]
    let mut run = Run { options, strategy, simulation, cluster, free, queue, running, ends, seconds, setting, rings };
    while let Some(ended) = run.simulation.advance()? {
        for flow in ended.flows {
            if let Some(arrival) = arrivals.remove(&flow) {
                run.queue.push_back(arrival);
                run.place()?;
            } else if let Some(job) = run.ends.remove(&flow) {
                run.iteration_ended(job)?;
            }
        }
    }
    Ok(run.seconds)
}

/// Settings, and the published ratios.
pub(crate) fn settings() -> [(Setting, [f64; 2]); 9] {
    let random = Setting {
        name: "random placement, as printed",
        placement: Placement::Random,
        is_half_occupied: false,
        has_background: false,
        rings: 1,
    };
    let compact = Setting { name: "compact, as printed", placement: Placement::Compact, ..random };
    let half = Setting { name: "compact, half occupied", is_half_occupied: true, ..compact };
    let by_host =
        Setting { name: "host after host, half occupied", placement: Placement::HostAfterHost, ..half };
    let (of_random, of_compact) = ([2.6, 3.3], [3.3, 3.4]);
    [
        (random, of_random),
        (Setting { name: "random placement, 8 rings", rings: 8, ..random }, of_random),
        (Setting { name: "random placement, background", has_background: true, ..random }, of_random),
        (Setting { name: "random placement, both", rings: 8, has_background: true, ..random }, of_random),
        (compact, of_compact),
        (half, of_compact),
        (
            Setting { name: "compact, half occupied, both", rings: 16, has_background: true, ..half },
            of_compact,
        ),
        (by_host, of_compact),
        (Setting { name: "host after host, both", rings: 16, has_background: true, ..by_host }, of_compact),
    ]
}

/// Returns the mean seconds of a job with rings in random order, with OR, and with OR + FFA.
pub(crate) fn means(options: &Options, seeds: u64, setting: Setting) -> Result<[f64; 3], FlowError> {
    let mut means = [0.0; 3];
    for seed in 0..seeds {
        let options = Options { seed, ..*options };
        let strategies = [Strategy::Random, Strategy::Locality, Strategy::LocalityAndFlows];
        for (mean, strategy) in means.iter_mut().zip(strategies) {
            let seconds = simulate(&options, setting, strategy)?;
            *mean += seconds.iter().sum::<f64>() / (options.jobs as f64 * seeds as f64);
        }
    }
    Ok(means)
}

/// Prints a table. The arguments are those of the program.
pub(crate) fn compare(arguments: &[f64]) -> Result<(), FlowError> {
    let argument = |position: usize, without: f64| arguments.get(position).copied().unwrap_or(without);
    let (jobs, iterations) = (argument(0, 50.0) as usize, (argument(1, 100.0) as usize).max(1));
    let (seeds, between) = (argument(2, 1.0) as u64, argument(3, 200.0) / 1e3);
    let options = Options { jobs, iterations, between, seed: 0 };
    println!(
        "{jobs} jobs of {iterations} iterations, {} ms between arrivals, means of {seeds} seeds",
        between * 1e3
    );
    println!("{:36}    random         OR     OR+FFA     OR  OR+FFA   published", "");
    for (setting, published) in settings() {
        let [random, locality, flows] = means(&options, seeds, setting)?;
        println!(
            "{:36} {random:7.3} s  {locality:7.3} s  {flows:7.3} s {:5.2}x  {:5.2}x   {}x {}x",
            setting.name,
            random / locality,
            random / flows,
            published[0],
            published[1]
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<f64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    Ok(compare(&arguments)?)
}
