//! Back ends that are programs of their own, `tidemill-device-NAME`: the command knows their names and how to start them.
//!
//! ```
//! tidemill_remote::own_program::register();
//! let told = tidemill_inference::backend::backend("torch", ".".as_ref()).err().unwrap().to_string();
//! assert!(told.contains("device: proxy"), "{told}");
//! ```
use crate::reach::{Place, ReachError};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tidemill_inference::backend::{self, BackendError, Registration};
use tidemill_inference::facts::{FactsError, ModelFacts};
use tidemill_spec::backend::OWN_PROGRAMS;

/// libtorch.
const TORCH: Registration = Registration {
    is_here: Some(|_| false),
    inspect: |path| {
        inspect(path, b"PK\x03\x04", "a TorchScript file or a package of PyTorch, which are zips")
    },
    ..Registration::onnx("torch", "libtorch, in a device proxy.", |_| Err(elsewhere("torch")))
};

/// Apache TVM.
const TVM: Registration = Registration {
    is_here: Some(|_| false),
    inspect: |path| inspect(path, b"\x7fELF", "a library that TVM wrote"),
    ..Registration::onnx("tvm", "Apache TVM, in a device proxy.", |_| Err(elsewhere("tvm")))
};

/// Makes the names of these back ends known to manifests and workflows; once, before any file that names one is read.
pub fn register() {
    for registration in [TORCH, TVM] {
        // A program that has one in it keeps it.
        backend::register(registration);
    }
}

fn elsewhere(backend: &'static str) -> BackendError {
    BackendError::Unavailable {
        backend,
        reason: "it computes only in a device proxy".to_owned(),
        fix: format!(
            "write `device: proxy` and `backend: {backend}` at the operator, or start `tidemill device serve --proxy-program tidemill-device-{backend}` and name its address{}",
            built_by(backend)
        ),
    }
}

/// What builds the program, as the end of a message.
fn built_by(backend: &str) -> String {
    format!("; scripts/backends.sh {backend} builds it into .tidemill/bin")
}

/// Facts of a file that names no inputs and outputs: they are those of the manifest.
fn inspect(path: &Path, begins: &[u8], what: &str) -> Result<ModelFacts, FactsError> {
    let bytes =
        std::fs::read(path).map_err(|source| FactsError::Unreadable { path: path.to_owned(), source })?;
    if !bytes.starts_with(begins) {
        return Err(FactsError::Other { path: path.to_owned(), reason: format!("it is not {what}") });
    }
    Ok(ModelFacts::of_bytes(path, &bytes))
}

/// Where a model with this back end computes: `proxy` is `proxy:torch` for one that asks for `torch`.
pub(crate) fn place(place: Place, backend: &str) -> Place {
    match place {
        Place::Own { backend: None } if OWN_PROGRAMS.contains(&backend) => {
            Place::Own { backend: Some(backend.to_owned()) }
        }
        place => place,
    }
}

/// The program of a back end that has one of its own: beside the command, or on `PATH`. None: the back end is in the command.
///
/// # Errors
/// There is no such program.
pub fn of(backend: &str) -> Option<Result<PathBuf, ReachError>> {
    OWN_PROGRAMS.contains(&backend).then(|| {
        let own = std::env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent);
        let path = std::env::var_os("PATH").unwrap_or_default();
        found(backend, beside, &path).ok_or_else(|| {
            ReachError::Start(format!(
                "tidemill-device-{backend} is neither beside the command nor on PATH{}",
                built_by(backend)
            ))
        })
    })
}

fn found(backend: &str, beside: Option<&Path>, path: &OsStr) -> Option<PathBuf> {
    let name = format!("tidemill-device-{backend}");
    let folders = beside.map(Path::to_owned).into_iter().chain(std::env::split_paths(path));
    folders.map(|folder| folder.join(&name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beside_the_command_comes_before_one_on_the_path() {
        let (beside, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = other.path().as_os_str();
        assert_eq!(found("torch", Some(beside.path()), path), None);
        for folder in [&other, &beside] {
            let program = folder.path().join("tidemill-device-torch");
            std::fs::write(&program, "").unwrap();
            assert_eq!(found("torch", Some(beside.path()), path), Some(program));
        }
        assert!(of("rten").is_none());
        let proxy = Place::Own { backend: None };
        assert_eq!(place(proxy.clone(), "torch"), Place::Own { backend: Some("torch".to_owned()) });
        assert_eq!(place(proxy.clone(), "rten"), proxy);
    }

    #[test]
    fn each_program_has_a_registration() {
        assert_eq!([TORCH, TVM].map(|own| own.name), OWN_PROGRAMS);
    }

    #[test]
    fn a_file_of_another_format_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.pt");
        std::fs::write(&path, "no zip").unwrap();
        assert!(matches!((TORCH.inspect)(&path), Err(FactsError::Other { .. })));
        assert!(matches!((TVM.inspect)(&path), Err(FactsError::Other { .. })));
        std::fs::write(&path, b"PK\x03\x04...").unwrap();
        assert_eq!((TORCH.inspect)(&path).unwrap().file_bytes, 7);
    }
}
