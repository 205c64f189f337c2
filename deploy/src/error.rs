//! Errors of deploying.
use crate::request::Target;
use tidemill_spec::diagnostic::Diagnostics;

/// Error of deploying.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The plan does not fit the infrastructure; each finding has its position in the plan.
    #[error("{0}")]
    Plan(Diagnostics),
    /// A text that YAML cannot represent.
    #[error("{0}")]
    Yaml(Diagnostics),
    /// The location of the controller is not among those of the plan and the infrastructure.
    #[error("there is no location or tier `{found}` for the controller")]
    NoSuchLocation {
        /// The requested location.
        found: String,
        /// The existing locations.
        known: Vec<String>,
    },
    /// The controller's location is ambiguous: no single location of the tier is reachable.
    #[error("tier `{tier}` has several locations, and the one that the others reach is not known")]
    WhichLocation {
        /// The tier.
        tier: String,
        /// Its locations.
        known: Vec<String>,
    },
    /// The controller's machine has no address for the others.
    #[error("the address at which the others reach the controller's location `{location}` is not known")]
    NoAddress {
        /// The location.
        location: String,
        /// The entry to add to `hosts` of the infrastructure.
        entry: String,
    },
    /// Containers of several machines cannot share a network of an engine.
    #[error("`--network bridge` is a network of one machine, but the locations are on {machines}")]
    OneBridge {
        /// Number of machines.
        machines: usize,
    },
    /// Containers with a network of their own do not see the interfaces of their machine.
    #[error(
        "the paths of `{location}` are of its machine, and its containers would have a network of their own"
    )]
    NoPaths {
        /// The location.
        location: String,
    },
    /// A platform for which the files start no devices.
    #[error("the plan has the device `{device}` without an address, and {} starts no devices", target.name())]
    NoDevices {
        /// The device.
        device: String,
        /// The platform.
        target: Target,
    },
    /// The machine of a device is not known.
    #[error("the machine `{machine}` of the device `{device}` is no worker of the plan")]
    NoMachine {
        /// The device.
        device: String,
        /// Its machine.
        machine: String,
    },
    /// Stages on other machines do not reach a device.
    #[error("stages on other machines do not reach the device `{device}` at the location `{location}`")]
    UnreachedDevice {
        /// The device.
        device: String,
        /// Its location.
        location: String,
        /// The entry to add to `hosts` of the infrastructure.
        entry: String,
    },
    /// Too few ports follow the first one.
    #[error("the deployment needs {wanted} ports from {first} on, but the last port is 65535")]
    TooFewPorts {
        /// The first one.
        first: u16,
        /// Number of ports.
        wanted: usize,
    },
    /// A text that would start new lines in the files.
    #[error("the {what} {text:?} has a line break or another control character in it")]
    Unprintable {
        /// Its name in the plan.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// A text that is no valid label of nodes.
    #[error("the {what} {text:?} cannot be a label of Kubernetes, which selects its nodes")]
    NoLabel {
        /// Its name in the plan.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// A document that JSON cannot represent.
    #[error("cannot write a file as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl DeployError {
    /// Returns advice, if the message has none.
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
                "leave out `--network`: containers then use the networks of their machines".to_owned(),
            ),
            DeployError::NoPaths { .. } => Some(
                "deploy with `--network host` or with systemd, or leave out `paths:` of the host".to_owned(),
            ),
            DeployError::NoDevices { .. } => Some(
                "start it on its machine with `tidemill device serve`, and write where it listens as `address` of the device in the infrastructure; then plan again"
                    .to_owned(),
            ),
            DeployError::NoMachine { .. } => {
                Some("name the infrastructure of the plan: `--infra FILE`".to_owned())
            }
            DeployError::UnreachedDevice { entry, .. } => Some(format!(
                "add `{entry}` to `hosts:` of the infrastructure, without `only_dials`, or write the `address` of a device that runs already"
            )),
            DeployError::TooFewPorts { wanted, .. } => {
                Some(format!("start at {} or lower", usize::from(u16::MAX).saturating_sub(wanted - 1)))
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
