//! Views of cut edges of runs, and the events that report them.
use super::{Shared, locked};
use crate::api::{CutStage, CutView, StandInView};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_engine::Observer;
use tidemill_spec::workflow::WhenCut;

/// Shorter silences of a worker are ignored.
const SILENCE: Duration = Duration::from_secs(2);

/// Last reported state of a run's edges, and of its stand-ins by replaced stage: whether one answers, and its number of answers.
#[derive(Default)]
pub(super) struct ReportedCuts {
    edges: BTreeMap<(String, String), (CutStage, Option<String>)>,
    stand_ins: BTreeMap<String, (bool, u64)>,
}

impl Shared {
    /// Reports changes of edges for which the workflow defines a behaviour while cut.
    pub(super) fn look_at_cuts(&self, run: &str, observer: &Observer, told: &mut ReportedCuts) {
        let program = observer.program();
        if program.when_cut.is_empty() {
            return;
        }
        let views = self.cut_views(run, observer);
        let mut now = BTreeMap::new();
        for view in &views {
            let edge = (view.from.clone(), view.to.clone());
            let stage = view.stage;
            let before = told.edges.get(&edge).map(|(stage, _)| *stage);
            if before != Some(stage) {
                // The state of a silent worker is now known.
                let kind = match (before, stage) {
                    (Some(CutStage::Silent), CutStage::Cut) | (Some(CutStage::Cut), CutStage::Silent) => None,
                    (_, CutStage::Cut | CutStage::Silent) => Some("edge_cut"),
                    (_, CutStage::Delivers) => Some("edge_back"),
                };
                if let Some(kind) = kind {
                    let text = format!("run {run}: {}", view.in_words());
                    self.tell(kind, Some(run), view.worker.as_deref(), &text);
                }
            }
            now.insert(edge, (stage, view.worker.clone()));
        }
        for ((from, to), (stage, worker)) in told.edges.iter().filter(|(edge, _)| !now.contains_key(*edge)) {
            let text = match stage {
                CutStage::Delivers => {
                    format!("run {run}: edge {from} -> {to} has delivered its kept records")
                }
                CutStage::Cut | CutStage::Silent => format!("run {run}: edge {from} -> {to} is back"),
            };
            let kind = if *stage == CutStage::Delivers { "edge_delivered" } else { "edge_back" };
            self.tell(kind, Some(run), worker.as_deref(), &text);
        }
        told.edges = now;
        let stand_ins = self.stand_in_views(run, observer);
        for view in &stand_ins {
            let before = told.stand_ins.insert(view.of.clone(), (view.answers, view.answered_here));
            let (answered, rows) = before.unwrap_or_default();
            // Its work while it was unreachable becomes known afterwards.
            let kind = match (answered, view.answers) {
                (false, true) => "degraded",
                (true, false) => "restored",
                (false, false) if view.answered_here > rows && before.is_some() => "restored",
                _ => continue,
            };
            self.tell(kind, Some(run), view.worker.as_deref(), &format!("run {run}: {}", view.in_words()));
        }
        if let Some(live) = locked(&self.runs).get_mut(run) {
            live.cuts = views;
            live.stand_ins = stand_ins;
        }
    }

    fn stand_in_views(&self, run: &str, observer: &Observer) -> Vec<StandInView> {
        let program = observer.program();
        let plan = &program.plan;
        let workers = self.workers_by_role(run);
        let risks_accuracy = self.late(run).levels.iter().any(|level| level.level == "accuracy");
        let stand_ins = plan.stages.iter().filter_map(|stage| {
            let of = stage.stands_in_for.as_ref()?;
            let mut asks = plan.edges.iter().filter(|edge| edge.to == *of);
            let asks = asks.find(|edge| matches!(program.when_cut(edge), Some(WhenCut::Degrade(_))))?;
            let metrics = observer.edge(&asks.from, &asks.to, asks.input)?;
            let other = plan.stages.iter().find(|other| other.id == *of);
            Some(StandInView {
                of: of.clone(),
                of_variant: other.and_then(|other| other.variant.clone()),
                variant: stage.variant.clone().unwrap_or_default(),
                worker: workers.get(&stage.worker).cloned().flatten(),
                answers: metrics.degraded.get() > 0,
                answered_here: metrics.answered_here.load(Ordering::Relaxed),
                answered_there: metrics.answered_there.load(Ordering::Relaxed),
                risks_accuracy,
            })
        });
        stand_ins.collect()
    }

    /// The cluster's worker for each worker of a plan.
    fn workers_by_role(&self, run: &str) -> BTreeMap<String, Option<String>> {
        self.facts.look(|document| {
            let roles = document.runs.get(run).map(|run| &run.roles);
            roles.into_iter().flatten().map(|(role, of)| (role.clone(), of.worker.clone())).collect()
        })
    }

    fn cut_views(&self, run: &str, observer: &Observer) -> Vec<CutView> {
        let program = observer.program();
        let workers = self.workers_by_role(run);
        let edges = program.plan.edges.iter().filter_map(|edge| {
            let when_cut = program.when_cut(edge)?;
            let metrics = observer.edge(&edge.from, &edge.to, edge.input)?;
            let role =
                program.plan.stages.iter().find(|stage| stage.id == edge.from).map(|stage| &stage.worker)?;
            let worker = workers.get(role).cloned().flatten();
            let silent = worker.as_deref().filter(|worker| !self.is_alive(worker));
            let silent = silent.and_then(|worker| self.silence(worker)).filter(|silent| *silent >= SILENCE);
            let buffered = metrics.buffered.get();
            let (stage, seconds) = if let Some(silent) = silent {
                (CutStage::Silent, silent.as_secs_f64())
            } else if metrics.cut.get() > 0 {
                let since = metrics.cut_since.load(Ordering::Relaxed);
                (CutStage::Cut, (observer.now() - since).max(0) as f64 / 1e9)
            } else if metrics.delivers.get() > 0 {
                (CutStage::Delivers, 0.0)
            } else {
                return None;
            };
            let (size_bytes, most) = match when_cut {
                WhenCut::Buffer(buffer) => (Some(buffer.size().0), buffer.time()),
                WhenCut::Stop(stop) => (None, stop.after()),
                WhenCut::Degrade(degrade) => (Some(degrade.size().0), degrade.time()),
            };
            Some(CutView {
                from: edge.from.clone(),
                to: edge.to.clone(),
                worker,
                stage,
                seconds,
                kept_bytes: (stage != CutStage::Silent).then_some(buffered),
                size_bytes,
                most_seconds: most.0 as f64 / 1e9,
            })
        });
        edges.collect()
    }
}
