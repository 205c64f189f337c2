//! Selects the joint variants to consider.
//!
//! If a variant is no slower on any worker, needs no more memory and sends no larger messages than another, then every
//! plan with the other is feasible with it, at no more cost. So only accepted joint variants that no other accepted one
//! beats at every operator can be part of the cheapest plan.
use super::model::Allowed;
use super::prepared::{Choice, Prepared};
use super::tuning::{MOST_COMPARED, MOST_LISTED, MOST_ROWS_OF_VARIANTS};
use crate::problem::AccuracyModel;
use crate::queueing::is_never_longer;
use std::collections::BTreeSet;

/// The remaining joint variants.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Candidates {
    /// These joint variants, one by one.
    Few(Vec<Vec<usize>>),
    /// All of these together in one program.
    Many(Allowed),
}

/// The candidates, without those excluded; at most `few` are returned one by one.
pub(super) fn candidates(prepared: &Prepared<'_>, excluded: &[Vec<usize>], few: usize) -> Candidates {
    let problem = prepared.problem;
    let beats = dominance(prepared);
    let runs: Vec<Vec<bool>> = (0..problem.operators.len())
        .map(|v| {
            let variants = 0..problem.operators[v].variants.len();
            variants.map(|m| prepared.choices[v].iter().any(|choice| choice.variant == m)).collect()
        })
        .collect();
    let is_open =
        |joint: &Vec<usize>| joint.iter().enumerate().all(|(v, &m)| runs[v][m]) && !excluded.contains(joint);
    let listed: Option<Vec<Vec<usize>>> = match &problem.accuracy {
        AccuracyModel::Table(rows) if problem.limits.accuracy.is_some() => {
            let accepted = rows.iter().map(|row| row.variants.clone()).filter(|joint| problem.accepts(joint));
            Some(accepted.filter(is_open).collect::<BTreeSet<_>>().into_iter().collect())
        }
        _ if problem.limits.accuracy.is_none() && excluded.is_empty() => None,
        _ if problem.joint_variants() <= MOST_LISTED => {
            Some(product(&runs).into_iter().filter(|joint| problem.accepts(joint)).filter(is_open).collect())
        }
        _ => None,
    };
    match listed {
        Some(listed) => {
            let left = undominated(listed, &beats);
            if left.len() <= few {
                return Candidates::Few(left);
            }
            let of = |v: usize, m: usize| left.iter().any(|joint| joint[v] == m);
            let variants = (0..runs.len()).map(|v| (0..runs[v].len()).map(|m| of(v, m)).collect()).collect();
            let list = (left.len() <= MOST_ROWS_OF_VARIANTS).then_some(left);
            Candidates::Many(Allowed { variants, excluded: excluded.to_vec(), list })
        }
        None => {
            // Nothing couples the operators' variants: the best of each are enough; else all that run.
            let variants: Vec<Vec<bool>> = if problem.limits.accuracy.is_none() && excluded.is_empty() {
                let is_beaten = |v: usize, m: usize| {
                    (0..runs[v].len()).any(|other| runs[v][other] && is_better(&beats[v], other, m))
                };
                let left = |v: usize| (0..runs[v].len()).map(|m| runs[v][m] && !is_beaten(v, m)).collect();
                (0..runs.len()).map(left).collect()
            } else {
                runs
            };
            let count = variants.iter().map(|of| of.iter().filter(|is| **is).count() as u64);
            if count.fold(1u64, u64::saturating_mul) <= few as u64 && problem.limits.accuracy.is_none() {
                return Candidates::Few(product(&variants));
            }
            Candidates::Many(Allowed { variants, excluded: excluded.to_vec(), list: None })
        }
    }
}

/// The candidates as a list; none where they are too many.
pub(super) fn listed(prepared: &Prepared<'_>, excluded: &[Vec<usize>]) -> Option<Vec<Vec<usize>>> {
    match candidates(prepared, excluded, 0) {
        Candidates::Few(joints) => Some(joints),
        Candidates::Many(Allowed { list: Some(list), .. }) => Some(list),
        Candidates::Many(Allowed { variants, .. }) => {
            let is_free = prepared.problem.limits.accuracy.is_none() && excluded.is_empty();
            let count = variants.iter().map(|of| of.iter().filter(|is| **is).count());
            let count = count.fold(1usize, usize::saturating_mul);
            (is_free && count <= MOST_ROWS_OF_VARIANTS).then(|| product(&variants))
        }
    }
}

/// `beats[operator][m][other]`: `m` is at least as good as `other` in all costs.
fn dominance(prepared: &Prepared<'_>) -> Vec<Vec<Vec<bool>>> {
    let problem = prepared.problem;
    // Also between and beyond the waits of the program.
    let is_never_longer = |v: usize, a: &Choice, b: &Choice| {
        let mode = |choice: &Choice| {
            let class = choice.class.map(|class| prepared.classes[class].class)?;
            problem.operators[v].variants[choice.variant].modes[class].get(choice.mode)
        };
        let stands_for_others = a.class.is_some_and(|class| {
            let facts = &prepared.classes[class];
            facts.wait != facts.shortest
        });
        !stands_for_others || mode(a).zip(mode(b)).is_some_and(|(a, b)| is_never_longer(a, b))
    };
    let no_worse = |a: &Choice, b: &Choice| {
        a.class == b.class
            && a.location == b.location
            && a.load <= b.load
            && a.wait_load <= b.wait_load
            && a.latency <= b.latency
            && a.memory <= b.memory
    };
    (0..problem.operators.len())
        .map(|v| {
            let variants = 0..problem.operators[v].variants.len();
            let of = |m: usize| prepared.choices[v].iter().filter(move |choice| choice.variant == m);
            let sends_no_more = |a: usize, b: usize| {
                problem.outputs_of(v).iter().all(|&e| problem.edges[e].bytes[a] <= problem.edges[e].bytes[b])
            };
            let covers = |a: usize, b: usize| {
                let is_covered = |theirs: &Choice| {
                    of(a).any(|ours| no_worse(ours, theirs) && is_never_longer(v, ours, theirs))
                };
                of(b).all(is_covered)
            };
            let row = |a: usize| variants.clone().map(|b| sends_no_more(a, b) && covers(a, b)).collect();
            variants.clone().map(row).collect()
        })
        .collect()
}

/// Better, or as good and earlier in the list.
fn is_better(beats: &[Vec<bool>], a: usize, b: usize) -> bool {
    a != b && beats[a][b] && (!beats[b][a] || a < b)
}

fn undominated(mut joints: Vec<Vec<usize>>, beats: &[Vec<Vec<bool>>]) -> Vec<Vec<usize>> {
    // First by changing a single variant, which is quick; then pairwise.
    let all: BTreeSet<Vec<usize>> = joints.iter().cloned().collect();
    joints.retain(|joint| {
        !joint.iter().enumerate().any(|(v, &m)| {
            (0..beats[v].len()).filter(|&other| is_better(&beats[v], other, m)).any(|other| {
                let mut changed = joint.clone();
                changed[v] = other;
                all.contains(&changed)
            })
        })
    });
    if joints.len() > MOST_COMPARED {
        return joints;
    }
    let dominates = |a: &[usize], b: &[usize]| {
        let no_worse =
            |a: &[usize], b: &[usize]| a.iter().zip(b).enumerate().all(|(v, (&a, &b))| beats[v][a][b]);
        a != b && no_worse(a, b) && (!no_worse(b, a) || a < b)
    };
    let is_left = |joint: &&Vec<usize>| !joints.iter().any(|other| dominates(other, joint));
    joints.iter().filter(is_left).cloned().collect()
}

/// Every choice of one allowed variant of each operator.
pub(super) fn product(allowed: &[Vec<bool>]) -> Vec<Vec<usize>> {
    allowed.iter().fold(vec![Vec::new()], |joints, of| {
        let variants: Vec<usize> = of.iter().enumerate().filter(|(_, is)| **is).map(|(m, _)| m).collect();
        let longer = joints
            .iter()
            .flat_map(|joint: &Vec<usize>| variants.iter().map(move |&m| [joint.as_slice(), &[m]].concat()));
        longer.collect()
    })
}
