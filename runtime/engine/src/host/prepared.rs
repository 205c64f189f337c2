//! Models that a host has loaded before its run begins.
use super::resources::{executor_request, start_executor};
use crate::clock::Clock;
use crate::executor::ModelExecutor;
use crate::failure::RunError;
use crate::graph::{Graph, MetricsTable, Program};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_operators::api::Computation;

/// By stage instance; each is taken once.
#[derive(Default)]
pub(crate) struct PreparedModels(Mutex<BTreeMap<String, Arc<dyn ModelExecutor>>>);

impl PreparedModels {
    /// Loads the models of a worker's stages.
    pub(crate) fn load(
        program: &Program,
        graph: &Graph,
        worker: &str,
        metrics: &MetricsTable,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, RunError> {
        let mut all = BTreeMap::new();
        for instance in
            graph.slots.iter().filter(|slot| slot.worker == worker).flat_map(|slot| &slot.instances)
        {
            let stage = program.plan.stages.iter().find(|stage| stage.id == instance.stage);
            let bound = program.operators.get(&instance.stage);
            let (Some(stage), Some(bound)) = (stage, bound) else { continue };
            if matches!(bound.computation, Computation::Inference) {
                let metrics = metrics.stages.get(&stage.id).cloned().unwrap_or_default();
                let request = executor_request((stage, &program.plan), bound, clock, &metrics, None);
                all.insert(instance.instance.clone(), start_executor(&request)?);
            }
        }
        Ok(Self(Mutex::new(all)))
    }

    /// Returns the executor of an instance, if it is loaded and was not taken yet.
    pub(crate) fn take(&self, instance: &str) -> Option<Arc<dyn ModelExecutor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(instance)
    }
}
