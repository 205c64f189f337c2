//! Why nothing can be deployed.
use tidemill_spec::diagnostic::Diagnostics;

/// Why nothing can be deployed.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The plan does not fit the infrastructure; each finding has its place in the plan.
    #[error("{0}")]
    Plan(Diagnostics),
    /// A text that YAML cannot hold.
    #[error("{0}")]
    Yaml(Diagnostics),
    /// The location of the controller is not among those of the plan and the infrastructure.
    #[error("there is no location or tier `{found}` for the controller")]
    NoSuchLocation {
        /// What was asked for.
        found: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A tier with several locations was named, or none, and none of them is the one that the others reach.
    #[error("tier `{tier}` has several locations, and it is not known which of them the others reach")]
    WhichLocation {
        /// The tier.
        tier: String,
        /// Its locations.
        known: Vec<String>,
    },
    /// The controller's machine has no address that the others could dial.
    #[error("it is not known at which address the others reach the controller's location `{location}`")]
    NoAddress {
        /// The location.
        location: String,
        /// What is to be added to `hosts` of the infrastructure.
        entry: String,
    },
    /// Containers of several machines were to be in one network of an engine.
    #[error("`--network bridge` is a network of one machine, and the locations are on {machines}")]
    OneBridge {
        /// How many.
        machines: usize,
    },
    /// Ports that follow the first one would be none.
    #[error("the deployment takes {wanted} ports from {first} on, and the last port is 65535")]
    TooFewPorts {
        /// The first one.
        first: u16,
        /// How many.
        wanted: usize,
    },
    /// A text that would begin lines of its own in the files.
    #[error("the {what} {text:?} has a line break or another control character in it")]
    Unprintable {
        /// What it is of the plan.
        what: &'static str,
        /// As it is.
        text: String,
    },
    /// A text that no label of nodes can be.
    #[error("the {what} {text:?} can be no label of Kubernetes, by which its nodes are chosen")]
    NoLabel {
        /// What it is of the plan.
        what: &'static str,
        /// As it is.
        text: String,
    },
    /// A document that JSON cannot hold.
    #[error("a file cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl DeployError {
    /// What to do about it, where the message does not say.
    pub fn help(&self) -> Option<String> {
        match self {
            DeployError::NoSuchLocation { known, .. } => Some(format!("write one of {}", known.join(", "))),
            DeployError::WhichLocation { known, .. } => {
                Some(format!("choose with `--controller`: {}", known.join(", ")))
            }
            DeployError::NoAddress { entry, .. } => Some(format!(
                "add `{entry}` to `hosts:` of the infrastructure, or choose another `--controller`"
            )),
            DeployError::OneBridge { .. } => Some(
                "leave `--network` out: containers are in the networks of their machines then".to_owned(),
            ),
            DeployError::TooFewPorts { wanted, .. } => {
                Some(format!("begin at {} or lower", usize::from(u16::MAX).saturating_sub(wanted - 1)))
            }
            DeployError::Unprintable { .. } => Some("write it on one line".to_owned()),
            DeployError::NoLabel { .. } => Some(
                "write up to 63 letters, digits, `-`, `_` and `.`, with a letter or a digit first and last, in the infrastructure and the plan"
                    .to_owned(),
            ),
            DeployError::Plan(_) | DeployError::Yaml(_) | DeployError::Json(_) => None,
        }
    }
}
