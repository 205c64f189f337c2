//! Stages that replace others while their link is cut: the effect of `when_cut: degrade` on a plan.
use super::{Freshness, Plan, PlanEdge, Stage};
use crate::workflow::{CutDegrade, WhenCut};
use std::collections::{BTreeMap, BTreeSet};

/// Why a plan cannot fulfil the workflow's setting for a cut edge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {help}")]
pub struct StandInError {
    /// The operator with `when_cut: degrade` at its input.
    pub operator: String,
    /// The reason.
    pub message: String,
    /// The correction.
    pub help: String,
}

impl Plan {
    /// Adds a stand-in for each stage with models that receives from another worker over an edge with `when_cut:
    /// degrade`: a stage of the operator with the replacement variant, on the sending worker. The stage's output goes
    /// to the stand-in, which forwards it and gets the same input records. A plan that has its stand-ins stays as it
    /// is.
    ///
    /// # Errors
    /// The records come from several workers, or the answers are read on another worker, which could not know which
    /// side has answered.
    pub fn place_stand_ins(
        &mut self,
        when_cut: &BTreeMap<(String, u32), WhenCut>,
    ) -> Result<(), StandInError> {
        let stages: BTreeMap<String, Stage> =
            self.stages.iter().map(|stage| (stage.id.clone(), stage.clone())).collect();
        for stage in stages.values().filter(|stage| stage.stands_in_for.is_none()) {
            let Some(WhenCut::Degrade(degrade)) = when_cut.get(&(stage.operator.clone(), 0)) else {
                continue;
            };
            if stages.values().any(|other| other.stands_in_for.as_ref() == Some(&stage.id)) {
                continue;
            }
            let senders: Vec<&Stage> = self
                .edges
                .iter()
                .filter(|edge| edge.to == stage.id)
                .filter_map(|edge| stages.get(&edge.from))
                .collect();
            if senders.iter().all(|sender| sender.worker == stage.worker) {
                continue; // no edge that can be cut
            }
            let stand_in = self.stand_in(stage, &senders, &stages, degrade)?;
            self.connect_stand_in(stage, stand_in);
        }
        Ok(())
    }

    fn stand_in(
        &self,
        stage: &Stage,
        senders: &[&Stage],
        stages: &BTreeMap<String, Stage>,
        degrade: &CutDegrade,
    ) -> Result<Stage, StandInError> {
        let Stage { operator, worker, .. } = stage;
        let places: BTreeSet<&str> = senders.iter().map(|sender| sender.worker.as_str()).collect();
        let help = |rest: &str| format!("{rest}, or write `when_cut: buffer` at `{operator}`");
        let [Some(sender), None] = [places.first(), places.iter().nth(1)] else {
            let places: Vec<&str> = places.into_iter().collect();
            return Err(StandInError {
                operator: operator.clone(),
                message: format!(
                    "`when_cut: degrade` of `{operator}`: stage `{}` on `{worker}` gets its records from the workers {}, and each of these links can be cut alone",
                    stage.id,
                    places.join(", ")
                ),
                help: help("let one worker send them in the plan"),
            });
        };
        let readers = self.edges.iter().filter(|edge| edge.from == stage.id);
        let far = readers.filter_map(|edge| stages.get(&edge.to)).find(|reader| reader.worker != *sender);
        if let Some(far) = far {
            return Err(StandInError {
                operator: operator.clone(),
                message: format!(
                    "`when_cut: degrade` of `{operator}`: `{}` reads its answers on worker `{}`, but while the edge is cut `{}` answers on `{sender}`, where no stage reads them",
                    far.operator, far.worker, degrade.variant
                ),
                help: help(&format!("place `{}` on `{sender}` in the plan", far.operator)),
            });
        }
        let group =
            senders.first().map_or_else(|| stage.slot_group.clone(), |sender| sender.slot_group.clone());
        Ok(Stage {
            variant: Some(degrade.variant.value.clone()),
            slot_group: group,
            share: stage.share,
            max_batch: stage.max_batch,
            batching_budget: stage.batching_budget,
            byte_budget: stage.byte_budget,
            stands_in_for: Some(stage.id.clone()),
            ..Stage::new(format!("{}-stand-in", stage.id), operator.clone(), sender.to_string())
        })
    }

    /// Inserts a stand-in between a stage and its readers.
    fn connect_stand_in(&mut self, stage: &Stage, stand_in: Stage) {
        let is_into = |edge: &&PlanEdge| edge.to == stage.id;
        let records = self.edges.iter().filter(is_into).map(|edge| PlanEdge {
            to: stand_in.id.clone(),
            freshness: Some(Freshness::Block),
            price: None,
            ..edge.clone()
        });
        let records: Vec<PlanEdge> = records.collect();
        // The answers cost their transfer on the edge to the stand-in; after it they are local.
        let answers = self.edges.iter().find(|edge| edge.from == stage.id).cloned();
        let answers = answers.unwrap_or_else(|| PlanEdge::new(stage.id.clone(), String::new(), 0));
        for edge in self.edges.iter_mut().filter(|edge| edge.from == stage.id) {
            edge.from.clone_from(&stand_in.id);
            edge.price = None;
        }
        self.edges.extend(records);
        self.edges.push(PlanEdge {
            to: stand_in.id.clone(),
            input: 1,
            freshness: Some(Freshness::Block),
            ..answers
        });
        self.stages.push(stand_in);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;
    use crate::plan::{PlanWorkflow, RouteClass};

    fn plan(workers: [&str; 4]) -> Plan {
        let mut plan = Plan::new(PlanWorkflow { name: "see".into(), digest: None });
        let names = ["camera", "some", "see", "out"];
        plan.stages = names.iter().zip(workers).map(|(id, worker)| Stage::new(*id, *id, worker)).collect();
        plan.edges = names.windows(2).map(|pair| PlanEdge::new(pair[0], pair[1], 0)).collect();
        let route = names.iter().map(|id| ((*id).to_owned(), (*id).to_owned())).collect();
        plan.classes = vec![RouteClass { id: 0, share: 1.0, route }];
        plan
    }

    fn degrade() -> BTreeMap<(String, u32), WhenCut> {
        [(("see".to_owned(), 0), WhenCut::Degrade(CutDegrade::new("tiny")))].into()
    }

    #[test]
    fn a_stand_in_is_between_a_stage_and_its_readers() {
        let mut plan = plan(["edge", "edge", "cloud", "edge"]);
        plan.place_stand_ins(&degrade()).unwrap();
        let stand_in = plan.stages.last().unwrap();
        assert_eq!((stand_in.id.as_str(), stand_in.worker.as_str()), ("see-stand-in", "edge"));
        assert_eq!((stand_in.variant.as_deref(), stand_in.answers_for()), (Some("tiny"), "see"));
        let edges: Vec<_> =
            plan.edges.iter().map(|edge| (edge.from.as_str(), edge.to.as_str(), edge.input)).collect();
        assert_eq!(
            edges,
            [
                ("camera", "some", 0),
                ("some", "see", 0),
                ("see-stand-in", "out", 0),
                ("some", "see-stand-in", 0),
                ("see", "see-stand-in", 1)
            ]
        );
        let before = plan.clone();
        plan.place_stand_ins(&degrade()).unwrap();
        assert_eq!(plan, before, "it has it");
    }

    #[test]
    fn where_nothing_can_be_cut_nobody_stands_in() {
        let mut here = plan(["edge"; 4]);
        let before = here.clone();
        here.place_stand_ins(&degrade()).unwrap();
        assert_eq!(here, before);
    }

    #[test]
    fn answers_that_are_read_elsewhere_are_refused() {
        let error = plan(["edge", "edge", "cloud", "cloud"]).place_stand_ins(&degrade()).unwrap_err();
        assert!(error.message.contains("`out` reads its answers on worker `cloud`"), "{error}");
        assert!(
            error.help.contains("`out` on `edge`") && error.help.contains("`when_cut: buffer`"),
            "{error}"
        );
    }

    #[test]
    fn records_of_several_workers_are_refused() {
        let mut several = plan(["edge", "edge", "cloud", "edge"]);
        several.stages.push(Stage::new("other", "some", "edge-2"));
        several.edges.push(PlanEdge::new("other", "see", 0));
        let error = several.place_stand_ins(&degrade()).unwrap_err();
        assert!(error.message.contains("the workers edge, edge-2"), "{error}");
    }
}
