//! Divides the work of a group of identical workers among them.
use super::{Part, RealiseError, SMALL_SHARE, WorkerGroup};
use crate::problem::Problem;
use crate::queueing::{decay_rate, effective_seconds};
use tidemill_random::Random;

/// Tolerated excess over a worker's cap: rounding of the solver.
const TOLERANCE: f64 = 5e-7;

/// Orders of packing models into the memory of workers before it is reported as too small.
const PACKINGS: u32 = 200;

/// A part with the demand of its whole share on one worker.
#[derive(Debug, Clone, Copy)]
struct Work {
    part: Part,
    /// Workers that the part needs: under the utilisation cap, under the waiting-time bound.
    loads: [f64; 2],
    memory: f64,
}

/// Parts per worker. Wrap-around (fill a worker, split the operator at its border, continue with the next) in several
/// orders hosts few operators twice. Where the models then do not fit, they are packed in many orders by time and
/// memory; the last resort gives each worker an equal part of all.
pub(super) fn deal(
    problem: &Problem,
    variants: &[usize],
    group: &WorkerGroup,
) -> Result<Vec<Vec<Part>>, RealiseError> {
    let class = &problem.worker_classes[group.class];
    let percentile = problem.limits.latency.iter().map(|limit| limit.percentile).fold(0.0, f64::max);
    let work: Vec<Work> = group
        .parts
        .iter()
        .filter(|part| part.share > SMALL_SHARE)
        .map(|&part| {
            let operator = &problem.operators[part.operator];
            let mode = &operator.variants[variants[part.operator]].modes[group.class][part.mode];
            let rate = operator.rate * part.share;
            let wait = group.wait_seconds.map_or(0.0, |wait| {
                effective_seconds(mode, decay_rate(wait, percentile)).map_or(f64::INFINITY, |a| rate * a)
            });
            let load = rate * mode.seconds_per_record / problem.limits.max_utilization;
            Work { part, loads: [load, wait], memory: mode.memory_bytes }
        })
        .collect();
    let fits = |dealt: &[Vec<Part>]| {
        class.memory_bytes.is_none_or(|memory| {
            dealt.iter().all(|parts| {
                let used: f64 = parts
                    .iter()
                    .filter_map(|part| {
                        let is = |w: &&Work| w.part.operator == part.operator && w.part.mode == part.mode;
                        work.iter().find(is).map(|work| work.memory)
                    })
                    .sum();
                used <= memory * (1.0 + 1e-12)
            })
        })
    };
    let heaviest = |work: &Work| work.loads[0].max(work.loads[1]);
    let mut orders: Vec<Vec<Work>> = vec![work.clone(); 4];
    orders[0].sort_by(|a, b| heaviest(b).total_cmp(&heaviest(a)));
    orders[1].sort_by(|a, b| heaviest(a).total_cmp(&heaviest(b)));
    orders[2].sort_by(|a, b| b.memory.total_cmp(&a.memory));
    let mut is_light_enough = false;
    for order in &orders {
        if let Some(dealt) = wrap_around(order, group.count) {
            if fits(&dealt) {
                return Ok(dealt);
            }
            is_light_enough = true;
        }
    }
    if let Some(memory) = class.memory_bytes.filter(|_| is_light_enough) {
        let mut order = work.clone();
        order.sort_by(|a, b| b.memory.total_cmp(&a.memory));
        let mut random = Random::of_seed(0);
        for _ in 0..PACKINGS {
            if let Some(dealt) = packed(&order, group.count, memory) {
                return Ok(dealt);
            }
            for end in (1..order.len()).rev() {
                order.swap(end, random.below(end + 1));
            }
        }
    }
    let workers = f64::from(group.count.max(1));
    let totals = [0, 1].map(|kind| work.iter().map(|work| work.loads[kind]).sum::<f64>() / workers);
    if totals.iter().all(|load| *load <= 1.0 + TOLERANCE) {
        let parts: Vec<Part> =
            work.iter().map(|work| Part { share: work.part.share / workers, ..work.part }).collect();
        let dealt = vec![parts; group.count as usize];
        if fits(&dealt) {
            return Ok(dealt);
        }
        is_light_enough = true;
    }
    let (class, count) = (group.class, group.count);
    Err(if is_light_enough {
        RealiseError::Memory { class, count }
    } else {
        RealiseError::Load { class, count }
    })
}

/// Worker by worker, each takes the parts in this order while it has time and memory; none where something is left. A
/// worker's last part is split where its time ends.
fn packed(order: &[Work], count: u32, memory: f64) -> Option<Vec<Vec<Part>>> {
    let mut left = vec![1.0f64; order.len()]; // of each part
    let mut dealt = Vec::new();
    for _ in 0..count {
        let mut parts = Vec::new();
        let mut used = [0.0f64; 2];
        let mut held = 0.0;
        for (work, left) in order.iter().zip(&mut left) {
            if *left * work.part.share <= SMALL_SHARE || held + work.memory > memory * (1.0 + 1e-12) {
                continue;
            }
            let room = |kind: usize| match work.loads[kind] {
                load if load > 0.0 => (1.0 + TOLERANCE - used[kind]) / load,
                _ => f64::INFINITY,
            };
            let taken = room(0).min(room(1)).min(*left);
            let share = taken * work.part.share;
            if share > SMALL_SHARE {
                parts.push(Part { share, ..work.part });
                used = [0, 1].map(|kind| used[kind] + taken * work.loads[kind]);
                held += work.memory;
                *left -= taken;
            }
        }
        dealt.push(parts);
    }
    let is_done = order.iter().zip(&left).all(|(work, left)| left * work.part.share <= SMALL_SHARE);
    is_done.then_some(dealt)
}

fn wrap_around(order: &[Work], count: u32) -> Option<Vec<Vec<Part>>> {
    let mut dealt: Vec<Vec<Part>> = vec![Vec::new()];
    let mut used = [0.0f64; 2];
    for work in order {
        let mut left = 1.0f64; // of the part
        while left > 0.0 {
            // The share of the part that fits.
            let room = |kind: usize| {
                if work.loads[kind] <= 0.0 {
                    f64::INFINITY
                } else {
                    (1.0 + TOLERANCE - used[kind]) / work.loads[kind]
                }
            };
            let taken = room(0).min(room(1)).min(left);
            let share = taken * work.part.share;
            let is_last = dealt.len() >= count as usize;
            if share > SMALL_SHARE {
                dealt.last_mut()?.push(Part { share, ..work.part });
                used = [0, 1].map(|kind| used[kind] + taken * work.loads[kind]);
                left -= taken;
            }
            if left * work.part.share <= SMALL_SHARE {
                break;
            }
            if is_last {
                return None;
            }
            dealt.push(Vec::new());
            used = [0.0; 2];
        }
    }
    Some(dealt)
}
