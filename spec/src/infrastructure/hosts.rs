//! The machines of the sites of tiers.
use super::check::twice;
use super::{Infrastructure, NetworkPath, PathRule};
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH, suggestion};
use crate::span::Located;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The machine of a site: its address for deployment, and for the other machines during runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its tier.
    pub tier: Located<String>,
    /// Its location in the tier; none: the tier has one site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Located<String>>,
    /// Address for ssh, `ssh://USER@HOST` or `ssh://USER@HOST:PORT`; none: the machine that deploys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^ssh://"))]
    pub host: Option<Located<String>>,
    /// Name or address by which the other machines reach it. Default: the one in `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Located<String>>,
    /// Other machines cannot reach it (it is behind a router); it connects to them. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_dials: bool,
    /// The paths by which it reaches the others, the preferred one first. Default: one, as its system chooses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<NetworkPath>,
    /// Use of the paths. Default: prefer.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub path_rule: PathRule,
    /// Its processors; none: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
}

fn is_usual(rule: &PathRule) -> bool {
    *rule == PathRule::default()
}

/// Architecture of a machine's processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Architecture {
    /// Returns the name in files and in platforms of images.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }
}

/// The parts of `ssh://USER@HOST:PORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SshAddress<'a> {
    /// The user; none: as ssh is configured.
    pub user: Option<&'a str>,
    /// Name or address of the machine, IPv6 without brackets.
    pub machine: &'a str,
    /// Its port; none: as ssh is configured.
    pub port: Option<u16>,
}

impl<'a> SshAddress<'a> {
    /// Parses a text.
    ///
    /// ```
    /// use tidemill_spec::infrastructure::SshAddress;
    /// let address = SshAddress::parse("ssh://deploy@north.example:2222").ok_or("no address")?;
    /// assert_eq!((address.user, address.machine, address.port), (Some("deploy"), "north.example", Some(2222)));
    /// // What begins with a dash would be an option of ssh.
    /// assert_eq!(SshAddress::parse("ssh://-oProxyCommand=x"), None);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix("ssh://")?;
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        let (machine, port) = match rest.strip_prefix('[') {
            Some(inner) => {
                let (machine, after) = inner.split_once(']')?;
                machine.parse::<std::net::Ipv6Addr>().ok()?;
                let port = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
                (machine, port)
            }
            None => match rest.split_once(':') {
                Some((machine, port)) => (machine, Some(port)),
                None => (rest, None),
            },
        };
        let is_bracketed = machine.contains(':');
        let port = match port {
            None => None,
            Some(digits) => Some(digits.parse::<u16>().ok().filter(|port| *port > 0)?),
        };
        let is_user = |user: &str| is_plain(user, "_.-");
        let fits = (is_bracketed || is_plain(machine, ".-_")) && user.is_none_or(is_user);
        fits.then_some(Self { user, machine, port })
    }
}

/// Whether it is a word of letters, digits and `more`, without a dash at the start.
fn is_plain(text: &str, more: &str) -> bool {
    !text.is_empty()
        && text.len() <= 255
        && !text.starts_with('-')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

/// Whether a text can be the name or the address of a machine.
fn is_machine(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok() || is_plain(text, ".-_")
}

impl Host {
    /// Returns the name or address for the other machines, if it is known.
    pub fn reached_at(&self) -> Option<&str> {
        let own = self.address.as_ref().map(|address| address.as_str());
        let of_ssh = || self.host.as_ref().and_then(|host| Some(SshAddress::parse(&host.value)?.machine));
        own.or_else(of_ssh)
    }
}

impl Infrastructure {
    /// Returns the machine of a site, if it is listed.
    pub fn host(&self, tier: &str, location: Option<&str>) -> Option<&Host> {
        let is_it = |host: &&Host| {
            host.tier.value == tier && host.location.as_ref().map(|location| location.as_str()) == location
        };
        self.hosts.iter().find(is_it)
    }

    pub(super) fn check_hosts(&self, found: &mut Diagnostics) {
        let mut firsts: HashMap<(&str, Option<&str>), &Located<String>> = HashMap::new();
        for host in &self.hosts {
            if found.len() >= ENOUGH {
                return;
            }
            let location = host.location.as_ref().map(|location| location.as_str());
            if let Some(first) = firsts.insert((host.tier.as_str(), location), &host.tier) {
                found.push(
                    twice("E0314", "the host of", &host.tier, first)
                        .with_help("a site is one machine: give other machines their own locations"),
                );
            }
            self.check_site(host, found);
            host.check(found);
            host.check_paths(found);
        }
    }

    fn check_site(&self, host: &Host, found: &mut Diagnostics) {
        let Some(tier) = self.tier(host.tier.as_str()) else {
            let tiers = self.tiers.iter().map(|tier| tier.id.as_str());
            found.push(
                Diagnostic::error("E0305", format!("there is no tier `{}`", host.tier))
                    .at(host.tier.span.clone())
                    .with_help(suggestion(&host.tier, tiers, "tiers")),
            );
            return;
        };
        let locations = || tier.locations.iter().map(|location| location.as_str());
        match &host.location {
            Some(location) if !locations().any(|known| known == location.as_str()) => found.push(
                Diagnostic::error("E0310", format!("tier `{}` has no location `{location}`", tier.id))
                    .at(location.span.clone())
                    .with_help(suggestion(location, locations(), "locations")),
            ),
            None if !tier.locations.is_empty() => found.push(
                Diagnostic::error("E0310", format!("the location of `{}` is missing", tier.id))
                    .at(host.tier.span.clone())
                    .with_help(format!("add `location: {}`", locations().next().unwrap_or_default())),
            ),
            _ => {}
        }
    }
}

impl Host {
    fn check(&self, found: &mut Diagnostics) {
        if let Some(host) = self.host.as_ref().filter(|host| SshAddress::parse(&host.value).is_none()) {
            found.push(
                Diagnostic::error("E0315", format!("`{}` is not an address for ssh", short(&host.value)))
                    .at(host.span.clone())
                    .with_help("write `ssh://USER@MACHINE`, with `:PORT` after it if it is not 22"),
            );
        }
        if let Some(address) = self.address.as_ref().filter(|address| !is_machine(&address.value)) {
            found.push(
                Diagnostic::error("E0315", format!("`{}` is not a machine", short(&address.value)))
                    .at(address.span.clone())
                    .with_help("write only its name or its address, such as `hub.example` or `10.0.0.7`"),
            );
        }
    }
}

pub(super) fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_for_ssh() {
        let parts = |text| SshAddress::parse(text).map(|of| (of.user, of.machine, of.port));
        assert_eq!(parts("ssh://a@b"), Some((Some("a"), "b", None)));
        assert_eq!(parts("ssh://b:22"), Some((None, "b", Some(22))));
        assert_eq!(parts("ssh://a@[fd00::7]:22"), Some((Some("a"), "fd00::7", Some(22))));
        assert_eq!(parts("ssh://[fd00::7]"), Some((None, "fd00::7", None)));
        for wrong in [
            "b",
            "https://b",
            "ssh://",
            "ssh://a@",
            "ssh://@b",
            "ssh://b:",
            "ssh://b:0",
            "ssh://b:70000",
            "ssh://-b",
            "ssh://-a@b",
            "ssh://a b",
            "ssh://b/c",
            "ssh://[fd00]",
            "ssh://[fd00::7]x",
            "ssh://a;b",
            "ssh://a@b@c d",
        ] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }
}
