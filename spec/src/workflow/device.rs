//! Which device runs the model of an operator.
//!
//! ```
//! use tidemill_spec::workflow::DeviceChoice;
//! let (never, small) = (DeviceChoice("cpu".to_owned()), DeviceChoice("gpu-small".to_owned()));
//! assert!(never.allows(None) && !never.allows(Some("gpu-small")));
//! assert!(DeviceChoice("proxy".to_owned()).allows(None));
//! assert!(small.allows(Some("gpu-small")) && !small.allows(None) && !small.allows(Some("gpu-large")));
//! ```
use super::Workflow;
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH};
use crate::identifier;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where an operator's model runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DeviceChoice(
    /// `cpu`, the processors of the stage's worker; `proxy`, those in a process of its own; or a kind of device in the infrastructure.
    pub String,
);

impl DeviceChoice {
    /// The processors of the worker of the stage.
    pub const CPU: &str = "cpu";
    /// The same in a process of its own, whose end costs the run nothing.
    pub const PROXY: &str = "proxy";

    /// Returns the kind of device, where one is named.
    pub fn kind(&self) -> Option<&str> {
        (self.0 != Self::CPU && self.0 != Self::PROXY).then_some(self.0.as_str())
    }

    /// Returns the device of stages on the processors of their worker; none: it follows from the choice of no process.
    pub fn own(&self) -> Option<String> {
        (self.0 == Self::PROXY).then(|| self.0.clone())
    }

    /// Whether the model may run on a device of this kind; none: on the worker of its stage.
    pub fn allows(&self, kind: Option<&str>) -> bool {
        self.kind() == kind
    }
}

impl Workflow {
    /// Which kinds exist is known only with an infrastructure.
    pub(super) fn check_devices(&self, found: &mut Diagnostics) {
        for operator in &self.operators {
            let Some(device) = &operator.device else { continue };
            if found.len() >= ENOUGH {
                return;
            }
            if let Some((message, help)) = identifier::wrong(&device.0, ".") {
                let help = format!("write `cpu`, `proxy` or a kind of device of the infrastructure: {help}");
                found.push(Diagnostic::error("E0115", message).at(device.span.clone()).with_help(help));
            } else if operator.variants.is_empty() {
                let message = format!("`{}` has no models, so no device runs them", operator.id);
                let help = "remove `device`, or list models under `variants`";
                found.push(Diagnostic::error("E0218", message).at(device.span.clone()).with_help(help));
            }
        }
    }
}
