//! Usage of workers by open runs: as planned, else as measured.
use super::mark_of;
use crate::api::Quota;
use crate::facts::{Document, RunFacts};
use crate::replanning::Use;
use std::collections::BTreeMap;
use tidemill_spec::plan::Plan;

/// Usage of a worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Taken {
    /// Share of its time, at most 1.
    pub(crate) time: f64,
    /// Bytes of memory.
    pub(crate) memory_bytes: u64,
    /// Users: run, usage, and whether the figures are those of its plan.
    pub(crate) by: Vec<(String, Use, bool)>,
}

impl Taken {
    /// Formats it: `first 42 %, 1.2 GiB`.
    pub(crate) fn text(&self) -> String {
        let one = |(run, of, is_planned): &(String, Use, bool)| {
            let memory = match of.memory_bytes {
                0 => String::new(),
                bytes => format!(" and {}", tidemill_app::figures::bytes(bytes)),
            };
            let how = if *is_planned { "" } else { " as measured" };
            format!("run {run} uses {:.0} % of its time{memory}{how}", 100.0 * of.time)
        };
        self.by.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Usage of each worker of the cluster by open runs except one. Measured shares by run and role replace missing figures in a plan.
pub(crate) fn taken(
    document: &Document,
    measured: &BTreeMap<(String, String), f64>,
    except: Option<&str>,
) -> BTreeMap<String, Taken> {
    let mut all: BTreeMap<String, Taken> = BTreeMap::new();
    let others =
        document.runs.iter().filter(|(name, run)| !run.state.is_over() && Some(name.as_str()) != except);
    for (name, run) in others {
        let planned = uses_of(run);
        // Roles of one worker are reported together.
        let mut of_run: BTreeMap<&str, (Use, bool)> = BTreeMap::new();
        for (role, of) in &run.roles {
            // A role without a worker is expected on the worker of its name.
            let worker = of.worker.as_deref().unwrap_or(role);
            let found = match &planned {
                Some(uses) => uses.get(role).copied().unwrap_or_default(),
                None => {
                    let time = measured.get(&(name.clone(), role.clone())).copied().unwrap_or(0.0);
                    Use { time, memory_bytes: 0 }
                }
            };
            let (sum, is_planned) = of_run.entry(worker).or_insert((Use::default(), planned.is_some()));
            sum.time += found.time;
            sum.memory_bytes += found.memory_bytes;
            *is_planned = planned.is_some();
        }
        for (worker, (of, is_planned)) in of_run {
            if of == Use::default() {
                continue;
            }
            let taken = all.entry(worker.to_owned()).or_default();
            taken.time = (taken.time + of.time).min(1.0);
            taken.memory_bytes += of.memory_bytes;
            taken.by.push((name.clone(), of, is_planned));
        }
    }
    all
}

/// Usage by a run's plan, by worker of the plan: as planned, else from the plan itself.
fn uses_of(run: &RunFacts) -> Option<BTreeMap<String, Use>> {
    uses_of_plan(run, &run.plan)
}

fn uses_of_plan(run: &RunFacts, plan: &Plan) -> Option<BTreeMap<String, Use>> {
    let mark = mark_of(plan);
    if let Some((_, uses)) = run.planned.uses.iter().find(|(known, _)| *known == mark) {
        return Some(uses.clone());
    }
    let predicted = plan.predicted.as_ref().map(|predicted| &predicted.utilization)?;
    let uses = predicted
        .iter()
        .map(|(worker, part)| (worker.clone(), Use { time: part.0 / 100.0, memory_bytes: 0 }));
    (!predicted.is_empty()).then(|| uses.collect())
}

/// The part of a run's quota for one worker of a plan, in proportion to the plan's usage. `processors` gives the processors by worker of
/// the plan. Without planned usage each may take all of the quota.
pub(crate) fn part_of_quota(
    run: &RunFacts,
    plan: &Plan,
    role: &str,
    processors: impl Fn(&str) -> f64,
) -> Quota {
    let quota = run.planned.quota;
    if quota == Quota::default() {
        return quota; // there is nothing to divide
    }
    let Some(uses) = uses_of_plan(run, plan) else { return quota };
    let part = |of: &dyn Fn(&str, &Use) -> f64| {
        let sum: f64 = uses.iter().map(|(role, one)| of(role, one)).sum();
        let own = uses.get(role).map_or(0.0, |one| of(role, one));
        if sum > 0.0 { own / sum } else { 1.0 }
    };
    let time = part(&|role, one| one.time * processors(role));
    let memory = part(&|_, one| one.memory_bytes as f64);
    // A worker that only forwards records has next to no planned usage, but needs some.
    let processors = quota.processors.map(|most| (most * time).max(LEAST_PART * most));
    Quota { processors, memory_bytes: quota.memory_bytes.map(|most| (most as f64 * memory) as u64) }
}

/// Smallest share of a quota's processors for each worker of a plan.
const LEAST_PART: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RunState;
    use crate::facts::Role;
    use tidemill_spec::plan::PlanWorkflow;

    fn run(state: RunState, roles: &[(&str, Option<&str>)], uses: &[(&str, f64, u64)]) -> RunFacts {
        let plan = Plan::new(PlanWorkflow { name: "flow".into(), digest: None });
        let role = |worker: &Option<&str>| Role { worker: worker.map(str::to_owned), ..Role::default() };
        let mut facts = RunFacts::test(plan.clone(), state);
        facts.roles = roles.iter().map(|(name, worker)| ((*name).to_owned(), role(worker))).collect();
        if !uses.is_empty() {
            let uses = uses.iter().map(|(role, time, memory_bytes)| {
                ((*role).to_owned(), Use { time: *time, memory_bytes: *memory_bytes })
            });
            facts.planned.uses = vec![(mark_of(&plan), uses.collect())];
        }
        facts
    }

    #[test]
    fn what_runs_have_is_added_up_by_worker() {
        let mut document = Document::default();
        let mut add = |name: &str, facts: RunFacts| document.runs.insert(name.to_owned(), facts);
        let (a, b) = (("a", Some("north")), ("b", None));
        add("first", run(RunState::Running, &[a, b], &[("a", 0.3, 100), ("b", 0.2, 50)]));
        add("second", run(RunState::Starting, &[("x", Some("north"))], &[("x", 0.9, 10)]));
        add("over", run(RunState::Complete, &[a], &[("a", 0.9, 900)]));
        add("by-hand", run(RunState::Running, &[("c", Some("south"))], &[]));
        let measured = BTreeMap::from([(("by-hand".to_owned(), "c".to_owned()), 0.25)]);
        let found = taken(&document, &measured, None);
        assert_eq!((found["north"].time, found["north"].memory_bytes), (1.0, 110), "no more than all of it");
        assert_eq!(found["b"].time, 0.2, "not placed yet");
        assert_eq!(found["south"].by, [("by-hand".to_owned(), Use { time: 0.25, memory_bytes: 0 }, false)]);
        assert!(found["south"].text().contains("run by-hand uses 25 % of its time as measured"));
        let others = taken(&document, &measured, Some("second"));
        assert_eq!(others["north"].time, 0.3);
    }

    #[test]
    fn a_quota_is_divided_as_the_plan_divides_what_it_takes() {
        let mut of = run(RunState::Running, &[], &[("a", 0.3, 100), ("b", 0.1, 300), ("c", 0.0, 0)]);
        of.planned.quota = Quota { processors: Some(2.0), memory_bytes: Some(800) };
        let part = |of: &RunFacts, role| {
            part_of_quota(of, &of.plan, role, |role| if role == "b" { 4.0 } else { 2.0 })
        };
        // 0.3 of two processors against 0.1 of four.
        assert_eq!(part(&of, "a"), Quota { processors: Some(1.2), memory_bytes: Some(200) });
        assert_eq!(part(&of, "b"), Quota { processors: Some(0.8), memory_bytes: Some(600) });
        assert_eq!(part(&of, "c"), Quota { processors: Some(0.2), memory_bytes: Some(0) });
        of.planned.uses.clear();
        assert_eq!(part(&of, "a"), of.planned.quota);
        of.planned.quota = Quota::default();
        assert_eq!(part(&of, "a"), Quota::default());
    }
}
