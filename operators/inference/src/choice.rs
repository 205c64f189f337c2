//! Choice of a model's backend: the requested one, or the fastest of those that the manifest allows.
use crate::backend::placement::{self, Placed};
use crate::backend::{self, Backend, BackendError, library};
use crate::blueprint::Blueprint;
use crate::error::ModelError;
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_spec::manifest::OriginKind;

/// Runs before a probe is measured.
const WARM_UPS: usize = 3;
/// Runs of a probe; the median counts.
const RUNS: usize = 20;
/// Runs of a slow model's probe, which suffice for long runs; the threshold follows.
const FEWEST_RUNS: usize = 3;
const LONG_ENOUGH: Duration = Duration::from_millis(500);

/// Duration of one record on a backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Name of the backend.
    pub backend: String,
    /// Median of the runs with one record, microseconds.
    pub median_us: f64,
}

/// Reason for a choice.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// The workflow or plan names it.
    Asked,
    /// It is the only allowed and available one.
    OnlyOne,
    /// It was the fastest of these, now.
    Probed(Vec<Probe>),
    /// It was the fastest of these in an earlier run on this machine.
    Remembered(Vec<Probe>),
}

/// A chosen backend.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Id of the model.
    pub model: String,
    /// Name of the backend.
    pub backend: String,
    /// Reason.
    pub reason: Reason,
    /// Allowed backends that could not be used, with the reason.
    pub left_out: Vec<(String, String)>,
    /// Providers that compute the model's operators, where its backend has several.
    pub placement: Vec<Placed>,
}

impl Choice {
    /// The reason in a few words, and what computes.
    pub fn why(&self) -> String {
        let why = match &self.reason {
            Reason::Asked => "as asked".to_owned(),
            Reason::OnlyOne => "the only one here".to_owned(),
            Reason::Probed(probes) | Reason::Remembered(probes) => {
                let times = probes.iter().map(|p| format!("{} {:.2} ms", p.backend, p.median_us / 1e3));
                times.collect::<Vec<_>>().join(", ")
            }
        };
        match placement::in_words(&self.placement) {
            Some(placement) => format!("{why}; {placement}"),
            None => why,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} runs on {}", self.model, self.backend)?;
        match &self.reason {
            Reason::Asked => f.write_str(" (as asked)")?,
            Reason::OnlyOne => f.write_str(" (the only one available)")?,
            Reason::Probed(probes) | Reason::Remembered(probes) => {
                let probes: Vec<String> =
                    probes.iter().map(|p| format!("{} {:.0} us", p.backend, p.median_us)).collect();
                write!(f, " ({}", probes.join(", "))?;
                f.write_str(if matches!(self.reason, Reason::Probed(_)) {
                    ")"
                } else {
                    ", measured earlier)"
                })?;
            }
        }
        if let Some(placement) = placement::in_words(&self.placement) {
            write!(f, "; {placement}")?;
        }
        for (backend, reason) in &self.left_out {
            write!(f, "; without {backend}: {reason}")?;
        }
        Ok(())
    }
}

/// Serialises probes and decisions: stages load on several threads, and parallel probes would disturb each other.
static DECIDING: Mutex<()> = Mutex::new(());

/// Loads a model with the backend `asked`, or with `auto` the fastest of those that the manifest allows and this machine
/// has. `directory`: start of the search for libraries, see [`library::find`].
///
/// The choice is stored per model file, versions of the backends and kind of CPU in `backend-choice.json` of
/// [`library::cache_folder`].
///
/// # Errors
/// [`ModelError`]; with `auto` that of the last backend if none could load the model.
pub fn load(
    blueprint: &Arc<Blueprint>,
    asked: &str,
    directory: &Path,
) -> Result<(Model, Choice), ModelError> {
    let memory = library::cache_folder().map(|folder| folder.join("backend-choice.json"));
    load_with_memory(blueprint, asked, directory, memory.as_deref())
}

/// Loads a model as [`load`] does, with a file of stored choices; `None` stores nothing.
///
/// # Errors
/// See [`load`].
pub fn load_with_memory(
    blueprint: &Arc<Blueprint>,
    asked: &str,
    directory: &Path,
    memory: Option<&Path>,
) -> Result<(Model, Choice), ModelError> {
    if blueprint.manifest.origin.kind == OriginKind::Published {
        let (id, span) = (blueprint.manifest.id.value.clone(), blueprint.manifest.id.span.clone());
        return Err(ModelError::NotHere { id, span });
    }
    let _deciding = DECIDING.lock().unwrap_or_else(PoisonError::into_inner);
    let model = blueprint.manifest.id.to_string();
    if asked != "auto" {
        not_allowed(blueprint, asked)?;
        let loaded = Model::load(blueprint.clone(), backend::backend(asked, directory)?.as_ref())?;
        let (backend, placement) = (asked.to_owned(), loaded.placement());
        let choice = Choice { model, backend, reason: Reason::Asked, left_out: Vec::new(), placement };
        // The log has the operators that a named provider left to others.
        let choice = if choice.placement.is_empty() { choice } else { report(choice) };
        return Ok((loaded, choice));
    }
    let mut left_out: Vec<(String, String)> = Vec::new();
    let mut available: Vec<Arc<dyn Backend>> = Vec::new();
    let mut last = None;
    for name in blueprint.manifest.backends.iter().map(ToString::to_string) {
        match backend::backend(&name, directory) {
            Ok(backend) => available.push(backend),
            Err(error) => {
                left_out.push((name, error.to_string()));
                last = Some(ModelError::from(error));
            }
        }
    }
    let key = key(blueprint, &available);
    if available.len() > 1
        && let Some(probes) = memory.and_then(|path| recall(path, &key))
        && let Some(fastest) = fastest(&probes)
        && let Some(backend) = available.iter().find(|backend| backend.name() == fastest)
        && let Ok(loaded) = Model::load(blueprint.clone(), backend.as_ref())
    {
        let (backend, placement) = (fastest.to_owned(), loaded.placement());
        let choice = Choice { model, backend, reason: Reason::Remembered(probes), left_out, placement };
        return Ok((loaded, report(choice)));
    }
    let mut models = Vec::new();
    for backend in &available {
        match Model::load(blueprint.clone(), backend.as_ref()) {
            Ok(loaded) => models.push(loaded),
            Err(error) => {
                left_out.push((backend.name().to_owned(), error.to_string()));
                last = Some(error);
            }
        }
    }
    let mut probes = Vec::new();
    if models.len() > 1 {
        models.retain_mut(|loaded| match probe(loaded) {
            Ok(median) => {
                let median_us = median.as_secs_f64() * 1e6;
                probes.push(Probe { backend: loaded.backend().to_owned(), median_us });
                true
            }
            Err(error) => {
                left_out.push((loaded.backend().to_owned(), error.to_string()));
                last = Some(error.into());
                false
            }
        });
        // A single probe allows no comparison.
        if probes.len() < 2 {
            probes.clear();
        } else if let Some(path) = memory {
            remember(path, key, &probes);
        }
    }
    let best = fastest(&probes).map(str::to_owned);
    let position =
        best.and_then(|best| models.iter().position(|loaded| loaded.backend() == best)).unwrap_or(0);
    if position >= models.len() {
        return Err(last.unwrap_or_else(|| backend::unknown_name(asked).into()));
    }
    let loaded = models.swap_remove(position);
    let reason = if probes.is_empty() { Reason::OnlyOne } else { Reason::Probed(probes) };
    let (backend, placement) = (loaded.backend().to_owned(), loaded.placement());
    let choice = Choice { model, backend, reason, left_out, placement };
    Ok((loaded, report(choice)))
}

/// Checks whether the backend is allowed, before anything is loaded.
pub(crate) fn not_allowed(blueprint: &Blueprint, asked: &str) -> Result<(), ModelError> {
    let backends = &blueprint.manifest.backends;
    if asked == "auto" || blueprint.manifest.allows(asked) {
        return Ok(());
    }
    Err(ModelError::NotAllowed {
        asked: asked.to_owned(),
        allowed: backends.value.clone(),
        span: backends.span.clone(),
    })
}

fn report(choice: Choice) -> Choice {
    tracing::info!(model = choice.model, backend = choice.backend, "{choice}");
    choice
}

#[expect(
    clippy::disallowed_methods,
    reason = "a probe measures this machine; no record's time depends on it"
)]
fn probe(model: &mut Model) -> Result<Duration, BackendError> {
    let rows = [model.zeros()];
    let begun = std::time::Instant::now();
    for _ in 0..WARM_UPS {
        model.run_trial(&rows)?;
        if begun.elapsed() > LONG_ENOUGH {
            break;
        }
    }
    let mut times = Vec::with_capacity(RUNS);
    while times.len() < RUNS && (times.len() < FEWEST_RUNS || begun.elapsed() < 2 * LONG_ENOUGH) {
        let start = std::time::Instant::now();
        model.run_trial(&rows)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn fastest(probes: &[Probe]) -> Option<&str> {
    probes.iter().min_by(|a, b| a.median_us.total_cmp(&b.median_us)).map(|probe| probe.backend.as_str())
}

/// Returns a key of everything that may affect which backend is faster.
fn key(blueprint: &Blueprint, available: &[Arc<dyn Backend>]) -> String {
    let mut versions: Vec<String> =
        available.iter().map(|b| format!("{} {}", b.name(), b.version())).collect();
    versions.sort_unstable();
    let decoder = blueprint.sequence.as_ref().map_or("", |plan| plan.decoder.sha256.as_str());
    let processor = tidemill_machine::processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let files: String = blueprint.digests().collect();
    format!("{files}{decoder} | {} | {processor}", versions.join(", "))
}

fn recall(path: &Path, key: &str) -> Option<Vec<Probe>> {
    read(path).remove(key)
}

fn read(path: &Path) -> BTreeMap<String, Vec<Probe>> {
    // A missing or damaged file only costs another probe.
    std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn remember(path: &Path, key: String, probes: &[Probe]) {
    let mut all = read(path);
    all.insert(key, probes.to_vec());
    let write = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let temporary: PathBuf = path.with_extension(format!("{}.partial", std::process::id()));
        std::fs::write(&temporary, serde_json::to_vec_pretty(&all)?)?;
        std::fs::rename(&temporary, path)
    };
    if let Err(error) = write() {
        tracing::debug!(%error, path = %path.display(), "cannot save the choice of the backend");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blueprint(name: &str) -> Arc<Blueprint> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        Blueprint::read(&folder.join(name)).unwrap()
    }

    #[test]
    fn a_named_backend_is_taken_or_refused() {
        let blueprint = blueprint("linear.yaml");
        let (model, choice) = load_with_memory(&blueprint, "rten", Path::new("."), None).unwrap();
        assert_eq!((model.backend(), choice.reason), ("rten", Reason::Asked));
        let error = load_with_memory(&blueprint, "tvm", Path::new("."), None).err().unwrap();
        assert!(matches!(error, ModelError::NotAllowed { .. }), "{error}");
    }

    #[test]
    fn a_choice_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("new/backend-choice.json");
        let blueprint = blueprint("linear.yaml");
        let (_, first) = load_with_memory(&blueprint, "auto", Path::new("."), Some(&memory)).unwrap();
        if first.reason == Reason::OnlyOne {
            assert_eq!(first.backend, "rten");
            assert!(first.left_out[0].1.contains("tidemill doctor --fix"), "{first}");
            return;
        }
        assert!(matches!(&first.reason, Reason::Probed(probes) if probes.len() == 2), "{first}");
        let (model, second) = load_with_memory(&blueprint, "auto", Path::new("."), Some(&memory)).unwrap();
        assert_eq!(second.backend, first.backend);
        assert_eq!(model.backend(), first.backend);
        assert!(
            matches!(second.reason, Reason::Remembered(_)) && second.to_string().contains("measured earlier")
        );
        std::fs::write(&memory, "damaged").unwrap();
        let (_, third) = load_with_memory(&blueprint, "auto", Path::new("."), Some(&memory)).unwrap();
        assert!(matches!(third.reason, Reason::Probed(_)));
    }

    #[test]
    fn the_smallest_median_wins() {
        let probe = |backend: &str, median_us| Probe { backend: backend.to_owned(), median_us };
        assert_eq!(fastest(&[probe("rten", 20.0), probe("ort", 10.0)]), Some("ort"));
        assert_eq!(fastest(&[]), None);
    }
}
