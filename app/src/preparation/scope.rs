//! How much of a workflow this host checks, opens and loads.
use super::loads_here;
use crate::choice::{self, Candidates};
use crate::sent::{self, Sent};
use tidemill_operators::bind::Part;
use tidemill_operators::kind::Step;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::plan::{Plan, Stage};
use tidemill_spec::workflow::{Sink, Source, Workflow};

/// The extent to which this host checks, opens and loads a workflow.
#[derive(Clone, Copy)]
pub enum Scope<'a> {
    /// Nothing: types are checked by the workflow's own file and the manifests that are here.
    Manifests,
    /// Nothing, and the files of data and models are looked at.
    Files,
    /// All of it runs here: everything is opened and each model is loaded.
    Here,
    /// A test runs it here: as [`Scope::Here`], but its sinks write nothing, and right answers are not read.
    Test,
    /// The part of one worker of a plan that was checked: what its stages read is opened, and their models are loaded.
    Worker(&'a str, Judge),
    /// Workers elsewhere run it. What was sent with it is looked at. A source or ground truth with an absolute path lies on the
    /// worker that has it; so may the model of a manifest.
    Elsewhere(&'a Sent<'a>),
}

/// The judge of a workflow before a worker opens its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// Caller with the same files as the worker.
    OfThisMachine,
    /// A controller, which sees the files that were sent, and has reported the promises of the workflow without a look at others.
    Elsewhere,
}

impl Scope<'_> {
    pub(super) fn candidates(&self, workflow: &Workflow) -> Result<Candidates, Diagnostics> {
        match self {
            Self::Elsewhere(sent) => sent.candidates(workflow),
            _ => choice::candidates(workflow),
        }
    }

    /// Whether a part of a workflow is opened, with this plan.
    pub(super) fn opens(&self, plan: &Plan, part: Part<'_>) -> bool {
        let of = |id: &str| plan.stages.iter().filter(|stage| stage.operator == *id).collect::<Vec<_>>();
        match (self, part) {
            (Self::Manifests, _) => false,
            (Self::Files | Self::Here | Self::Test, Part::Operator(operator)) => {
                of(&operator.id).into_iter().all(loads_here)
            }
            (Self::Test, Part::Sink(_) | Part::GroundTruth(_)) => false,
            (Self::Test, Part::Source(_)) => true,
            (Self::Files | Self::Here, _) => true,
            // Stage by stage, each with its own variant.
            (Self::Worker(..), Part::Operator(_)) => false,
            (Self::Worker(worker, _), Part::Source(Source { id, .. })) => {
                of(id).iter().any(|stage| stage.worker == *worker)
            }
            (Self::Worker(worker, _), Part::Sink(Sink { id, .. }) | Part::GroundTruth(Sink { id, .. })) => {
                of(id).iter().any(|stage| stage.worker == *worker)
            }
            (Self::Elsewhere(_), part) => sent::opens(part),
        }
    }

    /// Whether a stage runs here.
    pub(super) fn runs(&self, stage: &Stage) -> bool {
        match self {
            Self::Here | Self::Test => true,
            Self::Worker(worker, _) => stage.worker == *worker,
            Self::Manifests | Self::Files | Self::Elsewhere(_) => false,
        }
    }

    pub(super) fn step(&self, stage: &Stage) -> Step {
        let is_open = (self.runs(stage) || matches!(self, Self::Files)) && loads_here(stage);
        if is_open { Step::Open } else { Step::Check }
    }
}
