//! Finds variants that cannot be part of a cheaper plan: each is fixed in turn, and removed where even the relaxation
//! then costs too much (probing, Savelsbergh 1994).
use super::live::{Live, NotLive};
use super::model::{Allowed, Model};
use super::program::SolverForm;
use super::tuning::{LONGEST_PROBE, MOST_PROBED};

/// The allowed variants without those with which every plan costs at least `cutoff`, in $/h. None where all may be part
/// of a cheaper plan, or that was not determined. The variants of the point stay.
pub(super) fn without_expensive(
    model: &Model,
    point: &[f64],
    cutoff: f64,
    seconds: impl Fn() -> f64,
) -> Option<Allowed> {
    if model.binaries.iter().flatten().flatten().count() > MOST_PROBED {
        return None;
    }
    let mut program = model.program.clone();
    program.cheaper_than(cutoff);
    let form = SolverForm::of(&program, true)?;
    let mut live = Live::new(&form, seconds().min(LONGEST_PROBE)).ok()?;
    let mut allowed = model.allowed.clone();
    let mut is_smaller = false;
    for (operator, binaries) in model.binaries.iter().enumerate() {
        for (variant, binary) in binaries.iter().enumerate() {
            let Some(binary) = *binary else { continue };
            let Some(value) = live.value(&form, binary) else { continue };
            if point[binary] > 0.5 || value > 0.999 {
                continue; // it stays; or the relaxation itself is such a plan as far as it knows
            }
            if seconds() <= 0.0 {
                return None;
            }
            let is_expensive = match live.clone().fixed(&form, binary, 1.0) {
                Ok(live) => live.cost(&form) >= cutoff,
                Err(NotLive::Infeasible) => true,
                Err(NotLive::Unknown) => false,
            };
            if is_expensive {
                allowed.variants[operator][variant] = false;
                is_smaller = true;
                live = live.fixed(&form, binary, 0.0).ok()?;
            }
        }
    }
    if let Some(list) = &mut allowed.list {
        list.retain(|joint| joint.iter().zip(&allowed.variants).all(|(&variant, of)| of[variant]));
    }
    is_smaller.then_some(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::small_problem;
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::exact::prepared::{LatencyRule, MemoryRule, Prepared};
    use crate::planners::exact::variants::{Candidates, candidates};
    use crate::planners::exhaustive::Exhaustive;

    /// The variants of the cheapest plan are never removed where it is cheaper than the cutoff; many others are.
    #[test]
    fn the_cheapest_plan_stays_possible() {
        let (mut kept, mut out) = (0, 0);
        for seed in 1..=150 {
            let problem = small_problem(seed);
            let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
            let Ok(prepared) = Prepared::new(&problem, &rules, LatencyRule::Plan, 1.0) else { continue };
            let cheapest = Exhaustive.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
            let (Some(cost), Some(plan)) = (cheapest.cost, cheapest.solution) else { continue };
            let Candidates::Many(all) = candidates(&prepared, &[], 0) else { continue };
            let variants = || all.variants.iter().zip(&plan.variants);
            if !variants().all(|(of, &chosen)| of[chosen]) {
                continue; // one as good stands for it
            }
            let model = Model::new(&prepared, &all);
            let nowhere = vec![0.0; model.program.len()];
            let Some(left) = without_expensive(&model, &nowhere, cost * 1.0001, || f64::INFINITY) else {
                continue;
            };
            assert!(left.variants.iter().zip(&plan.variants).all(|(of, &chosen)| of[chosen]), "seed {seed}");
            assert!(left.variants.iter().all(|of| of.contains(&true)), "seed {seed}");
            let count = |allowed: &Allowed| allowed.variants.iter().flatten().filter(|is| **is).count();
            kept += count(&left);
            out += count(&all) - count(&left);
        }
        assert!(kept > 30 && out > 30, "{kept} kept, {out} left out");
    }
}
