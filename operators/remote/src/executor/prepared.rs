//! Models that were loaded on their device before the run began: the first executor of each stage takes its one.
use super::Elsewhere;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tidemill_engine::ExecutorSpec;

/// Facts that the stage of a run keeps from its preparation on: the back end of its model is chosen meanwhile.
#[derive(PartialEq, Eq)]
struct Key {
    workflow: String,
    stage: String,
    device: String,
    address: Option<String>,
    manifest: Option<PathBuf>,
}

impl Key {
    fn of(spec: &ExecutorSpec) -> Self {
        Self {
            workflow: spec.workflow.clone(),
            stage: spec.stage.clone(),
            device: spec.device.clone(),
            address: spec.address.clone(),
            manifest: spec.model.as_ref().map(|model| model.manifest.clone()),
        }
    }
}

/// Models that no executor has taken yet. The program that was prepared keeps them: without it their sessions end.
#[derive(Default)]
pub(super) struct Prepared(Mutex<Vec<(Key, Weak<Elsewhere>)>>);

impl Prepared {
    pub(super) fn keep(&self, spec: &ExecutorSpec, model: &Arc<Elsewhere>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, model)| model.strong_count() > 0);
        all.push((Key::of(spec), Arc::downgrade(model)));
    }

    pub(super) fn take(&self, spec: &ExecutorSpec) -> Option<Arc<Elsewhere>> {
        let (mut all, key) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Key::of(spec));
        let at = all.iter().position(|(of, model)| *of == key && model.strong_count() > 0)?;
        all.swap_remove(at).1.upgrade()
    }
}
