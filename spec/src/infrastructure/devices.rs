//! Devices of machines: what runs models for stages of this and other machines.
//!
//! ```
//! use tidemill_spec::infrastructure::Infrastructure;
//! let text = "
//! version: 1
//! name: hub-with-a-card
//! tiers:
//!   - id: hub
//!     workers:
//!       - type: server
//!         price: 0.1 $/h
//!         devices: [{kind: gpu-small, memory: 16GiB, share: 50%, price: 0.5 $/h, address: 'hub.local:7440'}]
//! ";
//! let infrastructure = Infrastructure::parse(text, "infrastructure.yaml")?;
//! let device = &infrastructure.tiers[0].workers[0].devices[0];
//! assert_eq!((device.share(), device.price(), device.remotable), (0.5, 0.5, true));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use super::WorkerType;
use super::check::twice;
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH};
use crate::identifier;
use crate::span::Located;
use crate::units::{Bytes, HourlyPrice, Percent};
use crate::workflow::DeviceChoice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Devices of one kind in a machine: accelerators, or processors, that a device proxy offers to stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name of the kind: profiles have its times as those of a worker type with this name.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_.-]*$"))]
    pub kind: Located<String>,
    /// Number of devices in one machine, at least 1. Default: 1.
    #[serde(default = "super::one")]
    pub count: Located<u32>,
    /// Memory of one device; none: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Located<Bytes>>,
    /// Part of the time of each device that this workflow may use, above 0%. Default: 100%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Located<Percent>>,
    /// Price of one device while it is used. Default: 0 $/h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Located<HourlyPrice>>,
    /// Whether it runs models of stages on other machines. Default: true.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub remotable: bool,
    /// Where `tidemill device serve` of the machine listens: `HOST:PORT` or `tcp://HOST:PORT`, `tls://HOST:PORT` with TLS, or
    /// `unix:///PATH`; or a server of the Open Inference Protocol: `oip:http://HOST:PORT` or `oip:grpc://HOST:PORT`. Without it
    /// `tidemill deploy` starts the device, and other runs do not reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Located<String>>,
    /// Addresses of other devices that can compute the same, in the forms of `address`, which they need. They are tried in this order
    /// when the device is lost or drained, before stages compute on their own machines. They cost nothing in plans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<Located<String>>,
}

fn yes() -> bool {
    true
}

impl Device {
    /// Part of its time that this workflow may use, above 0, at most 1.
    pub fn share(&self) -> f64 {
        self.share.as_ref().map_or(1.0, |share| share.0 / 100.0)
    }

    /// Price of one while it is used, in $/h.
    pub fn price(&self) -> f64 {
        self.price.as_ref().map_or(0.0, |price| price.0)
    }
}

/// Whether a text is an address of a device proxy: `HOST:PORT`, `tcp://HOST:PORT`, `tls://HOST:PORT` or `unix:///PATH`; or of a server of models:
/// `oip:http://HOST:PORT`, `oip:grpc://HOST:PORT`, perhaps with a path, options and a name.
pub(crate) fn is_address(text: &str) -> bool {
    if let Some(server) = text.strip_prefix("oip:") {
        let server = server.strip_prefix("http://").or_else(|| server.strip_prefix("grpc://"));
        let place = |server: &str| server.split(['/', '?', '#']).next().is_some_and(is_host_with_port);
        return server.is_some_and(place);
    }
    if let Some(path) = text.strip_prefix("unix://") {
        return path.len() > 1 && path.starts_with('/');
    }
    let schemes = ["tcp://", "tls://"];
    is_host_with_port(schemes.iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text))
}

fn is_host_with_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_host = !host.is_empty() && !host.contains("//") && !host.contains(char::is_whitespace);
    is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}

const CODE: &str = "E0318";

/// All forms of an address, for errors.
pub(crate) const ADDRESSES: &str = "write `HOST:PORT`, such as `hub.local:7440`, `tls://HOST:PORT`, `unix:///PATH`, `oip:http://HOST:PORT` or \
                                    `oip:grpc://HOST:PORT`";

impl WorkerType {
    pub(super) fn check_devices(&self, found: &mut Diagnostics) {
        let mut kinds = HashMap::new();
        for device in &self.devices {
            if found.len() >= ENOUGH {
                return;
            }
            found.extend(identifier::check(&device.kind, "."));
            if let Some(first) = kinds.insert(device.kind.as_str(), &device.kind) {
                found.push(
                    twice(CODE, "device kind", &device.kind, first).with_help("merge them with `count`"),
                );
            }
            let mut refuse = |span: &crate::span::Span, message: String, help: &str| {
                found.push(Diagnostic::error(CODE, message).at(span.clone()).with_help(help));
            };
            if DeviceChoice(device.kind.value.clone()).kind().is_none() {
                let help = "`cpu` and `proxy` are the worker's own processors in workflows; give the kind another name";
                refuse(&device.kind.span, format!("a device of the kind `{}`", device.kind), help);
            }
            if device.count.value == 0 {
                let help = "write 1 or more, or leave the device out";
                refuse(&device.count.span, "`count: 0` of a device".to_owned(), help);
            }
            if let Some(share) = device.share.as_ref().filter(|share| !(share.0 > 0.0 && share.0 <= 100.0)) {
                let message = format!("`share: {}` of a device", share.value);
                refuse(&share.span, message, "write a part above 0% and at most 100%, such as `50%`");
            }
            if let Some(memory) = device.memory.as_ref().filter(|memory| memory.0 == 0) {
                let help = "write its memory, such as `16GiB`, or leave it out if it is unknown";
                refuse(&memory.span, "a device without memory runs nothing".to_owned(), help);
            }
            if let Some(spare) = device.spares.first().filter(|_| device.address.is_none()) {
                let help = "write the first of them as `address`";
                refuse(&spare.span, "a device with `spares` and without `address`".to_owned(), help);
            }
            let addresses = device.address.iter().chain(&device.spares);
            if let Some(address) = addresses.into_iter().find(|address| !is_address(address)) {
                refuse(&address.span, format!("`{address}` is no address of a device"), ADDRESSES);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_paths() {
        for address in [
            "hub.local:7440",
            "tcp://hub:7440",
            "10.0.0.7:1",
            "[fd00::7]:7440",
            "tls://hub.local:7440",
            "unix:///run/device.sock",
        ] {
            assert!(is_address(address), "{address}");
        }
        for address in
            ["oip:http://hub:8000", "oip:grpc://[fd00::7]:8001#a", "oip:http://hub:8000/v?timeout=1s"]
        {
            assert!(is_address(address), "{address}");
        }
        for address in
            ["oip:hub:8000", "oip:https://hub:1", "oip:http://hub", "oip:http://:8000", "oip:http://hub:0#a"]
        {
            assert!(!is_address(address), "{address}");
        }
        for address in [
            "hub",
            "hub:",
            ":7440",
            "hub:0",
            "hub:70000",
            "http://hub:7440",
            "tcp://hub",
            "tcp://",
            "tls://hub",
            "tls://",
            "tcp://tls://hub:1",
            "a b:1",
            "unix://x",
            "",
        ] {
            assert!(!is_address(address), "{address}");
        }
    }
}
