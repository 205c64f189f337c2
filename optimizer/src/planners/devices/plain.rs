//! A part of a problem as one without devices.
//!
//! A model that runs on devices of one class is an operator of its own there, which takes the input tensors from the
//! stage. The output tensors come from a source at the device ([`Source::replies`]): no stream leads in a circle. The
//! time on the device is part of the stage's call. The operator on the device has the capacity that keeps the wait of
//! the part, as its seconds of a record.
//!
//! Where the part leaves several options, the stage has the modes of all of them, each at no wait; the operator on the
//! device has the least figures of all, and is left out where its device is open.
use super::part::{Choice, Part};
use crate::problem::{
    AccuracyModel, Case, Edge, LatencyLimit, Operator, Problem, Producer, Remote, ResponseRow, ServiceMode,
    Source, Variant,
};
use crate::queueing::{decay_rate, effective_seconds};
use crate::solution::{Hosting, OnDevice, RouteClass, Solution};
use std::collections::{BTreeMap, BTreeSet};

/// The problem of a part.
#[derive(Debug, Clone)]
pub(super) struct Plain<'a> {
    pub(super) problem: Problem,
    part: &'a Part,
    /// The part's variants among those of the whole.
    case: Case,
    /// Position of the mode in the whole, and its option, by operator, variant of the whole, class and mode.
    modes: BTreeMap<(usize, usize, usize, usize), (usize, Choice)>,
    /// The operator on the device, by operator.
    on_device: BTreeMap<usize, usize>,
}

impl<'a> Plain<'a> {
    /// None: some operator runs nowhere, or a device does not keep its wait.
    pub(super) fn new(whole: &Problem, part: &'a Part) -> Option<Self> {
        let mut case = Case::whole(whole);
        let mut modes = BTreeMap::new();
        for operator in 0..whole.operators.len() {
            let is_local = part.options[operator].contains(&None);
            let runs = |variant: usize| {
                let options = part.options[operator].iter().flatten();
                is_local || options.into_iter().any(|run| part.runs.0[operator][*run].0 == variant)
            };
            case = case.with(operator, runs);
        }
        let mut problem = case.problem.clone();
        for (index, operator) in problem.operators.iter_mut().enumerate().filter(|(_, of)| !of.weightless) {
            for (variant, of) in operator.variants.iter_mut().enumerate() {
                let variant = case.variants[index][variant];
                for (class, of) in of.modes.iter_mut().enumerate() {
                    let from = whole.worker_classes[class].location;
                    let mut kept: Vec<ServiceMode> = Vec::new();
                    for (position, mode) in of.iter().enumerate() {
                        let option = match &mode.remote {
                            None => None,
                            Some(remote) => Some(part.runs.position(index, variant, remote)?),
                        };
                        if !part.options[index].contains(&option) {
                            continue;
                        }
                        let Some(mode) = stage(whole, part, from, mode) else { continue };
                        modes.insert((index, variant, class, kept.len()), (position, option));
                        kept.push(mode);
                    }
                    *of = kept;
                }
            }
            let runs = |variant: &Variant| variant.modes.iter().any(|modes| !modes.is_empty());
            if !operator.variants.iter().any(runs) {
                return None;
            }
        }
        let mut plain = Self { problem, part, case, modes, on_device: BTreeMap::new() };
        let last = plain.problem.last_operators();
        for operator in 0..whole.operators.len() {
            if let Some(class) = part.class_of(operator) {
                plain.add_device(whole, operator, class, last.contains(&operator))?;
            }
        }
        if !plain.on_device.is_empty() {
            // Operators on devices are at the end of streams, and of no path.
            let limits = std::mem::take(&mut plain.problem.limits.latency);
            plain.problem.limits.latency = limits
                .into_iter()
                .flat_map(|limit| match limit.sink {
                    Some(_) => vec![limit],
                    None => {
                        last.iter().map(|sink| LatencyLimit { sink: Some(*sink), ..limit.clone() }).collect()
                    }
                })
                .collect();
        }
        Some(plain)
    }

    /// Adds the operator that runs on the devices of a class, with its traffic.
    fn add_device(&mut self, whole: &Problem, operator: usize, class: usize, is_last: bool) -> Option<()> {
        let runs: Vec<&(usize, Remote)> = self.part.options[operator]
            .iter()
            .flatten()
            .map(|run| &self.part.runs.0[operator][*run])
            .collect();
        let least =
            |of: &dyn Fn(&Remote) -> f64| runs.iter().map(|(_, run)| of(run)).fold(f64::INFINITY, f64::min);
        let seconds =
            least(&|remote| capacity(whole, self.part, class, &remote.run).unwrap_or(f64::INFINITY));
        if !seconds.is_finite() {
            return None;
        }
        let run = ServiceMode {
            seconds_per_record: seconds,
            memory_bytes: least(&|remote| remote.run.memory_bytes),
            ..ServiceMode::constant(0.0)
        };
        let sent: Vec<f64> = self.case.variants[operator]
            .iter()
            .map(|variant| {
                let own = runs.iter().filter(|(of, _)| of == variant).map(|(_, run)| run.sent_bytes);
                own.fold(f64::INFINITY, f64::min)
            })
            .collect();
        let received = least(&|remote| remote.received_bytes);
        let problem = &mut self.problem;
        let added = problem.operators.len();
        let rate = problem.operators[operator].rate;
        let id =
            format!("{} on {}", problem.operators[operator].id, problem.worker_classes[class].worker_type);
        let mut modes = vec![Vec::new(); problem.worker_classes.len()];
        modes[class] = vec![run];
        let input = problem.inputs_of(operator).len();
        problem.operators.push(Operator {
            id: id.clone(),
            rate,
            variants: vec![Variant { id: id.clone(), modes }],
            weightless: false,
            stateful: false,
            follows_event_time: false,
            on_one_worker: false,
            survive: 0,
            fused: Vec::new(),
        });
        let source = problem.sources.len();
        let locations = vec![(problem.worker_classes[class].location, 1.0)];
        problem.sources.push(Source { id, rate, locations, at_one_time: 1, replies: true });
        problem.edges.push(Edge {
            from: Producer::Operator(operator),
            to: added,
            input: 0,
            rate,
            bytes: sent,
        });
        let bytes = vec![received];
        problem.edges.push(Edge { from: Producer::Source(source), to: operator, input, rate, bytes });
        if let Some(rates) = &mut problem.rates {
            rates.groups.push(vec![0]);
            for case in &mut rates.cases {
                let rate = case.operators[operator];
                case.operators.push(rate);
                case.edges.extend([rate, rate]);
            }
        }
        match &mut problem.accuracy {
            AccuracyModel::None => {}
            AccuracyModel::Table(rows) => rows.iter_mut().for_each(|row| row.variants.push(0)),
            AccuracyModel::Additive { contributions, .. } => contributions.push(vec![0.0]),
            AccuracyModel::RowLookup(tables) => {
                tables[operator].iter_mut().flatten().for_each(|row| row.inputs.push(0.0));
                // It stands for the operator where that was at the end, and otherwise is no end that counts.
                let row = ResponseRow { inputs: vec![0.0], output: 100.0 };
                tables.push(vec![if is_last { Vec::new() } else { vec![row] }]);
            }
        }
        self.on_device.insert(operator, added);
        Some(())
    }

    /// Joint variants of the whole as those of the part, where it has them.
    pub(super) fn excluded(&self, excluded: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let of_part = |joint: &Vec<usize>| {
            let mut own = self.case.of_part(joint)?;
            own.resize(self.problem.operators.len(), 0);
            Some(own)
        };
        excluded.iter().filter_map(of_part).collect()
    }

    /// The options that a solution uses, by operator.
    pub(super) fn used(&self, solution: &Solution) -> Vec<BTreeSet<Choice>> {
        let mut used = vec![BTreeSet::new(); self.part.options.len()];
        for hosting in solution.hostings.iter().filter(|hosting| hosting.operator < self.part.options.len()) {
            used[hosting.operator].insert(self.mode(solution, hosting).1);
        }
        used
    }

    /// Position of a hosting's mode in the whole, and its option.
    fn mode(&self, solution: &Solution, hosting: &Hosting) -> (usize, Choice) {
        let Some(worker) = hosting.worker else { return (hosting.mode, None) };
        let variant = self.case.variants[hosting.operator][solution.variants[hosting.operator]];
        let class = solution.workers[worker].class;
        let key = (hosting.operator, variant, class, hosting.mode);
        self.modes.get(&key).copied().unwrap_or((hosting.mode, None))
    }

    /// Converts a solution that uses no open option to the whole: a stage for each device that serves it.
    pub(super) fn of_whole(&self, whole: &Problem, solution: Solution) -> Solution {
        let operators = whole.operators.len();
        let mut hostings: Vec<Hosting> = Vec::new();
        let mut known: BTreeMap<(usize, Option<usize>), usize> = BTreeMap::new();
        let mut classes: Vec<RouteClass> = Vec::new();
        for class in &solution.classes {
            let mut own = Vec::with_capacity(operators);
            for (operator, &position) in class.hostings[..operators].iter().enumerate() {
                let hosting = &solution.hostings[position];
                let (mode, _) = self.mode(&solution, hosting);
                let device = self.on_device.get(&operator);
                let device = device.and_then(|on| solution.hostings[class.hostings[*on]].worker);
                let index = *known.entry((position, device)).or_insert_with(|| {
                    let device = device.map(|worker| OnDevice {
                        worker,
                        wait_seconds: self.part.waits.get(&solution.workers[worker].class).copied(),
                    });
                    hostings.push(Hosting { mode, share: 0.0, device, ..hosting.clone() });
                    hostings.len() - 1
                });
                hostings[index].share += class.share;
                own.push(index);
            }
            let sources = class.sources[..whole.sources.len()].to_vec();
            let same = |other: &&mut RouteClass| other.sources == sources && other.hostings == own;
            match classes.iter_mut().find(same) {
                Some(same) => same.share += class.share,
                None => classes.push(RouteClass { share: class.share, sources, hostings: own }),
            }
        }
        let variants = self.case.variants.iter().zip(&solution.variants).map(|(of, variant)| of[*variant]);
        Solution {
            variants: variants.collect(),
            workers: solution.workers,
            hostings,
            classes,
            fallbacks: Vec::new(),
        }
    }
}

/// The mode of a stage, with the time of its device; none where no route leads to the device and back.
fn stage(whole: &Problem, part: &Part, from: usize, mode: &ServiceMode) -> Option<ServiceMode> {
    let Some(remote) = &mode.remote else { return Some(mode.clone()) };
    let way = whole.way(from, remote)?;
    let wait = part.waits.get(&remote.class).copied().unwrap_or(0.0);
    let away = way.round_trip + way.transfer + remote.run.call_seconds + wait;
    Some(ServiceMode { call_seconds: mode.call_seconds + away, remote: None, ..mode.clone() })
}

/// Seconds of a device per record such that a device that is no busier than allowed keeps its wait; none where no load
/// keeps it.
fn capacity(whole: &Problem, part: &Part, class: usize, run: &ServiceMode) -> Option<f64> {
    let Some(wait) = part.waits.get(&class) else { return Some(run.seconds_per_record) };
    let percentile = whole.limits.latency.iter().map(|limit| limit.percentile).fold(0.0, f64::max);
    let effective = effective_seconds(run, decay_rate(*wait, percentile))?;
    Some(run.seconds_per_record.max(effective * whole.limits.max_utilization))
}
