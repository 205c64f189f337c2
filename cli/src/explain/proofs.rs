//! Costs in words, with what is proven of them.
use super::asking::{Asked, Section};
use crate::plan::dollars;
use serde_json::{Value, json};
use tidemill_optimizer::explain::{LevelPrice, LossPrice, Open, PRINTED, PercentileCost};
use tidemill_optimizer::problem::Problem;

/// The least cost that is proven, where it is printed differently from the cost of the plan found.
pub(super) fn unproven(cost: f64, least: f64) -> String {
    match cost - least < PRINTED {
        true => String::new(),
        false => format!(" (not proven: at least {})", dollars(least)),
    }
}

/// The price of a level.
pub(super) fn price_text(price: &LevelPrice) -> String {
    match price.price {
        Some((low, high)) if high - low < PRINTED => format!("+{}", dollars(high)),
        Some((low, high)) => format!("+{} to {}", dollars(low), dollars(high)),
        None if price.is_impossible => "no plan".to_owned(),
        None => "no plan found".to_owned(),
    }
}

/// The price of surviving losses.
pub(super) fn losses_text(of: &LossPrice) -> String {
    let what = format!("surviving {}, not {}", lost_workers(of.survived), of.instead);
    match of.price {
        Some((_, high)) if high < PRINTED => format!("{what}: costs nothing more"),
        Some((low, high)) if high - low < PRINTED => format!("{what}: {} more", dollars(high)),
        Some((low, high)) => format!("{what}: {} to {} more", dollars(low), dollars(high)),
        None => format!("{what}: not known, as the time was up"),
    }
}

fn lost_workers(count: u32) -> String {
    format!("{count} lost worker{} at a time", if count == 1 { "" } else { "s" })
}

/// The cost at another percentile.
pub(super) fn percentile_text(of: &PercentileCost) -> String {
    match of.cost {
        Some(cost) => format!("{}{}", dollars(cost), unproven(cost, of.least)),
        None if of.is_cut => "no plan found in time".to_owned(),
        None => "no plan or no figures".to_owned(),
    }
}

/// A question that the time limit left open.
pub(super) fn open_text(open: Open) -> String {
    match open {
        Open::WithoutAccuracy => "not known: whether a less accurate plan is cheaper".to_owned(),
        Open::WithoutLatency => "not known: whether a slower plan is cheaper".to_owned(),
        Open::OtherVariants(least) => {
            format!("not known: the cheapest plan with other variants; it costs at least {}", dollars(least))
        }
    }
}

/// Why the explanation proves less than it could: a line for each reason.
pub(super) fn limits_of_proof(asked: &Asked, problem: &Problem) -> Vec<String> {
    let effort = asked.explanation.effort;
    let mut lines = Vec::new();
    if asked.is_interrupted {
        let (unasked, all) = (asked.unasked(), asked.explanation.questions);
        lines.push(match all {
            0 => "interrupted before the first question was answered".to_owned(),
            all => format!("interrupted: {unasked} of {all} questions were not answered"),
        });
        let left_out = names(asked, problem);
        if !left_out.is_empty() {
            lines.push(format!("not computed, and left out: {}", left_out.join(", ")));
        }
    }
    if effort.cut > 0 {
        let (cut, answered) = (effort.cut, effort.answered);
        lines.push(format!(
            "the time limit ended {cut} of {answered} searches; a longer `--time-limit` may find cheaper plans and prove more"
        ));
    }
    lines
}

/// Headings of the sections that are left out.
fn names(asked: &Asked, problem: &Problem) -> Vec<&'static str> {
    asked.left_out(problem).into_iter().map(Section::name).collect()
}

/// The effort, for programs.
pub(super) fn effort_value(asked: &Asked, problem: &Problem) -> Value {
    let effort = asked.explanation.effort;
    json!({
        "questions": asked.explanation.questions,
        "answered": effort.answered,
        "searches": effort.searches,
        "nodes": effort.nodes,
        "cut": effort.cut,
        "is_interrupted": asked.is_interrupted,
        "not_computed": names(asked, problem),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_optimizer::explain::{Effort, Explanation, LevelChange};

    #[test]
    fn only_unproven_costs_have_a_bound() {
        assert_eq!(unproven(0.083, 0.083), "");
        assert_eq!(unproven(0.083, 0.018), " (not proven: at least 0.0180 $/h)");
        let of = PercentileCost { percentile: 50.0, cost: Some(0.083), least: 0.018, is_cut: true };
        assert_eq!(percentile_text(&of), "0.0830 $/h (not proven: at least 0.0180 $/h)");
        let none = PercentileCost { cost: None, ..of };
        assert_eq!(percentile_text(&none), "no plan found in time");
        let price = |price, is_impossible| {
            let change = LevelChange::Rate(1.0);
            price_text(&LevelPrice { change, price, is_impossible, after: None, is_cut: false })
        };
        assert_eq!(price(Some((0.0, 0.065)), false), "+0.0000 $/h to 0.0650 $/h");
        assert_eq!(price(None, true), "no plan");
        let losses = |price| losses_text(&LossPrice { survived: 1, instead: 0, price, after: None });
        assert_eq!(losses(Some((0.31, 0.31))), "surviving 1 lost worker at a time, not 0: 0.3100 $/h more");
        assert!(
            losses(Some((0.0, 0.0))).ends_with("costs nothing more") && losses(None).contains("not known")
        );
    }

    #[test]
    fn a_cut_or_an_interrupt_is_said() {
        let effort = Effort { answered: 7, searches: 3, nodes: 9, cut: 2 };
        let explanation = Explanation { questions: 11, effort, ..Explanation::default() };
        let problem = tidemill_problems::small_problem(1);
        let interrupted = Asked { explanation: explanation.clone(), is_interrupted: true };
        let lines = limits_of_proof(&interrupted, &problem);
        assert_eq!(lines[0], "interrupted: 4 of 11 questions were not answered");
        assert_eq!(
            lines[1],
            "not computed, and left out: cost of slightly higher levels, rejected plans, cost by the guaranteed \
             percentile of service times"
        );
        assert!(lines[2].starts_with("the time limit ended 2 of 7 searches"), "{lines:?}");
        let at_once = Asked { is_interrupted: true, ..Asked::default() };
        let lines = limits_of_proof(&at_once, &problem);
        assert_eq!(lines[0], "interrupted before the first question was answered");
        assert!(lines[1].contains("binding limits, cost of slightly"), "{lines:?}");
        let done = Explanation { effort: Effort { cut: 0, ..effort }, ..explanation };
        assert_eq!(limits_of_proof(&Asked { explanation: done, is_interrupted: false }, &problem), [""; 0]);
    }
}
