//! The paths by which a machine reaches the others: fibre, LTE, satellite.
//!
//! ```
//! use tidemill_spec::infrastructure::Infrastructure;
//! let text = "
//! version: 1
//! name: camera-and-hub
//! tiers:
//!   - {id: edge, workers: [{type: small, price: 0.02 $/h}]}
//!   - {id: hub, workers: [{type: large, price: 0.30 $/h}]}
//! links:
//!   - {from: edge, to: hub, price: 0.1 $/GiB}
//! hosts:
//!   - tier: edge
//!     path_rule: cheapest
//!     paths:
//!       - {id: fibre, interface: eth0}
//!       - {id: lte, interface: wwan0, price: 4 $/GiB}
//!   - {tier: hub, address: hub.example}
//! ";
//! let infrastructure = Infrastructure::parse(text, "infrastructure.yaml")?;
//! let link = infrastructure.link("edge", "hub").ok_or("no link")?;
//! assert!((infrastructure.traffic_price(link).0 * 1_073_741_824.0 - 0.1).abs() < 1e-9, "fibre is free");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
use super::check::twice;
use super::{Host, Infrastructure, Link};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::Located;
use crate::units::TransferPrice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::IpAddr;

/// Bytes that the name of a path may have.
const NAME: usize = 31;

/// A path by which a machine reaches the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkPath {
    /// Name. Paths of one name at both machines belong together.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_-]*$"))]
    pub id: Located<String>,
    /// Network interface of the machine, such as `wwan0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Located<String>>,
    /// Address of the machine, instead of an interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Located<String>>,
    /// Price of what the machine sends or receives over it, besides that of links. Default: 0 $/GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Located<TransferPrice>>,
}

/// Rule by which a machine uses its paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathRule {
    /// The first one that works.
    #[default]
    Prefer,
    /// All that work: each channel uses one.
    Spread,
    /// The one with the lowest price that works.
    Cheapest,
}

impl PathRule {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefer => "prefer",
            Self::Spread => "spread",
            Self::Cheapest => "cheapest",
        }
    }
}

impl NetworkPath {
    fn dollars_per_byte(&self) -> f64 {
        self.price.as_ref().map_or(0.0, |price| price.value.0)
    }
}

impl Host {
    /// Returns the price of a byte that leaves or reaches the machine while all of its paths work, dollars.
    fn path_price(&self) -> f64 {
        let prices = || self.paths.iter().map(NetworkPath::dollars_per_byte);
        match self.path_rule {
            _ if self.paths.is_empty() => 0.0,
            PathRule::Prefer => prices().next().unwrap_or(0.0),
            PathRule::Spread => prices().sum::<f64>() / self.paths.len() as f64,
            PathRule::Cheapest => prices().fold(f64::INFINITY, f64::min),
        }
    }

    pub(super) fn check_paths(&self, found: &mut Diagnostics) {
        let mut firsts: HashMap<&str, &Located<String>> = HashMap::new();
        for path in &self.paths {
            let id = &path.id;
            let is_name = id.len() <= NAME
                && id.starts_with(|c: char| c.is_ascii_lowercase())
                && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c));
            if !is_name {
                found.push(
                    Diagnostic::error("E0316", format!("`{}` is no name of a path", super::hosts::short(id)))
                        .at(id.span.clone())
                        .with_help(format!(
                            "write small letters, digits and dashes, {NAME} at most: `fibre`, `lte`"
                        )),
                );
            }
            if let Some(first) = firsts.insert(id.as_str(), id) {
                found.push(twice("E0316", "path", id, first));
            }
            match (&path.interface, &path.address) {
                (Some(_), Some(address)) => found.push(
                    Diagnostic::error("E0316", format!("path `{id}` has an interface and an address"))
                        .at(address.span.clone())
                        .with_help("the interface is enough: its address is looked up when a run starts"),
                ),
                (None, None) => found.push(
                    Diagnostic::error("E0316", format!("path `{id}` does not say how it leaves the machine"))
                        .at(id.span.clone())
                        .with_help("add `interface: eth0`, or `address:` with an address of the machine"),
                ),
                (Some(interface), None) => {
                    let is_right = (1..16).contains(&interface.len())
                        && interface.chars().all(|c| c.is_ascii_graphic() && c != '/' && c != ',');
                    if !is_right {
                        let text = format!("`{}` is no interface", super::hosts::short(interface));
                        found.push(
                            Diagnostic::error("E0316", text)
                                .at(interface.span.clone())
                                .with_help("`ip link` on the machine lists them, such as `eth0`"),
                        );
                    }
                }
                (None, Some(address)) if address.parse::<IpAddr>().is_err() => found.push(
                    Diagnostic::error(
                        "E0316",
                        format!("`{}` is no IP address", super::hosts::short(address)),
                    )
                    .at(address.span.clone())
                    .with_help(
                        "write an address of the machine, such as `10.0.0.7`; `ip address` lists them",
                    ),
                ),
                (None, Some(_)) => {}
            }
        }
    }
}

impl Infrastructure {
    /// Returns the price of traffic over a link while all paths work: that of the link, and the mean over the sites of either
    /// tier of what their paths cost.
    pub fn traffic_price(&self, link: &Link) -> TransferPrice {
        let paths = self.path_price(&link.from) + self.path_price(&link.to);
        TransferPrice(link.price.value.0 + paths)
    }

    fn path_price(&self, tier: &str) -> f64 {
        let sites = self.tier(tier).map_or(1, |tier| tier.locations.len().max(1));
        let hosts = self.hosts.iter().filter(|host| host.tier.as_str() == tier);
        hosts.map(Host::path_price).sum::<f64>() / sites as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(hosts: &str) -> Result<Infrastructure, Diagnostics> {
        let text = format!(
            "version: 1\nname: x\ntiers:\n  - {{id: edge, locations: [north, south], workers: [{{type: a, price: 1 $/h}}]}}\n  \
             - {{id: hub, workers: [{{type: b, price: 1 $/h}}]}}\nlinks:\n  - {{from: edge, to: hub, price: 1 $/GB}}\n\
             hosts:\n{hosts}"
        );
        Infrastructure::parse(&text, "infrastructure.yaml")
    }

    #[test]
    fn the_rule_decides_which_price_counts() {
        let price = |rule: &str| {
            let paths = "[{id: a, interface: eth0, price: 6 $/GB}, {id: b, interface: eth1, price: 2 $/GB}]";
            let known =
                read(&format!("  - {{tier: edge, location: north, path_rule: {rule}, paths: {paths}}}\n"))
                    .expect("it is right");
            known.traffic_price(known.link("edge", "hub").expect("a link")).0 * 1e9
        };
        // One of two sites has paths.
        for (rule, expected) in [("prefer", 1.0 + 3.0), ("spread", 1.0 + 2.0), ("cheapest", 1.0 + 1.0)] {
            assert!((price(rule) - expected).abs() < 1e-9, "{rule}: {}", price(rule));
        }
    }

    #[test]
    fn mistakes_have_a_place_and_a_correction() {
        for (paths, expected) in [
            ("[{id: a, interface: eth0}, {id: a, interface: eth1}]", "path `a`"),
            ("[{id: a}]", "how it leaves"),
            ("[{id: a, interface: eth0, address: 10.0.0.1}]", "an interface and an address"),
            ("[{id: a, address: hub.example}]", "no IP address"),
            ("[{id: a, interface: 'eth0,eth1'}]", "no interface"),
            ("[{id: 'A b', interface: eth0}]", "no name of a path"),
        ] {
            let error =
                read(&format!("  - {{tier: hub, paths: {paths}}}\n")).expect_err("it is wrong").to_string();
            assert!(error.contains("E0316") && error.contains(expected), "{error}");
        }
    }
}
