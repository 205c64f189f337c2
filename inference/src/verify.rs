//! Whether a model is fit for use: everything short of real data.
use crate::backend;
use crate::blueprint::Blueprint;
use crate::error::ModelError;
use crate::facts::ModelFacts;
use crate::model::Model;
use std::path::Path;
use std::sync::Arc;
use tidemill_spec::types::StreamType;

/// How a backend of the manifest does.
#[derive(Debug)]
pub struct BackendReport {
    /// Name of the backend.
    pub backend: String,
    /// Whether it loaded the model and the trial run gave the right shapes.
    pub result: Result<(), ModelError>,
}

/// What [`verify`] found.
#[derive(Debug)]
pub struct Report {
    /// Id of the model.
    pub id: String,
    /// What the file says of itself.
    pub facts: ModelFacts,
    /// The columns that it gives.
    pub output: StreamType,
    /// One entry for each backend of the manifest.
    pub backends: Vec<BackendReport>,
}

impl Report {
    /// Whether at least one backend can run the model and none of the available ones fails.
    pub fn is_usable(&self) -> bool {
        let unavailable = |error: &ModelError| {
            matches!(error, ModelError::Backend(backend::BackendError::Unavailable { .. }))
        };
        self.backends.iter().any(|b| b.result.is_ok())
            && self.backends.iter().all(|b| b.result.as_ref().err().is_none_or(unavailable))
    }
}

/// Checks a manifest, its model file, and a trial run on each backend that the manifest allows.
/// `directory`: where the search for libraries starts.
///
/// # Errors
/// Everything that does not agree between manifest and file. What backends say is in the report.
pub fn verify(manifest_path: &Path, directory: &Path) -> Result<Report, Vec<ModelError>> {
    let blueprint = Blueprint::read(manifest_path)?;
    let backends = blueprint
        .manifest
        .backends
        .iter()
        .map(|name| {
            let backend = name.to_string();
            let result = backend::backend(&backend, directory)
                .map_err(ModelError::from)
                .and_then(|b| Model::load(blueprint.clone(), b.as_ref()))
                .map(drop);
            BackendReport { backend, result }
        })
        .collect();
    let blueprint: &Arc<Blueprint> = &blueprint;
    Ok(Report {
        id: blueprint.manifest.id.to_string(),
        facts: blueprint.facts.clone(),
        output: StreamType::new(blueprint.output_columns()),
        backends,
    })
}
