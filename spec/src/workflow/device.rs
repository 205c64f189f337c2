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
use crate::infrastructure::is_address;
use crate::plan::DEVICE_SCHEME;
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

/// Returns message and help for a device that belongs into a plan or an option: an address, or a back end of a proxy.
fn wrong_place(operator: &str, device: &str) -> Option<(String, String)> {
    if let Some(backend) = device.strip_prefix("proxy:") {
        let message = format!("`{device}` names a back end, which an operator has in a key of its own");
        return Some((message, format!("write `device: proxy` and `backend: {backend}`")));
    }
    let place = device.strip_prefix(DEVICE_SCHEME).and_then(|rest| rest.strip_prefix(':')).unwrap_or(device);
    let is_place = place != device || place.contains("://") || is_address(place);
    if !is_place {
        return None;
    }
    let place = match place.contains("://") || !is_address(place) {
        true => place.to_owned(),
        false => format!("tcp://{place}"),
    };
    let in_plan = if place.starts_with("oip:") { place.clone() } else { format!("{DEVICE_SCHEME}:{place}") };
    let (message, option) = match place.contains("://") {
        true => (format!("`{device}` is an address, and operators name none: it belongs into a plan"), place),
        false => (format!("`{device}` is a device of a plan, and operators name none"), in_plan.clone()),
    };
    let help = format!(
        "leave `device` out here, and add `--device {operator}={option}` to `tidemill run`, or write `device: \"{in_plan}\"` at the stage \
         of the plan"
    );
    Some((message, help))
}

impl Workflow {
    /// Which kinds exist is known only with an infrastructure.
    pub(super) fn check_devices(&self, found: &mut Diagnostics) {
        for operator in &self.operators {
            let Some(device) = &operator.device else { continue };
            if found.len() >= ENOUGH {
                return;
            }
            if let Some((message, help)) = wrong_place(&operator.id, &device.0) {
                found.push(Diagnostic::error("E0115", message).at(device.span.clone()).with_help(help));
            } else if let Some((message, help)) = identifier::wrong(&device.0, ".") {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_sent_to_the_plan_or_the_option() {
        let help = |device: &str| wrong_place("detect", device).unwrap_or_else(|| panic!("{device}"));
        let exact = "leave `device` out here, and add `--device detect=tcp://hub:7440` to `tidemill run`, or write \
                     `device: \"device:tcp://hub:7440\"` at the stage of the plan";
        for device in ["tcp://hub:7440", "device:tcp://hub:7440", "hub:7440", "device:hub:7440"] {
            let (message, help) = help(device);
            assert_eq!(help, exact);
            assert!(message.contains(&format!("`{device}` is an address")), "{message}");
        }
        let (_, server) = help("oip:http://hub:8000");
        assert!(
            server.contains("detect=oip:http://hub:8000")
                && server.contains("`device: \"oip:http://hub:8000\"`")
        );
        let (message, planned) = help("device:hub/gpu");
        assert!(message.contains("a device of a plan") && planned.contains("--device detect=device:hub/gpu"));
        assert_eq!(help("proxy:torch").1, "write `device: proxy` and `backend: torch`");
        for device in ["cpu", "proxy", "gpu-small", "Gpu"] {
            assert_eq!(wrong_place("detect", device), None);
        }
    }
}
