//! The name of a server as a device of a plan: `oip:http://HOST:PORT/PREFIX?version=2&timeout=30s#MODEL`.
use std::fmt;
use std::time::Duration;

/// Time that an answer is waited for if the device does not say it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the protocol is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// HTTP with JSON, and tensors as bytes.
    Http,
    /// gRPC.
    Grpc,
}

/// Where a server is, and which of its models computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) scheme: Scheme,
    /// Host and port.
    pub(super) authority: String,
    /// Path before `/v2`, without a slash at its end; empty for most servers.
    pub(super) prefix: String,
    /// Version of the model; none: the server chooses.
    pub(super) version: Option<String>,
    /// Longest time of one inference.
    pub(super) timeout: Duration,
    /// Name of the model on the server, if it is not that of the manifest.
    pub(super) model: Option<String>,
}

impl Address {
    /// Reads the name of a device. An error says what is wrong.
    pub(super) fn parse(device: &str) -> Result<Self, String> {
        let (rest, model) = match device.split_once('#') {
            Some((_, "")) => return Err("no name of a model follows the `#`".to_owned()),
            Some((rest, model)) => (rest, Some(model.to_owned())),
            None => (device, None),
        };
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (scheme, place) = match place.strip_prefix("oip:").and_then(|place| place.split_once("://")) {
            Some(("http", place)) => (Scheme::Http, place),
            Some(("grpc", place)) => (Scheme::Grpc, place),
            Some((other, _)) => return Err(format!("`{other}` is neither `http` nor `grpc`")),
            None => return Err("it has no `oip:http://` or `oip:grpc://`".to_owned()),
        };
        let (authority, prefix) = place.split_at(place.find('/').unwrap_or(place.len()));
        let prefix = prefix.trim_end_matches('/').to_owned();
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        if !authority.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port)) {
            return Err("it needs a host and a port".to_owned());
        }
        if !place.bytes().all(|byte| byte.is_ascii_graphic()) || authority.contains('@') {
            return Err("a host or a path has no such characters".to_owned());
        }
        if scheme == Scheme::Grpc && !prefix.is_empty() {
            return Err("gRPC has no path".to_owned());
        }
        let (mut version, mut timeout) = (None, PATIENCE);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("version", text)) if !text.is_empty() => version = Some(text.to_owned()),
                Some(("timeout", text)) => {
                    timeout =
                        time(text).ok_or_else(|| format!("`{text}` is no time, as in `30s` or `500ms`"))?;
                }
                _ => return Err(format!("`{option}` is neither `version=N` nor `timeout=30s`")),
            }
        }
        Ok(Self { scheme, authority: authority.to_owned(), prefix, version, timeout, model })
    }
}

fn time(text: &str) -> Option<Duration> {
    let (number, unit): (_, fn(u64) -> Duration) = match text.strip_suffix("ms") {
        Some(number) => (number, Duration::from_millis),
        None => (text.strip_suffix('s')?, Duration::from_secs),
    };
    number.parse().ok().filter(|number| *number > 0).map(unit)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Grpc => "grpc",
        };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_names_a_server_and_a_model() {
        let plain = Address::parse("oip:http://hub:8000").unwrap();
        assert_eq!((plain.to_string().as_str(), plain.timeout), ("http://hub:8000", PATIENCE));
        assert_eq!((plain.scheme, plain.prefix.as_str(), plain.model), (Scheme::Http, "", None));
        let whole = Address::parse("oip:http://[::1]:8000/a/b/?version=2&timeout=500ms#a b").unwrap();
        assert_eq!((whole.authority.as_str(), whole.prefix.as_str()), ("[::1]:8000", "/a/b"));
        assert_eq!((whole.version.as_deref(), whole.model.as_deref()), (Some("2"), Some("a b")));
        assert_eq!(whole.timeout, Duration::from_millis(500));
        let grpc = Address::parse("oip:grpc://hub:8001?timeout=9s").unwrap();
        assert_eq!((grpc.scheme, grpc.timeout), (Scheme::Grpc, Duration::from_secs(9)));
    }

    #[test]
    fn other_names_are_refused() {
        let all = [
            "oip",
            "oip:hub:8000",
            "http://hub:8000",
            "oip:https://hub:8000",
            "oip:http://hub",
            "oip:http://:8000",
            "oip:http://hub:0",
            "oip:http://a b:1",
            "oip:http://me@hub:1",
            "oip:grpc://hub:1/v1",
            "oip:http://hub:1#",
            "oip:http://hub:1?timeout=5",
            "oip:http://hub:1?timeout=0s",
            "oip:http://hub:1?x=1",
            "oip:http://hub:1?version=",
        ];
        for device in all {
            assert!(Address::parse(device).is_err(), "{device}");
        }
    }
}
