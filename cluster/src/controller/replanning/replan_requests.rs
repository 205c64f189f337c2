//! Handles user requests to search for a plan or to change to one.
use super::Now;
use crate::api::{BundleFile, Planning, ReplanRequest, ReplanView};
use crate::controller::planning::{PlanningRequest, mark_of, pinned};
use crate::controller::{Shared, drive, locked};
use crate::facts::RunFacts;
use crate::replanning::assessment::{as_placed, assessed, moved};
use crate::replanning::decision::{Assessment, Candidate, pays, stages_move};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_app::figures::dollars;
use tidemill_spec::plan::Plan;

/// Reason for a rejected request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReplanError {
    #[error("there is no run `{0}`")]
    NoRun(String),
    #[error("{0}")]
    Refused(String),
}

impl RunFacts {
    /// Whether the plan with this mark is proposed.
    pub(super) fn proposes(&self, mark: &str) -> bool {
        self.planned.proposal.as_ref().is_some_and(|known| mark_of(&known.plan) == mark)
    }
}

impl Shared {
    /// Returns the present plan and the proposed one; `None` if there is no such run.
    pub(crate) fn replan_view(&self, name: &str) -> Option<ReplanView> {
        self.facts.look(|document| {
            let run = document.runs.get(name)?;
            Some(ReplanView {
                current: run.plan.clone(),
                explanation: run.planned.explanation.clone(),
                replan: run.planned.replan,
                proposal: run.planned.proposal.clone(),
                decision: None,
                is_applied: false,
                models: run.planned.models.clone(),
            })
        })
    }

    /// Searches a better plan, or assesses a given one, and changes the run to it if requested.
    ///
    /// # Errors
    /// There is no such run, it is over, or the plan cannot be used.
    pub(crate) fn replan(
        self: &Arc<Self>,
        name: &str,
        request: ReplanRequest,
        by: &str,
    ) -> Result<ReplanView, ReplanError> {
        let Some(run) = self.run_now(name) else {
            return Err(match self.facts.look(|document| document.runs.contains_key(name)) {
                true => ReplanError::Refused(format!("run `{name}` has ended: its plan cannot change")),
                false => ReplanError::NoRun(name.to_owned()),
            });
        };
        if run.facts.state.is_over() {
            return Err(ReplanError::Refused(format!("run `{name}` has ended: its plan cannot change")));
        }
        let ReplanRequest { plan, apply, infrastructure } = request;
        let before = (run.facts.planned.planning.clone(), run.facts.planned.proposal.clone());
        let is_other = infrastructure.is_some();
        let run = match infrastructure {
            Some(file) => self.take_infrastructure(name, run, file)?,
            None => run,
        };
        let answered = self.replan_with(name, &run, (plan, apply), by);
        if answered.is_err() && is_other {
            // A rejected request changes nothing.
            let kept = self.facts.change(|document| {
                if let Some(run) = document.runs.get_mut(name) {
                    (run.planned.planning, run.planned.proposal) = before;
                }
            });
            if let Err(error) = kept {
                tracing::error!("{error}");
            }
        } else if is_other {
            let text =
                format!("{by} sets other machines, prices and links for run {name}, for all later plans");
            self.tell("infrastructure_changed", Some(name), None, &text);
        }
        answered
    }

    fn replan_with(
        self: &Arc<Self>,
        name: &str,
        run: &Now,
        (plan, apply): (Option<Plan>, bool),
        by: &str,
    ) -> Result<ReplanView, ReplanError> {
        let decision = match plan {
            // The user has already seen the proposal.
            Some(plan) if run.facts.proposes(&mark_of(&plan)) => None,
            Some(plan) => Some(self.propose_own(name, run, plan, by)?),
            None if apply && run.facts.planned.proposal.is_some() => None,
            None => Some(self.propose_best(name, run)?),
        };
        let has_one = self.replan_view(name).is_some_and(|view| view.proposal.is_some());
        let is_applied = apply && has_one;
        if is_applied {
            self.apply(name, &format!("requested by {by}")).map_err(ReplanError::Refused)?;
        }
        let view = self.replan_view(name).ok_or_else(|| ReplanError::NoRun(name.to_owned()))?;
        Ok(ReplanView { decision, is_applied, ..view })
    }

    /// Plans the run with these machines, prices and links from now on, if possible.
    fn take_infrastructure(&self, name: &str, run: Now, file: BundleFile) -> Result<Now, ReplanError> {
        let Some(planning) = &run.facts.planned.planning else {
            return Err(ReplanError::Refused(format!(
                "run `{name}` was submitted without profiles: prices and links have no effect on its plan"
            )));
        };
        drive::arrived(self, std::iter::once(&file)).map_err(ReplanError::Refused)?;
        // Its name in the folder of the run, independent of the user's file name.
        let file = BundleFile { path: "infrastructure.yaml".to_owned(), ..file };
        let planning = Planning { infrastructure: Some(file), ..planning.clone() };
        {
            let _alone = locked(&self.planning);
            let quota = run.facts.planned.quota;
            let wish = PlanningRequest {
                name,
                bundle: &run.facts.bundle,
                planning: &planning,
                quota,
                pins: &run.pins,
            };
            let planned_with = self.case(&wish).and_then(|(case, _)| {
                case.assemble().map(|_| ()).map_err(|found| found.to_string().trim_end().to_owned())
            });
            planned_with.map_err(ReplanError::Refused)?;
        }
        let facts = self.facts.change(|document| {
            let run = document.runs.get_mut(name)?;
            run.planned.planning = Some(planning);
            // The proposal was made with other machines.
            run.planned.proposal = None;
            Some(run.clone())
        });
        let facts = facts.map_err(|error| ReplanError::Refused(error.to_string()))?;
        let facts = facts.ok_or_else(|| ReplanError::NoRun(name.to_owned()))?;
        Ok(Now { facts, ..run })
    }

    /// Searches the best plan by current figures.
    fn propose_best(&self, name: &str, run: &Now) -> Result<String, ReplanError> {
        if let Some(parts) = self.missing_of(name).in_words() {
            let decision = format!("no search for another plan until the run is complete again: {parts}");
            self.tell("replan_asked", Some(name), None, &format!("run {name}: {decision}"));
            return Ok(decision);
        }
        let found = {
            let _alone = locked(&self.planning);
            self.look_at(name, run).map_err(ReplanError::Refused)?
        };
        let drift = found.because(&run.facts.plan);
        let now = found.seen.current;
        let decision = match (found.seen.candidate, found.seen.none) {
            (Some(candidate), _) => {
                let then = &candidate.assessment;
                let worth = match (now.misses.is_empty(), pays(now.cost, then.cost, candidate.moved)) {
                    (false, _) => "it keeps more of the levels".to_owned(),
                    (true, true) => "it pays within an hour".to_owned(),
                    (true, false) => "it does not pay within an hour".to_owned(),
                };
                let text = format!(
                    "now {}; then {}; {}; {worth}{drift}",
                    now.text(),
                    then.text(),
                    stages_move(candidate.moved)
                );
                self.propose(name, candidate, &text, None);
                text
            }
            (None, Some(none)) => format!("now {}; {none}{drift}", now.text()),
            (None, None) => format!("the present plan is the best: {}{drift}", now.text()),
        };
        self.tell("replan_asked", Some(name), None, &format!("run {name}: {decision}"));
        Ok(decision)
    }

    /// Takes a user's plan as the proposal if it can be run.
    fn propose_own(&self, name: &str, run: &Now, plan: Plan, by: &str) -> Result<String, ReplanError> {
        let plan = pinned(plan, &BTreeMap::new()); // stages that were moved by hand have links of another kind
        let judged = drive::judge(self, name, &run.facts.bundle, Some(plan)).map_err(ReplanError::Refused)?;
        let plan = judged.plan;
        for (sink, worker) in &run.pins {
            let stage = plan.stages.iter().find(|stage| stage.operator == *sink);
            if let Some(stage) = stage.filter(|stage| stage.worker != worker.id) {
                return Err(ReplanError::Refused(format!(
                    "sink `{sink}` has written files on worker `{}` of the plan, and must stay there, but this plan has it on `{}`",
                    worker.id, stage.worker
                )));
            }
        }
        let before = run.facts.plan.clone();
        let count = moved(&before, &plan);
        let assessment = self.assessed_own(name, run, &plan);
        let numbers = match &assessment {
            Ok(of) => of.text(),
            Err(why) => format!("its figures are not known: {why}"),
        };
        let cost = plan.predicted.as_ref().and_then(|all| Some(all.cost.as_ref()?.value.0));
        let cost = cost.map_or_else(String::new, |cost| format!(", by its own figures {}", dollars(cost)));
        let text = format!("{by} proposes a plan: {numbers}{cost}; {}", stages_move(count));
        let candidate = Candidate {
            mark: mark_of(&plan),
            plan,
            assessment: assessment.unwrap_or_default(),
            moved: count,
            uses: BTreeMap::new(),
        };
        self.propose(name, candidate, &text, Some(by));
        Ok(text)
    }

    /// Assesses a user's plan for the current workers.
    fn assessed_own(&self, name: &str, run: &Now, plan: &Plan) -> Result<Assessment, String> {
        let _alone = locked(&self.planning);
        let problem = self.problem(name, run)?;
        let placed = as_placed(plan, &run.workers(), &problem.case.infrastructure);
        let mut assessment = assessed(&problem.case, &placed, true)?;
        assessment.cost += problem.bound.cost();
        Ok(assessment)
    }
}
