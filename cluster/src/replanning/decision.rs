//! Decides whether a run keeps its plan: a pure function without clock, files or threads.
//!
//! Missed levels count first, cost second. A run changes to another plan
//!
//! - when the present one has missed a level for [`PATIENCE`] and the other misses less than [`BETTER`] times that; conceded levels count
//!   only on a tie;
//! - when it misses no more and has cost less by at least [`LEAST_SAVING`] for [`LONGER`] without a break, and the saving within
//!   [`HORIZON`] exceeds twice the cost of switching:
//!
//!   `(cost now - cost then) * HORIZON > 2 * (OVERLAP + moved * PAUSE) * (cost now + cost then)`
//!
//!   During a change both plans are paid for ([`OVERLAP`]: new processes start and load models beside the old ones), and each stage that
//!   moves pauses for [`PAUSE`].
//!
//! After a change no other follows for [`SETTLE`], and none for cost for [`DWELL`]. A decision is not a change yet: it may be declined, or
//! the new plan may fail to start. Until [`History::has_changed`] is called, the decision is repeated after [`SETTLE`] (for cost:
//! [`DWELL`]), doubled for each recent change that failed.
use super::Use;
use std::collections::BTreeMap;
use tidemill_app::figures::dollars;
use tidemill_optimizer::assemble::Level;
use tidemill_spec::plan::Plan;

/// Seconds for which a level has to be missed.
pub const PATIENCE: f64 = 10.0;
/// Fraction of the present misses below which another plan is better.
pub const BETTER: f64 = 0.8;
/// Seconds for which another plan has to be cheaper.
pub const LONGER: f64 = 60.0;
/// Fraction of the present cost that has to be saved.
pub const LEAST_SAVING: f64 = 0.05;
/// Seconds in which a change for cost has to pay off.
pub const HORIZON: f64 = 3600.0;
/// Seconds in which both plans are paid for.
pub const OVERLAP: f64 = 30.0;
/// Seconds that a moving stage pauses.
pub const PAUSE: f64 = 0.5;
/// Seconds after a change without another one.
pub const SETTLE: f64 = 30.0;
/// Seconds after a change without another one for cost.
pub const DWELL: f64 = 300.0;
/// Largest number of failed changes that lengthen the pause.
const MOST_FAILED: u32 = 4;

/// A service level or other limit that a plan misses.
#[derive(Debug, Clone, PartialEq)]
pub struct Miss {
    /// Description with numbers.
    pub text: String,
    /// Fraction of the limit by which it is missed.
    pub by: f64,
    /// The service level and its value (records per second, percent or seconds); `None` for another limit.
    pub found: Option<(Level, f64)>,
    /// Whether the user concedes this much.
    pub gives_way: bool,
}

impl Miss {
    /// Creates a miss of a limit that is no service level.
    pub fn other(text: String, by: f64) -> Self {
        Self { text, by, found: None, gives_way: false }
    }
}

/// Cost and misses of a plan by current figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Assessment {
    /// $/h.
    pub cost: f64,
    /// Limits that it misses.
    pub misses: Vec<Miss>,
}

impl Assessment {
    fn sum(&self, gives_way: bool) -> f64 {
        let all = self.misses.iter().filter(|miss| miss.gives_way == gives_way);
        all.map(|miss| miss.by.max(0.0)).sum()
    }

    /// Whether it misses clearly less than another one. Conceded levels decide a tie.
    fn is_better_than(&self, other: &Self) -> bool {
        let [own, its] = [self.sum(false), other.sum(false)];
        own < BETTER * its || (own <= its && self.sum(true) < BETTER * other.sum(true))
    }

    fn is_no_worse_than(&self, other: &Self) -> bool {
        self.sum(false) <= other.sum(false) && self.sum(true) <= other.sum(true)
    }

    fn is_kept(&self) -> bool {
        self.misses.is_empty()
    }

    /// Formats it: `0.0060 $/h, all levels kept`.
    pub fn text(&self) -> String {
        let misses: Vec<&str> = self.misses.iter().map(|miss| miss.text.as_str()).collect();
        match misses.is_empty() {
            true => format!("{}, all levels kept", dollars(self.cost)),
            false => format!("{}, misses: {}", dollars(self.cost), misses.join("; ")),
        }
    }
}

/// Another plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// Mark that identifies it among others.
    pub mark: String,
    /// Its cost and misses.
    pub assessment: Assessment,
    /// Number of stages that move or change their model.
    pub moved: usize,
    /// Share of each worker that it uses.
    pub uses: BTreeMap<String, Use>,
}

/// Findings of one look.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessments {
    /// The present plan.
    pub current: Assessment,
    /// The best other plan; `None` if there was no search or the present one is the best.
    pub candidate: Option<Candidate>,
    /// Reason why no plan keeps the levels.
    pub none: Option<String>,
    /// Whether a search took place.
    pub is_searched: bool,
}

impl Assessments {
    /// Whether nothing found is a reason to change: no other plan keeps more levels or is cheaper by enough. Ignores for how long.
    pub fn has_no_reason(&self) -> bool {
        let Some(candidate) = &self.candidate else { return true };
        let is_better = candidate.assessment.is_better_than(&self.current);
        let is_cheaper = candidate.assessment.is_no_worse_than(&self.current)
            && pays(self.current.cost, candidate.assessment.cost, candidate.moved);
        !is_better && !is_cheaper
    }
}

/// State that [`decide`] keeps between looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Time in seconds of the last change, else of the run's start.
    changed: Option<f64>,
    /// Time of a decided change that has not been made.
    decided: Option<f64>,
    /// Number of recent changes that failed.
    failed: u32,
    missed_since: Option<f64>,
    /// Time since which this plan is cheaper.
    cheaper_since: Option<(f64, String)>,
    /// The last report about levels that no plan keeps.
    told: Option<String>,
}

impl History {
    /// Whether another plan is cheaper and is being watched.
    pub fn is_watching(&self) -> bool {
        self.cheaper_since.is_some()
    }

    /// Records that the plan changed now.
    pub fn has_changed(&mut self, now: f64) {
        (self.changed, self.decided) = (Some(now), None);
        self.watch_anew();
    }

    /// Sets how many of the last changes failed.
    pub fn has_failed(&mut self, failed: u32) {
        self.failed = failed.min(MOST_FAILED);
    }

    /// Whether a change that was decided but not made may be decided again.
    fn may_decide_again(&self, pause: f64, now: f64) -> bool {
        let pause = pause * f64::from(2_u32.pow(self.failed));
        self.decided.is_none_or(|decided| now - decided >= pause)
    }

    /// Restarts the observation periods.
    pub fn watch_anew(&mut self) {
        (self.missed_since, self.cheaper_since) = (None, None);
    }
}

/// Outcome of a look.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Change nothing; the reason.
    Keep(String),
    /// Change, or propose to; the reason with numbers.
    Change(Box<Candidate>, String),
    /// Report that no plan is better; the text.
    Tell(String),
}

/// Cost of a change, in seconds times $/h.
pub fn switching_cost(now: f64, then: f64, moved: usize) -> f64 {
    (OVERLAP + moved as f64 * PAUSE) * (now + then)
}

/// Whether another plan saves enough, regardless of when.
pub fn pays(now: f64, then: f64, moved: usize) -> bool {
    let saved = now - then;
    saved >= LEAST_SAVING * now && saved > 0.0 && saved * HORIZON > 2.0 * switching_cost(now, then, moved)
}

/// Formats it: `1 stage moves`.
pub fn stages_move(count: usize) -> String {
    if count == 1 { "1 stage moves".to_owned() } else { format!("{count} stages move") }
}

/// Decides at a time in seconds of a monotonic clock.
pub fn decide(history: &mut History, seen: Assessments, now: f64) -> Decision {
    let Assessments { current, candidate, none, is_searched } = seen;
    let begun = *history.changed.get_or_insert(now);
    match current.is_kept() {
        true => (history.missed_since, history.told) = (None, None),
        false => history.missed_since = history.missed_since.or(Some(now)),
    }
    let missed_for = history.missed_since.map_or(0.0, |since| now - since);
    let Some(candidate) = candidate else {
        if is_searched {
            history.cheaper_since = None;
        }
        if let Some(none) = none.filter(|_| missed_for >= PATIENCE) {
            // The extent of a miss changes all the time. Report once that a level is missed.
            if history.told.is_none() {
                history.told = Some(none.clone());
                return Decision::Tell(format!("the plan has {}; {none}", current.text()));
            }
        }
        return Decision::Keep(format!("the plan has {}", current.text()));
    };
    let numbers = format!(
        "now {}; then {}; {}",
        current.text(),
        candidate.assessment.text(),
        stages_move(candidate.moved)
    );
    let is_better = candidate.assessment.is_better_than(&current);
    let is_no_worse = candidate.assessment.is_no_worse_than(&current);
    let is_cheaper = is_no_worse && pays(current.cost, candidate.assessment.cost, candidate.moved);
    if !is_cheaper {
        history.cheaper_since = None;
    } else if history.cheaper_since.as_ref().is_none_or(|(_, mark)| *mark != candidate.mark) {
        history.cheaper_since = Some((now, candidate.mark.clone()));
    }
    let cheaper_for = history.cheaper_since.as_ref().map_or(0.0, |(since, _)| now - since);
    let settled = now - begun >= SETTLE && history.may_decide_again(SETTLE, now);
    let dwelt = now - begun >= DWELL && history.may_decide_again(DWELL, now);
    let because = match (is_better, is_cheaper) {
        (true, _) if settled && missed_for >= PATIENCE => "levels are missed or no longer guaranteed",
        (_, true) if dwelt && cheaper_for >= LONGER => "another plan is cheaper",
        (true, _) => {
            return Decision::Keep(format!(
                "levels are missed or not guaranteed for {missed_for:.0} s, watching: {numbers}"
            ));
        }
        (_, true) => {
            return Decision::Keep(format!(
                "another plan is cheaper for {cheaper_for:.0} s, watching: {numbers}"
            ));
        }
        (false, false) => return Decision::Keep(format!("another plan is not worth a change: {numbers}")),
    };
    history.decided = Some(now);
    Decision::Change(Box::new(candidate), format!("{because}: {numbers}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidemill_spec::plan::PlanWorkflow;

    fn assessed(cost: f64, by: f64) -> Assessment {
        let miss = Miss::other(format!("rate by {by}"), by);
        Assessment { cost, misses: if by > 0.0 { vec![miss] } else { Vec::new() } }
    }

    fn other(mark: &str, cost: f64, by: f64) -> Candidate {
        Candidate {
            plan: Plan::new(PlanWorkflow { name: "flow".into(), digest: None }),
            mark: mark.to_owned(),
            assessment: assessed(cost, by),
            moved: 2,
            uses: BTreeMap::new(),
        }
    }

    fn seen(current: Assessment, candidate: Option<Candidate>) -> Assessments {
        Assessments { current, candidate, none: None, is_searched: true }
    }

    fn begun() -> History {
        History { changed: Some(0.0), ..History::default() }
    }

    #[test]
    fn a_level_that_is_missed_for_long_is_a_reason() {
        let mut history = begun();
        let at = |history: &mut History, now| {
            decide(history, seen(assessed(1.0, 0.5), Some(other("b", 3.0, 0.0))), now)
        };
        assert!(matches!(at(&mut history, 20.0), Decision::Keep(_)), "just begun");
        assert!(matches!(at(&mut history, 29.0), Decision::Keep(_)));
        let Decision::Change(candidate, why) = at(&mut history, 31.0) else { panic!("no change") };
        assert_eq!(candidate.mark, "b");
        assert!(
            why.contains("levels are missed or no longer guaranteed: now 1.0000 $/h, misses: rate by 0.5; then 3.0000 $/h"),
            "{why}"
        );
        history.has_changed(32.0);
        assert!(matches!(at(&mut history, 33.0), Decision::Keep(_)), "it settles");
        assert!(matches!(at(&mut history, 61.0), Decision::Keep(_)));
        assert!(matches!(at(&mut history, 62.0), Decision::Change(..)));
    }

    #[test]
    fn what_is_decided_is_no_change_yet() {
        let mut history = begun();
        let missed = |history: &mut History, now| {
            decide(history, seen(assessed(1.0, 0.5), Some(other("b", 3.0, 0.0))), now)
        };
        assert!(matches!(missed(&mut history, 20.0), Decision::Keep(_)));
        assert!(matches!(missed(&mut history, 40.0), Decision::Change(..)));
        // The change was not accepted, or it failed: it is decided again, but not at every look.
        assert!(matches!(missed(&mut history, 50.0), Decision::Keep(_)));
        history.has_failed(1);
        assert!(matches!(missed(&mut history, 70.0), Decision::Keep(_)), "twice as long after a failure");
        assert!(matches!(missed(&mut history, 100.0), Decision::Change(..)));
        history.has_failed(99);
        assert!(matches!(missed(&mut history, 579.0), Decision::Keep(_)));
        assert!(matches!(missed(&mut history, 580.0), Decision::Change(..)), "there is a longest pause");
        // A proposal to save does not delay one that keeps a level.
        let mut history = begun();
        let cheaper = |history: &mut History, now| {
            decide(history, seen(assessed(1.0, 0.0), Some(other("c", 0.5, 0.0))), now)
        };
        assert!(matches!(cheaper(&mut history, 300.0), Decision::Keep(_)));
        assert!(matches!(cheaper(&mut history, 360.0), Decision::Change(..)));
        assert!(matches!(missed(&mut history, 380.0), Decision::Keep(_)));
        assert!(matches!(missed(&mut history, 390.0), Decision::Change(..)), "dwell begins with a change");
    }

    #[test]
    fn patience_begins_anew_where_it_was_not_looked() {
        let mut history = begun();
        let at = |history: &mut History, now| {
            decide(history, seen(assessed(1.0, 0.5), Some(other("b", 3.0, 0.0))), now)
        };
        assert!(matches!(at(&mut history, 100.0), Decision::Keep(_)));
        history.watch_anew();
        assert!(matches!(at(&mut history, 700.0), Decision::Keep(_)), "it was not seen for ten minutes");
        assert!(matches!(at(&mut history, 709.0), Decision::Keep(_)));
        assert!(matches!(at(&mut history, 711.0), Decision::Change(..)));
        let at = |history: &mut History, now| {
            decide(history, seen(assessed(1.0, 0.0), Some(other("c", 0.5, 0.0))), now)
        };
        assert!(matches!(at(&mut history, 1100.0), Decision::Keep(_)));
        history.watch_anew();
        assert!(!history.is_watching());
        assert!(matches!(at(&mut history, 1200.0), Decision::Keep(_)));
        assert!(matches!(at(&mut history, 1261.0), Decision::Change(..)));
    }

    #[test]
    fn a_plan_that_is_hardly_better_is_none() {
        let mut history = begun();
        for now in [100.0, 200.0, 300.0] {
            let found = decide(&mut history, seen(assessed(1.0, 0.5), Some(other("b", 0.99, 0.45))), now);
            assert!(matches!(&found, Decision::Keep(why) if why.contains("not worth")), "{found:?}");
        }
    }

    #[test]
    fn a_reason_is_gone_when_no_other_plan_is_better_any_more() {
        let other = |cost, by| Some(other("b", cost, by));
        assert!(!seen(assessed(1.0, 0.5), other(3.0, 0.0)).has_no_reason(), "it keeps a level");
        assert!(!seen(assessed(1.0, 0.0), other(0.2, 0.0)).has_no_reason(), "it costs less");
        assert!(seen(assessed(1.0, 0.0), other(3.0, 0.0)).has_no_reason(), "the level is kept again");
        assert!(seen(assessed(1.0, 0.0), other(0.99, 0.0)).has_no_reason(), "it hardly costs less");
        assert!(seen(assessed(1.0, 0.5), None).has_no_reason(), "there is none");
    }

    #[test]
    fn savings_must_last_and_pay() {
        let mut history = begun();
        let at = |history: &mut History, now, cost| {
            decide(history, seen(assessed(1.0, 0.0), Some(other("b", cost, 0.0))), now)
        };
        assert!(matches!(at(&mut history, 400.0, 0.5), Decision::Keep(_)), "seen for the first time");
        assert!(matches!(at(&mut history, 430.0, 0.97), Decision::Keep(_)), "saves too little");
        assert!(matches!(at(&mut history, 440.0, 0.5), Decision::Keep(_)), "begins anew");
        // A look without a search says nothing about other plans.
        let unsearched = Assessments { is_searched: false, ..seen(assessed(1.0, 0.0), None) };
        assert!(matches!(decide(&mut history, unsearched, 470.0), Decision::Keep(_)));
        assert!(history.is_watching());
        assert!(matches!(at(&mut history, 501.0, 0.5), Decision::Change(..)));
        // With very many stages switching costs more than it saves.
        assert!(pays(1.0, 0.9, 2) && !pays(1.0, 0.9, 200));
        assert!(!pays(0.0, 0.0, 0));
    }

    #[test]
    fn what_the_user_lets_give_way_counts_after_all_else() {
        let of = |missed: f64, given: f64| {
            let miss = |by: f64, gives_way| Miss { gives_way, ..Miss::other(String::new(), by) };
            let all = [miss(missed, false), miss(given, true)];
            Assessment { cost: 1.0, misses: all.into_iter().filter(|miss| miss.by > 0.0).collect() }
        };
        assert!(of(0.0, 0.5).is_better_than(&of(0.05, 0.0)), "accuracy gives way before records are dropped");
        assert!(!of(0.05, 0.0).is_better_than(&of(0.0, 0.5)));
        assert!(of(0.0, 0.0).is_better_than(&of(0.0, 0.1)), "it is taken back when it can be");
        assert!(!of(0.0, 0.09).is_better_than(&of(0.0, 0.1)), "hardly");
        assert!(!of(0.0, 0.1).is_no_worse_than(&of(0.0, 0.0)), "nothing gives way to save");
    }

    #[test]
    fn what_no_plan_keeps_is_told_once() {
        let mut history = begun();
        let at = |history: &mut History, now, by| {
            let none = Some("no plan keeps the service levels".to_owned());
            decide(
                history,
                Assessments { current: assessed(1.0, by), candidate: None, none, is_searched: true },
                now,
            )
        };
        assert!(matches!(at(&mut history, 100.0, 0.2), Decision::Keep(_)));
        assert!(matches!(at(&mut history, 110.0, 0.3), Decision::Tell(_)));
        assert!(matches!(at(&mut history, 120.0, 0.4), Decision::Keep(_)));
        assert!(matches!(at(&mut history, 130.0, 0.0), Decision::Keep(_)), "it is kept again");
        assert!(matches!(at(&mut history, 140.0, 0.2), Decision::Keep(_)));
        assert!(matches!(at(&mut history, 151.0, 0.2), Decision::Tell(_)));
    }

    /// One moment of a trace: cost and miss of two plans.
    fn moments() -> impl Strategy<Value = Vec<[(f64, f64); 2]>> {
        let one = || (0.5..2.0f64, prop_oneof![3 => Just(0.0), 1 => 0.01..1.0f64]);
        prop::collection::vec((one(), one()).prop_map(|(a, b)| [a, b]), 1..400)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Checks that plans change no more often than the rules allow, and never to a worse one.
        #[test]
        fn plans_do_not_flap(trace in moments(), step in 1.0..40.0f64) {
            let (mut history, mut running, mut changes) = (begun(), 0usize, Vec::new());
            let (mut missed, mut cheaper) = (0.0f64, 0.0f64);
            for (number, moment) in trace.iter().enumerate() {
                let now = number as f64 * step;
                let ((cost, by), (other_cost, other_by)) = (moment[running], moment[1 - running]);
                let candidate = other(&(1 - running).to_string(), other_cost, other_by);
                let is_cheap = other_by <= by && pays(cost, other_cost, 2);
                let last: f64 = changes.last().map_or(0.0, |(at, _): &(f64, bool)| *at);
                match decide(&mut history, seen(assessed(cost, by), Some(candidate)), now) {
                    Decision::Change(..) => {
                        let for_level = by > 0.0 && other_by < BETTER * by;
                        prop_assert!(for_level || is_cheap, "to a worse plan at {now}");
                        prop_assert!(now - last >= SETTLE, "{now} after {last}");
                        if !(for_level && missed + 1e-9 >= PATIENCE) {
                            prop_assert!(now - last >= DWELL && cheaper + 1e-9 >= LONGER, "{now} after {last}");
                        }
                        history.has_changed(now);
                        changes.push((now, for_level));
                        running = 1 - running;
                        (missed, cheaper) = (0.0, 0.0);
                    }
                    _ => {
                        missed = if by > 0.0 { missed + step } else { 0.0 };
                        cheaper = if is_cheap { cheaper + step } else { 0.0 };
                    }
                }
            }
        }

        /// Noise of a few percent around two similar plans changes nothing.
        #[test]
        fn noise_changes_nothing(noise in prop::collection::vec((-0.02..0.02f64, -0.02..0.02f64), 1..400)) {
            let mut history = begun();
            for (number, (a, b)) in noise.into_iter().enumerate() {
                let candidate = other("b", 1.0 + b, 0.0);
                let found = decide(&mut history, seen(assessed(1.0 + a, 0.0), Some(candidate)), 20.0 * number as f64);
                prop_assert!(matches!(found, Decision::Keep(_)));
            }
        }
    }
}
