//! Execution providers: the parts of ONNX Runtime that compute on other processors, or with other libraries on this one.
//!
//! Each is a backend of its own, `ort:cuda` for instance, so that a manifest, workflow, plan or profile names it wherever it
//! names a backend. The library computes on the CPU what a provider cannot, and everything if the provider does not start.
//! Here that is an error: what was named is there and computes, or the load fails with the reason.
use super::super::library::{self, Found};
use super::super::placement::Placed;
use super::super::{Backend, BackendError, Registration};
use super::{NAME, OnnxRuntime};
use ort::ep::{self, ExecutionProvider as _, ExecutionProviderDispatch};
use ort::memory::AllocationDevice;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use std::path::Path;
use std::sync::Arc;

/// A provider.
#[derive(Debug)]
pub(super) struct Provider {
    /// Name of the backend.
    pub(super) backend: &'static str,
    /// Name of the provider, as [`Placed`] has it.
    pub(super) name: &'static str,
    /// Whether the library was built with it.
    is_built_in: fn() -> ort::Result<bool>,
    /// It, then those that compute what it cannot, before the CPU.
    made: fn() -> Vec<ExecutionProviderDispatch>,
    /// The memory in which its tensors are, if that is not the host's.
    pub(super) memory: Option<AllocationDevice<'static>>,
    /// A library that has it.
    library: &'static str,
    /// Libraries that it loads when it starts.
    needs: &'static str,
}

/// 32-bit floats are computed with 32 bits, as by all other backends, not with the 19 of TF32.
fn cuda() -> ExecutionProviderDispatch {
    ep::CUDA::default().with_tf32(false).build()
}

static CUDA: Provider = Provider {
    backend: "ort:cuda",
    name: "cuda",
    is_built_in: ep::CUDA::is_available,
    made: || vec![cuda()],
    memory: Some(AllocationDevice::CUDA),
    library: "that of the Python package onnxruntime-gpu has it",
    needs: "a driver for the card, CUDA and cuDNN in folders that the system or LD_LIBRARY_PATH names",
};

static TENSORRT: Provider = Provider {
    backend: "ort:tensorrt",
    name: "tensorrt",
    is_built_in: ep::TensorRT::is_available,
    made: || vec![ep::TensorRT::default().build(), cuda()],
    memory: Some(AllocationDevice::CUDA),
    library: "that of the Python package onnxruntime-gpu has it",
    needs: "a driver for the card, CUDA, cuDNN and TensorRT in folders that the system or LD_LIBRARY_PATH names",
};

static OPENVINO: Provider = Provider {
    backend: "ort:openvino",
    name: "openvino",
    is_built_in: ep::OpenVINO::is_available,
    made: || vec![ep::OpenVINO::default().with_num_threads(1).build()],
    memory: None,
    library: "that of the Python package onnxruntime-openvino has it",
    needs: "the libraries of OpenVINO in the folder of libonnxruntime.so, as that package has them",
};

static XNNPACK: Provider = Provider {
    backend: "ort:xnnpack",
    name: "xnnpack",
    is_built_in: ep::XNNPACK::is_available,
    made: || vec![ep::XNNPACK::default().build()],
    memory: None,
    library: "builds for Android and builds with `--use_xnnpack` have it",
    needs: "nothing else",
};

static ALL: [&Provider; 4] = [&CUDA, &TENSORRT, &OPENVINO, &XNNPACK];

/// Whether a library that is found may have a provider: its file is beside the library. One that is part of the library itself, such as
/// XNNPACK, is known only when that is opened.
pub(in super::super) fn may_have(backend: &str, directory: &Path) -> bool {
    let Some(provider) = ALL.iter().find(|provider| provider.backend == backend) else { return true };
    let file = format!("libonnxruntime_providers_{}.so", provider.name);
    let has = |path: &Path| {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        path.parent().is_some_and(|folder| folder.join(&file).is_file())
    };
    match library::find(&library::ONNXRUNTIME, directory) {
        Found::Named { path, .. } => has(&path),
        Found::Searched { candidates, .. } => candidates.iter().any(|path| has(path)),
    }
}

/// Registers a provider as a backend.
macro_rules! registration {
    ($provider:ident, $name:literal, $summary:literal) => {
        Registration::onnx($name, $summary, |directory| open(&$provider, directory))
    };
}

/// Their registrations.
pub const REGISTRATIONS: [Registration; 4] = [
    registration!(CUDA, "ort:cuda", "ONNX Runtime on a card, by CUDA."),
    registration!(
        TENSORRT,
        "ort:tensorrt",
        "ONNX Runtime on a card, by TensorRT, and by CUDA what that lacks."
    ),
    registration!(OPENVINO, "ort:openvino", "ONNX Runtime by OpenVINO, on processors of Intel."),
    registration!(XNNPACK, "ort:xnnpack", "ONNX Runtime by XNNPACK, on processors of Arm above all."),
];

/// Loads the library, and the provider in it.
fn open(provider: &'static Provider, directory: &Path) -> Result<Arc<dyn Backend>, BackendError> {
    let runtime = OnnxRuntime::open(directory).map_err(|error| match error {
        BackendError::Unavailable { reason, fix, .. } => {
            BackendError::Unavailable { backend: provider.backend, reason, fix }
        }
        other => other,
    })?;
    provider.starts(&runtime)?;
    Ok(Arc::new(OnnxRuntime { provider: Some(provider), ..runtime }))
}

/// Returns the providers that a library was built with, the CPU left out, each with why it does not start, if it does not.
pub(super) fn of(runtime: &OnnxRuntime) -> Vec<(&'static str, Option<String>)> {
    let built_in = ALL.into_iter().filter(|provider| (provider.is_built_in)().unwrap_or(false));
    built_in.map(|provider| (provider.name, provider.fault(runtime))).collect()
}

impl Provider {
    /// Checks that the library has the provider and that it starts: else a session would compute on the CPU.
    fn starts(&self, runtime: &OnnxRuntime) -> Result<(), BackendError> {
        let unavailable = |reason: String, fix: String| BackendError::Unavailable {
            backend: self.backend,
            reason,
            fix: format!("{fix}; `{NAME}` computes on the processor"),
        };
        if !(self.is_built_in)().unwrap_or(false) {
            let others: Vec<&str> = of(runtime).into_iter().map(|(name, _)| name).chain(["cpu"]).collect();
            let library = runtime.library().display();
            return Err(unavailable(
                format!("{library} has no provider {}, only {}", self.name, others.join(", ")),
                format!("let TIDEMILL_ONNXRUNTIME name another libonnxruntime.so: {}", self.library),
            ));
        }
        match self.fault(runtime) {
            Some(reason) => Err(unavailable(reason, format!("it needs {}", self.needs))),
            None => Ok(()),
        }
    }

    /// Returns why the provider does not start, without a model.
    fn fault(&self, runtime: &OnnxRuntime) -> Option<String> {
        let builder = Session::builder(&runtime.environment).map_err(|error| error.to_string());
        builder.and_then(|builder| self.append(builder)).err().map(|message| cause(&message).to_owned())
    }

    /// Makes sessions use it. The library has then loaded what the provider needs.
    pub(super) fn append(&self, builder: SessionBuilder) -> Result<SessionBuilder, String> {
        let made: Vec<_> =
            (self.made)().into_iter().map(ExecutionProviderDispatch::error_on_failure).collect();
        builder.with_execution_providers(made).map_err(|error| error.to_string())
    }

    /// Checks that the provider computes at least one operator of a session.
    pub(super) fn computes(&self, placement: &[Placed]) -> Result<(), String> {
        let name = self.name;
        match placement {
            [] => Err(format!(
                "the library does not report whether {name} computes a file in ONNX Runtime's own format (`.ort`): \
                 use the ONNX file"
            )),
            some if some.iter().any(|placed| placed.provider == name) => Ok(()),
            some => {
                let others: Vec<String> = some
                    .iter()
                    .map(|placed| format!("{} of them on {}", placed.operators, placed.provider))
                    .collect();
                Err(format!(
                    "{name} computes none of its operators, which would run elsewhere: {}",
                    others.join(", ")
                ))
            }
        }
    }
}

/// The cause in a message of the library, without the place in its source text.
fn cause(message: &str) -> &str {
    message.rsplit_once(" : FAIL : ").map_or(message, |(_, cause)| cause).trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{backend, names, placement, usable};
    use crate::facts::inspect;
    use crate::tensor::{Tensor, TensorData};
    use std::path::PathBuf;

    fn testdata(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
    }

    #[test]
    fn each_is_a_backend_whose_name_says_what_it_is() {
        for (provider, registration) in ALL.into_iter().zip(REGISTRATIONS) {
            assert_eq!(provider.backend, registration.name);
            assert_eq!(provider.backend, format!("{NAME}:{}", provider.name));
            assert!(names().contains(&provider.backend));
        }
    }

    #[test]
    fn a_provider_computes_or_is_told_to_be_missing() {
        let here = testdata("");
        let Ok(runtime) = OnnxRuntime::open(&here) else {
            let error = backend("ort:cuda", &here).err().unwrap().to_string();
            assert!(
                error.starts_with("the backend ort:cuda is not available") && error.contains("doctor --fix"),
                "{error}"
            );
            return;
        };
        let facts = inspect(&testdata("linear.onnx")).unwrap();
        let input = Tensor::new(vec![2, 4], TensorData::Float32((0..8u8).map(f32::from).collect())).unwrap();
        let built_in = of(&runtime);
        for provider in ALL {
            let known = built_in.iter().find(|(name, _)| *name == provider.name);
            match (backend(provider.backend, &here), known) {
                (Ok(opened), Some((_, None))) => {
                    let mut session = opened.load(&facts).unwrap();
                    assert_eq!(
                        session.placement(),
                        [Placed { provider: provider.name.to_owned(), operators: 1 }]
                    );
                    let expected =
                        runtime.load(&facts).unwrap().run(std::slice::from_ref(&input), &[0]).unwrap();
                    assert_eq!(session.run(std::slice::from_ref(&input), &[0]).unwrap(), expected);
                }
                (Err(error), None) => {
                    let text = error.to_string();
                    let expected = format!(
                        "the backend {} is not available: {} has no provider {}, only ",
                        provider.backend,
                        runtime.library().display(),
                        provider.name
                    );
                    assert!(text.starts_with(&expected), "{text}");
                    assert!(
                        text.contains(provider.library) && text.ends_with("`ort` computes on the processor"),
                        "{text}"
                    );
                }
                (Err(error), Some((_, Some(fault)))) => {
                    let text = error.to_string();
                    assert!(text.contains(fault.as_str()) && text.contains(provider.needs), "{text}");
                    assert!(!text.contains("onnxruntime_src"), "{text}");
                }
                (other, known) => panic!("{}: {:?} {known:?}", provider.backend, other.err()),
            }
        }
        let told: Vec<&str> = usable(&here).into_iter().map(|(name, _)| name).collect();
        let starts = built_in.iter().filter(|(_, fault)| fault.is_none()).count();
        assert_eq!(told.iter().filter(|name| name.contains(':')).count(), starts, "{told:?}");
    }

    #[test]
    fn a_file_whose_assignment_is_not_told_is_refused() {
        let Ok(runtime) = OnnxRuntime::open(&testdata("")) else { return };
        let facts = inspect(&testdata("line_reader.ort")).unwrap();
        for (name, _) in of(&runtime).into_iter().filter(|(_, fault)| fault.is_none()) {
            let opened = backend(&format!("{NAME}:{name}"), &testdata("")).unwrap();
            let error = opened.load(&facts).err().unwrap().to_string();
            assert!(error.contains("use the ONNX file"), "{error}");
        }
    }

    #[test]
    fn a_model_that_only_the_cpu_computes_is_refused() {
        let Ok(runtime) = OnnxRuntime::open(&testdata("")) else { return };
        let facts = inspect(&testdata("tables/forest.onnx")).unwrap();
        assert!(runtime.load(&facts).is_ok());
        for (name, _) in of(&runtime).into_iter().filter(|(_, fault)| fault.is_none()) {
            let opened = backend(&format!("{NAME}:{name}"), &testdata("")).unwrap();
            let error = opened.load(&facts).err().unwrap().to_string();
            assert!(error.contains(&format!("{name} computes none of its operators")), "{error}");
            assert!(error.contains("on cpu; try another backend of the manifest"), "{error}");
        }
    }

    #[test]
    fn a_named_provider_that_computes_nothing_is_an_error() {
        let placed = |provider: &str, operators| Placed { provider: provider.to_owned(), operators };
        assert_eq!(CUDA.computes(&[placed("cuda", 3), placed("cpu", 9)]), Ok(()));
        let reason = CUDA.computes(&[placed("cpu", 9)]).unwrap_err();
        assert_eq!(
            reason,
            "cuda computes none of its operators, which would run elsewhere: 9 of them on cpu"
        );
        assert!(TENSORRT.computes(&[placed("cuda", 9)]).is_err(), "another provider is none either");
        assert!(CUDA.computes(&[]).is_err_and(|reason| reason.contains(".ort")));
        assert_eq!(
            placement::in_words(&[placed("cuda", 9)]).as_deref(),
            Some("cuda computes all 9 operators")
        );
    }

    #[test]
    fn a_cause_is_shown_without_the_place_in_the_library() {
        let message = "/src/provider_bridge_ort.cc:2043 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library \
                       x.so with error: libcublasLt.so.13: cannot open shared object file\n";
        assert_eq!(
            cause(message),
            "Failed to load library x.so with error: libcublasLt.so.13: cannot open shared object file"
        );
        assert_eq!(
            cause("CUDA execution provider is not enabled in this build. "),
            "CUDA execution provider is not enabled in this build."
        );
    }
}
