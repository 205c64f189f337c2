//! Errors of models. All are found before the first record.
use crate::backend::BackendError;
use crate::facts::FactsError;
use std::fmt;
use std::path::PathBuf;
use tidemill_spec::backend::BackendId;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::{Located, Span};

/// Input or output of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// An input of the model.
    Input,
    /// An output of the model.
    Output,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Input => "input",
            Role::Output => "output",
        })
    }
}

/// Error of a model. The text has the expected value, the one found, and advice.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The manifest itself is wrong.
    #[error("{}", .0.render(false))]
    Manifest(Diagnostics),
    /// The model file cannot be read or is not an ONNX model.
    #[error("{cause}")]
    File {
        /// Cause.
        cause: FactsError,
        /// Whether its digest differs from the manifest's too.
        damaged: bool,
        /// Position in the manifest.
        span: Span,
    },
    /// The file is not the one that the manifest was written for.
    #[error("{} has sha256 {found}, the manifest expects {expected}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Digest in the manifest.
        expected: String,
        /// Digest of the file.
        found: String,
        /// Position in the manifest.
        span: Span,
    },
    /// The file has no such input or output.
    #[error("the model file has no {role} `{name}`; it has: {available}")]
    NoPort {
        /// Input or output.
        role: Role,
        /// Name in the manifest.
        name: String,
        /// Names in the file.
        available: String,
        /// Position in the manifest.
        span: Span,
    },
    /// The file has an input that the manifest does not feed.
    #[error("the model file reads `{name}` ({found}), which the manifest does not have")]
    NotFed {
        /// Name in the file.
        name: String,
        /// Its type in the file.
        found: String,
        /// The list of the manifest where it belongs, with the line to write.
        advice: String,
        /// Position of that list in the manifest.
        span: Span,
    },
    /// An input or output has another type or shape than the manifest says.
    #[error("{role} `{name}`: expected {expected}, found {found} in the model file")]
    PortType {
        /// Input or output.
        role: Role,
        /// Name.
        name: String,
        /// Type by the manifest.
        expected: String,
        /// Type by the file.
        found: String,
        /// Position in the manifest.
        span: Span,
    },
    /// The steps before or after the model do not fit.
    #[error("{role} `{name}`: {message}")]
    Steps {
        /// Input or output.
        role: Role,
        /// Name.
        name: String,
        /// Expected and found.
        message: String,
        /// Position in the manifest.
        span: Span,
    },
    /// The declared loop does not fit the model.
    #[error("loop: {message}")]
    Loop {
        /// Expected and found.
        message: String,
        /// Position in the manifest.
        span: Span,
    },
    /// The decoder does not fit the encoder or the manifest, or the generation does not fit the file.
    #[error("{section}: {message}")]
    Decoder {
        /// `decoder` or `generate`: section of the manifest.
        section: &'static str,
        /// Expected and found.
        message: String,
        /// Position in the manifest.
        span: Span,
    },
    /// The model comes from a package and was not fetched, or from a script and was not exported.
    #[error("the model `{id}` is not {obtained}")]
    NotFetched {
        /// Id of the model.
        id: String,
        /// How it is obtained.
        obtained: &'static str,
        /// Command that does so.
        command: String,
        /// Position of the file in the manifest.
        span: Span,
    },
    /// Only published figures of the model are known.
    #[error("the model `{id}` is not available: its manifest has only published figures")]
    NotHere {
        /// Id of the model.
        id: String,
        /// Position in the manifest.
        span: Span,
    },
    /// The manifest does not allow the requested backend.
    #[error("the backend {asked} is not one of the manifest's backends: {}", list(allowed))]
    NotAllowed {
        /// The backend.
        asked: String,
        /// The backends that the manifest allows.
        allowed: Vec<Located<BackendId>>,
        /// Position in the manifest.
        span: Span,
    },
    /// A backend is missing or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The first run, on zeros, failed.
    #[error("a trial run on zeros with {rows} record(s) failed: {cause}")]
    Trial {
        /// Batch size.
        rows: usize,
        /// Cause.
        cause: BackendError,
    },
    /// Two backends give different outputs for the same inputs.
    #[error(
        "the backends {backend} and {other} return different values for output `{output}`: the largest \
         difference is {difference}, the limit is {tolerance} ({inputs})"
    )]
    Differs {
        /// Name of one backend.
        backend: String,
        /// Name of the other.
        other: String,
        /// The output.
        output: String,
        /// The largest difference of two values; NaN if only one of them is a number.
        difference: f64,
        /// The largest allowed difference.
        tolerance: f64,
        /// Description of the inputs.
        inputs: String,
    },
    /// The outputs of a record are others beside another record than alone.
    #[error(
        "the values of output `{output}` for a record depend on the others of its batch: alone and beside another record \
         they differ by {difference}, the limit is {tolerance} ({inputs})"
    )]
    Mixes {
        /// The output.
        output: String,
        /// The largest difference of two values; NaN if only one of them is a number.
        difference: f64,
        /// The largest allowed difference.
        tolerance: f64,
        /// Description of the inputs.
        inputs: String,
        /// Position of the output in the manifest.
        span: Span,
    },
}

/// Returns whether a back end says that it found no memory. Each has words of its own.
fn lacks_memory(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    ["out of memory", "memory left", "failed to allocate", "bad_alloc"]
        .iter()
        .any(|words| reason.contains(words))
}

fn list(allowed: &[Located<BackendId>]) -> String {
    let names: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    names.join(", ")
}

impl ModelError {
    /// Returns the reason if the process or host that computes is gone.
    pub fn lost(&self) -> Option<&str> {
        match self {
            ModelError::Backend(BackendError::Lost { reason, .. })
            | ModelError::Trial { cause: BackendError::Lost { reason, .. }, .. } => Some(reason),
            _ => None,
        }
    }

    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            ModelError::Manifest(_) => "E0501",
            ModelError::File { .. } => "E0551",
            ModelError::Checksum { .. } => "E0552",
            ModelError::NoPort { .. } | ModelError::NotFed { .. } => "E0553",
            ModelError::PortType { .. } => "E0554",
            ModelError::Steps { .. } => "E0555",
            ModelError::Loop { .. } | ModelError::Decoder { .. } => "E0556",
            ModelError::NotFetched { .. } => "E0561",
            ModelError::NotHere { .. } => "E0562",
            ModelError::NotAllowed { .. } | ModelError::Backend(_) => "E0557",
            ModelError::Trial { .. } => "E0558",
            ModelError::Differs { .. } => "E0563",
            ModelError::Mixes { .. } => "E0564",
        }
    }

    /// Position in the manifest.
    fn span(&self) -> Span {
        match self {
            ModelError::File { span, .. }
            | ModelError::Checksum { span, .. }
            | ModelError::NoPort { span, .. }
            | ModelError::NotFed { span, .. }
            | ModelError::PortType { span, .. }
            | ModelError::Steps { span, .. }
            | ModelError::Loop { span, .. }
            | ModelError::Decoder { span, .. }
            | ModelError::NotFetched { span, .. }
            | ModelError::NotHere { span, .. }
            | ModelError::Mixes { span, .. }
            | ModelError::NotAllowed { span, .. } => span.clone(),
            _ => Span::nowhere(),
        }
    }

    /// Advice.
    fn fix(&self) -> Option<&'static str> {
        match self {
            ModelError::File { damaged: true, .. } => Some(
                "its sha256 is not the one in the manifest: the file is damaged or not the right one; fetch or train it again",
            ),
            ModelError::File { .. } => Some(
                "the path is relative to the folder of the manifest: put the file there, or correct the path",
            ),
            ModelError::Checksum { .. } => Some(
                "fetch or train the file again, or, if it is the right one, write its sha256 into the manifest",
            ),
            ModelError::NoPort { .. } | ModelError::PortType { .. } => {
                Some("`tidemill models inspect FILE` shows the inputs and outputs of the file")
            }
            ModelError::NotAllowed { .. } => {
                Some("choose one of those, or add it to `backends` in the manifest")
            }
            ModelError::NotHere { .. } => Some(
                "plans can use it; to run it, put the model beside its manifest and name `file`, `sha256` \
                 and `backends` there",
            ),
            ModelError::Trial { cause: BackendError::Shape { changes: true, .. }, .. } => Some(
                "outputs with a variable length are not supported: an output has one row for each record; \
                 export the model without its non-maximum suppression, or with a fixed number of boxes",
            ),
            ModelError::Trial { cause: BackendError::Shape { .. }, .. } => {
                Some("the manifest's shapes or the model file are wrong")
            }
            // Nothing is wrong with the model: the reason says what is.
            ModelError::Trial { cause: BackendError::Lost { .. }, .. } => None,
            ModelError::Trial { cause: BackendError::Run { reason, .. }, .. } if lacks_memory(reason) => {
                Some(
                    "there is too little memory for the model, and another backend may fail in the same way: write a smaller `max_batch` \
                 under `batching`, choose a smaller variant, or free memory; `tidemill device limits TENANT --memory SIZE` changes that \
                 of a device",
                )
            }
            ModelError::Trial { .. } => Some(
                "the backend cannot compute this model: name another one under `backends`, or export the \
                 model again; if the message is about shapes, compare the manifest with `tidemill models \
                 inspect FILE`",
            ),
            ModelError::Differs { .. } => Some(
                "one of them does not compute an operator as in the ONNX standard: compare both with the \
                 outputs of the model after its training, and remove the wrong one from `backends`",
            ),
            ModelError::Mixes { .. } => Some(
                "if `batch` stands in the right place of each shape, the model itself computes over its batch: write 1 instead \
                 of `batch` in the shapes, then records are run one by one",
            ),
            _ => None,
        }
    }

    /// All errors as diagnostics.
    pub fn collect(errors: impl IntoIterator<Item = ModelError>) -> Diagnostics {
        let mut all = Diagnostics::new();
        for error in errors {
            all.append(error.into_diagnostics());
        }
        all
    }

    /// As diagnostics that point into the manifest.
    pub fn into_diagnostics(self) -> Diagnostics {
        let mut diagnostic = Diagnostic::error(self.code(), self.to_string()).at(self.span());
        if let Some(fix) = self.fix() {
            diagnostic = diagnostic.with_help(fix);
        }
        if let ModelError::NotFetched { command, .. } = &self {
            diagnostic = diagnostic
                .with_help(format!("{command}\n(needs the network once; the models that ship work without)"));
        }
        if let ModelError::NotFed { advice, .. } = &self {
            diagnostic = diagnostic.with_help(advice.clone());
        }
        match self {
            ModelError::Manifest(diagnostics) => diagnostics,
            ModelError::Backend(BackendError::Unavailable { backend, reason, fix }) => {
                diagnostic.message = format!("the backend {backend} is not available: {reason}");
                diagnostic.with_help(fix).into()
            }
            _ => diagnostic.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(reason: &str) -> String {
        let cause = BackendError::Run { backend: "ort", model: "m".to_owned(), reason: reason.to_owned() };
        ModelError::Trial { rows: 64, cause }.fix().unwrap_or_default().to_owned()
    }

    #[test]
    fn another_backend_is_advised_only_where_it_may_help() {
        assert!(help("Unsupported operator NonZero").contains("another one under `backends`"));
        for reason in [
            "Failed to allocate memory for requested buffer of size 137438953472",
            "CUDA error 2: out of memory",
            "this machine has no 137438953472 bytes of memory left for a tensor",
        ] {
            let help = help(reason);
            assert!(help.contains("max_batch") && !help.contains("`backends`"), "{help}");
        }
    }
}
