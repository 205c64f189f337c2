//! The parts of a run's state that continue under another plan of the same workflow: maps each stage of the new plan to the stage of the
//! old one with the same keys. Models, workers and the shares of operators without a state may change; a state moves as a whole.
use std::collections::{BTreeMap, BTreeSet};
use tidemill_engine::{Program, instance_name};
use tidemill_operators::api::Computation;
use tidemill_spec::plan::{Plan, Stage};

/// Shares that differ by less are the same.
const TOLERANCE: f64 = 1e-9;

/// The reason why a plan cannot follow another one during the run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanChangeError {
    /// Another workflow.
    #[error("the plan is for workflow `{new}`, but the run is of `{old}`")]
    Workflow {
        /// Of the run.
        old: String,
        /// Of the plan.
        new: String,
    },
    /// Epochs would not be those of the records that were read.
    #[error(
        "the new plan has `{key}: {new}`, but the run has {old}: it decides the number of epochs, so it cannot change; write `{key}: {old}`"
    )]
    Epochs {
        /// Of the plan file.
        key: &'static str,
        /// Of the run.
        old: String,
        /// Of the new plan.
        new: String,
    },
    /// The keys of stages with a state would be divided differently.
    #[error(
        "operator `{operator}` keeps a state, but the new plan divides its keys differently among stages: \
         this version moves the state of a stage only as a whole; give it the same number of stages with \
         the same shares"
    )]
    Divided {
        /// The operator, or source.
        operator: String,
    },
}

/// Which keys an instance of an operator has.
#[derive(Debug, Clone)]
enum Keys {
    All,
    /// Shares of all classes of the plan, those that it has, and which partition of how many it is.
    Classes {
        shares: Vec<f64>,
        own: BTreeSet<usize>,
        partition: (u32, u32),
    },
}

impl Keys {
    fn is_same(&self, other: &Self) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() < TOLERANCE;
        match (self, other) {
            (Self::All, Self::All) => true,
            (
                Self::Classes { shares, own, partition },
                Self::Classes { shares: other_shares, own: other_own, partition: other_partition },
            ) => {
                own == other_own
                    && partition == other_partition
                    && shares.len() == other_shares.len()
                    && shares.iter().zip(other_shares).all(|(a, b)| near(*a, *b))
            }
            _ => false,
        }
    }
}

/// The instances of an operator with the keys of each.
fn instances(plan: &Plan, operator: &str) -> Vec<(String, Keys)> {
    let stages: Vec<&Stage> = plan.stages.iter().filter(|stage| stage.operator == operator).collect();
    let is_one = stages.len() == 1 && stages.iter().all(|stage| stage.partitions <= 1);
    let shares: Vec<f64> = plan.classes.iter().map(|class| class.share).collect();
    let mut all = Vec::new();
    for stage in stages {
        let partitions = stage.partitions.max(1);
        for partition in 0..partitions {
            let keys = if is_one {
                Keys::All
            } else {
                let classes = plan.classes.iter().enumerate();
                let own = classes
                    .filter(|(_, class)| class.route.get(operator).is_some_and(|routed| *routed == stage.id));
                let own = own.map(|(number, _)| number).collect();
                Keys::Classes { shares: shares.clone(), own, partition: (partition, partitions) }
            };
            all.push((instance_name(stage, partition), keys));
        }
    }
    all
}

/// Sources and operators that keep something from one epoch to the next.
pub(crate) fn keepers(program: &Program) -> BTreeSet<&str> {
    let operators = program.operators.values();
    let stateful = operators.filter(|bound| matches!(bound.computation, Computation::Stateful));
    program.sources.keys().map(String::as_str).chain(stateful.map(|bound| bound.id.as_str())).collect()
}

/// Returns for each instance of an operator in the new plan the one of the old plan with the same keys; none where the division of the keys
/// differs.
pub(crate) fn divided(old: &Plan, new: &Plan, operator: &str) -> Option<Vec<(String, String)>> {
    let before = instances(old, operator);
    let after = instances(new, operator);
    if before.len() != after.len() {
        return None;
    }
    let same = |(name, keys): (String, Keys)| {
        let same = before.iter().find(|(_, others)| keys.is_same(others))?;
        Some((name, same.0.clone()))
    };
    after.into_iter().map(same).collect()
}

/// Returns for each stage instance of the new plan with a state the instance of the old one whose state it takes. `program`: of the new
/// plan.
///
/// # Errors
/// The run cannot continue under the new plan.
pub fn carried(old: &Plan, program: &Program) -> Result<BTreeMap<String, String>, PlanChangeError> {
    let new = &program.plan;
    if old.workflow.name != new.workflow.name {
        let (old, new) = (old.workflow.name.clone(), new.workflow.name.clone());
        return Err(PlanChangeError::Workflow { old, new });
    }
    if old.tick != new.tick {
        let (old, new) = (old.tick.to_string(), new.tick.to_string());
        return Err(PlanChangeError::Epochs { key: "tick", old, new });
    }
    if old.checkpoint_every != new.checkpoint_every {
        let (old, new) = (old.checkpoint_every.to_string(), new.checkpoint_every.to_string());
        return Err(PlanChangeError::Epochs { key: "checkpoint_every", old, new });
    }
    let mut all = BTreeMap::new();
    for operator in keepers(program) {
        let error = || PlanChangeError::Divided { operator: operator.to_owned() };
        all.extend(divided(old, new, operator).ok_or_else(error)?);
    }
    Ok(all)
}

/// The stages of an operator in a plan.
pub(crate) fn stages<'a>(plan: &'a Plan, operator: &'a str) -> impl Iterator<Item = &'a Stage> {
    plan.stages.iter().filter(move |stage| stage.operator == operator)
}

/// The instances of an operator in a plan, by their names in the state.
pub(crate) fn instance_names(plan: &Plan, operator: &str) -> Vec<String> {
    let of = |stage: &Stage| -> Vec<String> {
        (0..stage.partitions.max(1)).map(|partition| instance_name(stage, partition)).collect()
    };
    stages(plan, operator).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::Silent;
    use crate::preparation::{PlanFrom, Scope, prepare, prepare_here};
    use crate::sent::Sent;
    use tidemill_spec::plan::{PlanEdge, RouteClass};
    use tidemill_spec::units::TimeSpan;

    const WORKFLOW: &str = "version: 1
name: spread
sources:
  - {id: rows, kind: csv, key: key, options: {path: rows.csv, columns: {key: text, at: int64, value: int64}, event_time: at}}
operators:
  - {id: some, kind: filter, input: rows, options: {where: \"value > 1\"}}
  - {id: counted, kind: window, input: some, options: {size: 5s, group_by: [key], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: table, kind: csv, input: counted, options: {path: counted.csv}}
";

    fn program() -> Program {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("workflow.yaml");
        std::fs::write(&file, WORKFLOW).unwrap();
        std::fs::write(folder.path().join("rows.csv"), "key,at,value\na,1,1\n").unwrap();
        let prepared = prepare_here(&file, PlanFrom::Settings(&[]), &Silent).unwrap();
        let sent = Sent { folder: folder.path(), workflow: "workflow.yaml", variables: &BTreeMap::default() };
        let plan = PlanFrom::Given(&prepared.program.plan);
        prepare(sent.load(&Silent).unwrap(), plan, Scope::Elsewhere(&sent), &Silent).unwrap().program
    }

    /// Another stage of an operator, which takes half of the classes.
    fn divide(plan: &mut Plan, operator: &str, shares: [f64; 2]) {
        let stage = plan.stages.iter().find(|stage| stage.operator == operator).unwrap().clone();
        let other = format!("{}-2", stage.id);
        let route = plan.classes[0].route.clone();
        let mut second = route.clone();
        second.insert(operator.to_owned(), other.clone());
        plan.classes = vec![
            RouteClass { id: 0, share: shares[0], route },
            RouteClass { id: 1, share: shares[1], route: second },
        ];
        for of in plan.stages.iter_mut().filter(|of| of.operator == operator) {
            of.share = shares[0];
        }
        plan.stages.push(Stage { id: other.clone(), share: shares[1], ..stage.clone() });
        let edges: Vec<PlanEdge> = plan.edges.clone();
        for edge in edges {
            if edge.to == stage.id {
                plan.edges.push(PlanEdge { to: other.clone(), ..edge });
            } else if edge.from == stage.id {
                plan.edges.push(PlanEdge { from: other.clone(), ..edge });
            }
        }
    }

    #[test]
    fn stages_may_move_and_get_other_names() {
        let mut program = program();
        let old = program.plan.clone();
        for stage in &mut program.plan.stages {
            stage.worker = "elsewhere".to_owned();
        }
        let kept = carried(&old, &program).unwrap();
        assert!(kept.iter().all(|(new, old)| new == old) && kept.len() == 2, "{kept:?}");
        let text = serde_json::to_string(&program.plan).unwrap().replace("\"counted\"", "\"counted@hub\"");
        let mut renamed: Plan = serde_json::from_str(&text).unwrap();
        for stage in renamed.stages.iter_mut().filter(|stage| stage.id == "counted@hub") {
            stage.operator = "counted".to_owned();
        }
        for class in &mut renamed.classes {
            class.route = class
                .route
                .iter()
                .map(|(operator, stage)| (operator.replace("@hub", ""), stage.clone()))
                .collect();
        }
        program.operators = program
            .operators
            .into_iter()
            .map(|(stage, bound)| (if stage == "counted" { "counted@hub".to_owned() } else { stage }, bound))
            .collect();
        program.plan = renamed;
        assert_eq!(carried(&old, &program).unwrap().get("counted@hub"), Some(&"counted".to_owned()));
    }

    #[test]
    fn what_keeps_nothing_is_divided_anew_and_a_state_is_not() {
        let mut program = program();
        let old = program.plan.clone();
        divide(&mut program.plan, "some", [0.25, 0.75]);
        assert_eq!(carried(&old, &program).unwrap().len(), 2);
        program.plan = old.clone();
        divide(&mut program.plan, "counted", [0.25, 0.75]);
        let divided = PlanChangeError::Divided { operator: "counted".to_owned() };
        assert_eq!(carried(&old, &program), Err(divided.clone()));
        // With the same division it may continue.
        let before = program.plan.clone();
        assert_eq!(carried(&before, &program).unwrap().len(), 3);
        for class in &mut program.plan.classes {
            class.share = 0.5;
        }
        for stage in program.plan.stages.iter_mut().filter(|stage| stage.operator == "counted") {
            stage.share = 0.5;
        }
        assert_eq!(carried(&before, &program), Err(divided));
    }

    #[test]
    fn epochs_stay_what_they_are() {
        let mut program = program();
        let old = program.plan.clone();
        program.plan.tick = TimeSpan(old.tick.0 * 2);
        let refused = carried(&old, &program).unwrap_err().to_string();
        assert!(refused.contains("`tick: 100ms`") && refused.contains("write `tick: 50ms`"), "{refused}");
        program.plan = old.clone();
        program.plan.checkpoint_every += 1;
        assert!(matches!(
            carried(&old, &program),
            Err(PlanChangeError::Epochs { key: "checkpoint_every", .. })
        ));
        program.plan = old.clone();
        program.plan.workflow.name = "another".to_owned();
        assert!(matches!(carried(&old, &program), Err(PlanChangeError::Workflow { .. })));
    }
}
