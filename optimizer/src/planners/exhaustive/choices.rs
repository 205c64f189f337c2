//! All choices of workers, and of the operators that each may run.
use crate::problem::{Problem, ServiceMode};
use crate::queueing::{decay_rate, effective_seconds};

/// Load above which a worker does not run an operator: a millionth of the records would fill it, and the solver of
/// linear programs fails on such numbers.
const MOST_LOAD: f64 = 1e6;

/// Workers in use, each with the operators that it may run.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub(super) workers: Vec<ChosenWorker>,
    /// Sum of the prices, in $/h.
    pub(super) price: f64,
}

#[derive(Debug, Clone)]
pub(super) struct ChosenWorker {
    pub(super) class: usize,
    /// Mode by operator; none: it does not run it.
    pub(super) modes: Vec<Option<usize>>,
    /// Seconds that a record may wait for it; none without latency limits.
    pub(super) wait: Option<f64>,
}

impl ChosenWorker {
    /// Load of all records of an operator on this worker, as a share of its capacity: by its time, and by the waiting
    /// time that it must keep. None where it does not run the operator or could keep the waiting time only with a
    /// negligible share of the records.
    pub(super) fn loads(&self, problem: &Problem, variants: &[usize], operator: usize) -> Option<(f64, f64)> {
        let mode = self.modes[operator]?;
        let facts = &problem.operators[operator];
        let mode = &facts.variants[variants[operator]].modes[self.class][mode];
        let time = facts.rate * mode.seconds_per_record / problem.limits.max_utilization;
        let waiting = facts.rate * seconds_that_keep(problem, mode, self.wait)?;
        (waiting <= MOST_LOAD).then_some((time, waiting))
    }
}

/// Seconds per record that count towards a waiting time; 0 without latency limits.
fn seconds_that_keep(problem: &Problem, mode: &ServiceMode, wait: Option<f64>) -> Option<f64> {
    let Some(wait) = wait else { return Some(0.0) };
    let strictest = problem.limits.latency.iter().map(|limit| limit.percentile).fold(0.0, f64::max);
    effective_seconds(mode, decay_rate(wait, strictest))
}

/// All choices that could carry the rates, by ascending price; none where they are more than `most`. Workers of a class
/// are identical, so only one order of them is tried.
pub(super) fn worker_choices(problem: &Problem, variants: &[usize], most: usize) -> Option<Vec<Choice>> {
    let mut choices = vec![Choice { workers: Vec::new(), price: 0.0 }];
    for (class, of) in problem.worker_classes.iter().enumerate() {
        let options = options_of(problem, variants, class);
        let multisets = multisets(options.len(), of.count as usize, most)?;
        let extended = choices.iter().flat_map(|choice| {
            multisets.iter().map(|chosen| {
                let mut choice = choice.clone();
                choice.price += of.price * chosen.len() as f64;
                choice.workers.extend(chosen.iter().map(|&option| options[option].clone()));
                choice
            })
        });
        choices = extended.take(most + 1).collect();
        if choices.len() > most {
            return None;
        }
    }
    choices.retain(|choice| could_carry(problem, variants, choice) && keeps_together(problem, choice));
    choices.sort_by(|a, b| a.price.total_cmp(&b.price));
    Some(choices)
}

/// All multisets of up to `count` of `options` things, each ascending.
fn multisets(options: usize, count: usize, most: usize) -> Option<Vec<Vec<usize>>> {
    let mut all = vec![Vec::new()];
    let mut longest: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..count {
        longest = longest
            .iter()
            .flat_map(|set| {
                let least = set.last().copied().unwrap_or(0);
                (least..options).map(|option| [set.as_slice(), &[option]].concat())
            })
            .collect();
        all.extend(longest.iter().cloned());
        if all.len() > most {
            return None;
        }
    }
    Some(all)
}

/// The operators that a worker of a class may run and the waits for it, without options that are worse than another in
/// everything.
fn options_of(problem: &Problem, variants: &[usize], class: usize) -> Vec<ChosenWorker> {
    if problem.limits.latency.is_empty() {
        return options_with(problem, variants, class, None);
    }
    let waits = problem.limits.waits().into_iter();
    waits.flat_map(|wait| options_with(problem, variants, class, Some(wait))).collect()
}

fn options_with(problem: &Problem, variants: &[usize], class: usize, wait: Option<f64>) -> Vec<ChosenWorker> {
    let memory = problem.worker_classes[class].memory_bytes.unwrap_or(f64::INFINITY);
    let modes = |operator: usize| {
        let operator = (&problem.operators[operator], variants[operator]);
        if operator.0.weightless { &[][..] } else { operator.0.variants[operator.1].modes[class].as_slice() }
    };
    let mut partial: Vec<(f64, Vec<Option<usize>>)> = vec![(0.0, Vec::new())];
    for operator in 0..problem.operators.len() {
        let extended = partial.iter().flat_map(|(used, chosen)| {
            let alone = problem.limits.one_operator_per_worker && chosen.iter().any(Option::is_some);
            let running = modes(operator).iter().enumerate().filter(move |_| !alone).filter_map(
                move |(index, mode)| {
                    let used = used + mode.memory_bytes;
                    (used <= memory).then(|| (used, [chosen.as_slice(), &[Some(index)]].concat()))
                },
            );
            running.chain(std::iter::once((*used, [chosen.as_slice(), &[None]].concat())))
        });
        partial = extended.collect();
    }
    let is_at_least = |operator: usize, a: Option<usize>, b: Option<usize>| match (a, b) {
        (None, None) => true,
        (Some(_), None) => !problem.operators[operator].on_one_worker,
        (None, Some(_)) => false,
        (Some(a), Some(b)) => {
            let (a, b) = (&modes(operator)[a], &modes(operator)[b]);
            let keeps = |mode| seconds_that_keep(problem, mode, wait).unwrap_or(f64::INFINITY);
            a.seconds_per_record <= b.seconds_per_record
                && (wait.is_none()
                    || a.fill_seconds + a.call_seconds <= b.fill_seconds + b.call_seconds
                        && keeps(a) <= keeps(b))
        }
    };
    let options: Vec<Vec<Option<usize>>> = partial.into_iter().map(|(_, chosen)| chosen).collect();
    let at_least_as_good = |a: &[Option<usize>], b: &[Option<usize>]| {
        (0..a.len()).all(|operator| is_at_least(operator, a[operator], b[operator]))
    };
    let is_needed = |index: usize| {
        let this = &options[index];
        this.iter().any(Option::is_some)
            && !options.iter().enumerate().any(|(other, that)| {
                other != index
                    && at_least_as_good(that, this)
                    && (other < index || !at_least_as_good(this, that))
            })
    };
    let needed = (0..options.len()).filter(|&index| is_needed(index));
    needed.map(|index| ChosenWorker { class, modes: options[index].clone(), wait }).collect()
}

/// Whether no operator that needs one worker may run on two.
fn keeps_together(problem: &Problem, choice: &Choice) -> bool {
    let of = |operator: usize| {
        choice.workers.iter().filter(move |worker| worker.modes[operator].is_some()).count()
    };
    let must = |operator: &usize| problem.operators[*operator].on_one_worker;
    (0..problem.operators.len()).filter(must).all(|operator| of(operator) <= 1)
}

/// Whether the chosen workers suffice if every record took the least time that any of them needs.
fn could_carry(problem: &Problem, variants: &[usize], choice: &Choice) -> bool {
    let seconds = |operator: usize| {
        let workers = choice.workers.iter();
        let modes = workers.filter_map(|worker| {
            let mode = worker.modes[operator]?;
            let modes = &problem.operators[operator].variants[variants[operator]].modes[worker.class];
            Some(modes[mode].seconds_per_record)
        });
        modes.reduce(f64::min)
    };
    let mut load = 0.0;
    for (index, operator) in problem.operators.iter().enumerate().filter(|(_, operator)| !operator.weightless)
    {
        let Some(seconds) = seconds(index) else { return false };
        load += operator.rate * seconds;
    }
    load <= choice.workers.len() as f64 * problem.limits.max_utilization * (1.0 + 1e-9)
}
