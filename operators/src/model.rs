//! Models of operators as plain data.
use crate::api::{BoundOperator, Inference, Instance};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_spec::types::StreamType;

/// A model as plain data: all that another process needs to load it and to compute what its operator computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Operator id.
    pub operator: String,
    /// Operator kind, which makes instances from these data.
    pub kind: String,
    /// The manifest; it names the files of the model, one for each backend where they differ.
    pub manifest: PathBuf,
    /// Id of the manifest.
    pub variant: String,
    /// Backend that computes it; `auto`: who loads it chooses among those of the manifest.
    pub backend: String,
    /// The folder from which libraries of backends are looked for.
    pub libraries: PathBuf,
    /// Type of the rows that it gets.
    pub input: StreamType,
    /// Type of the rows that it gives.
    pub output: StreamType,
    /// Which columns it reads, as its kind writes and reads it.
    pub layout: serde_json::Value,
}

/// The backend that computes a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenBackend {
    /// Its name in manifests, workflows and plans.
    pub name: String,
    /// The reason for it, in a few words.
    pub why: String,
}

impl BoundOperator {
    /// Makes this model the first instance of the operator.
    pub fn give_first(&mut self, model: Box<dyn Inference>) {
        let (first, make) = (Mutex::new(Some(model)), Arc::clone(&self.make));
        self.make = Arc::new(move || {
            let ready = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            ready.map_or_else(|| make(), |model| Ok(Instance::Inference(model)))
        });
    }
}
