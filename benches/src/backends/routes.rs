//! Routes to compute a model: the back ends that are here, in this process or in a proxy.
use anyhow::Context;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_inference::backend::{self, Backend, backend};
use tidemill_inference::facts::ModelFacts;
use tidemill_remote::client::DeviceBackend;
use tidemill_remote::own_program;
use tidemill_remote::reach::{Own, Place, Reached};

/// Ends of the names of files that programs of their own load.
const FORMATS: [&str; 3] = ["pt", "pt2", "so"];

/// A back end, and where it computes.
pub(super) struct Route {
    /// For tables: `ort`, `ort, proxy`.
    pub(super) name: String,
    pub(super) backend: Arc<dyn Backend>,
    /// Folder with files of its own format; none: it loads ONNX files.
    files: Option<PathBuf>,
    /// Lives as long as the session.
    _own: Option<Own>,
}

/// All routes of this machine.
pub(super) struct Routes {
    pub(super) all: Vec<Route>,
    /// Back ends that are not here, each with the reason.
    pub(super) missing: Vec<String>,
}

impl Routes {
    /// Looks which back ends are here, providers aside.
    pub(super) fn here(root: &Path) -> anyhow::Result<Self> {
        own_program::register();
        let names: Vec<&str> =
            backend::registered().map(|known| known.name).filter(|name| !name.contains(':')).collect();
        let (mut here, mut beside, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            let is_own = own_program::of(name).is_some();
            if !is_own {
                match backend(name, root) {
                    Ok(backend) => {
                        here.push(Route { name: name.to_owned(), backend, files: None, _own: None });
                    }
                    Err(error) => {
                        missing.push(error.to_string());
                        continue;
                    }
                }
            }
            let place = Place::Own { backend: Some(name.to_owned()) };
            match place.reach(root, "default", "backends") {
                Ok(Reached { session, own }) => beside.push(Route {
                    name: format!("{name}, proxy"),
                    backend: Arc::new(DeviceBackend::new(Arc::new(session), name)),
                    files: is_own.then(|| root.join(".tidemill/backends").join(name).join("models")),
                    _own: own,
                }),
                Err(error) => missing.push(format!("{name}, proxy: {error}")),
            }
        }
        here.extend(beside);
        anyhow::ensure!(!here.is_empty(), "no back end is here: {}", missing.join("; "));
        Ok(Self { all: here, missing })
    }
}

impl Route {
    /// Facts of the file that this back end loads for a model.
    pub(super) fn file(&self, facts: &ModelFacts) -> Result<ModelFacts, String> {
        let Some(folder) = &self.files else { return Ok(facts.clone()) };
        let stem = facts.path.file_stem().unwrap_or(OsStr::new(""));
        let files = FORMATS.map(|end| folder.join(stem).with_extension(end));
        let path = files
            .iter()
            .find(|path| path.is_file())
            .ok_or("it has no file in the format of this back end")?;
        let read = || std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let own = ModelFacts::of_bytes(path, &read().map_err(|error| format!("{error:#}"))?);
        // These formats name no inputs and outputs.
        Ok(ModelFacts { inputs: facts.inputs.clone(), outputs: facts.outputs.clone(), ..own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_end_with_a_format_of_its_own_loads_the_file_of_that_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let facts = ModelFacts::of_bytes(Path::new("models/vqa/small.onnx"), b"onnx");
        let backend = backend("rten", Path::new(".")).expect("it is built in");
        let route = |files| Route { name: String::new(), backend: Arc::clone(&backend), files, _own: None };
        assert_eq!(route(None).file(&facts).map(|own| own.path), Ok(facts.path.clone()));
        let own = route(Some(folder.path().to_owned()));
        assert!(own.file(&facts).is_err());
        std::fs::write(folder.path().join("small.pt"), "torch").expect("it is written");
        assert_eq!(own.file(&facts).map(|own| own.file_bytes), Ok(5));
    }
}
