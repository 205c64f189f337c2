//! The broker of a source or sink: its address, login, certificates, and the pauses between connections.
use rumqttc::{
    ConnectReturnCode, ConnectionError, DisconnectReasonCode, MqttOptions, StateError, TlsConfiguration,
    Transport,
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_operators::kind::EndContext;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;

/// Largest file of a password.
const FILE_LIMIT: u64 = 4096;
/// Silence after which the broker is asked whether it is still there.
const KEEP_ALIVE: u16 = 15;
/// Shortest and longest pause between attempts to connect.
pub(crate) const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Returns the present time on a clock that is never set.
#[allow(clippy::disallowed_methods, reason = "brokers follow no simulated time")]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// The options of a broker, as they are written beside the others.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    pub(crate) broker: &'a Located<String>,
    pub(crate) user: Option<&'a Located<String>>,
    pub(crate) password_env: Option<&'a Located<String>>,
    pub(crate) password_file: Option<&'a Located<String>>,
    pub(crate) tls: Option<&'a Located<Tls>>,
    pub(crate) client_id: Option<&'a Located<String>>,
}

/// The option `tls`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Tls {
    /// Whether the connection is encrypted, with the authorities that the machine trusts.
    Switched(bool),
    /// The authorities to trust.
    With(Trusted),
}

/// Authorities to trust.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trusted {
    /// PEM file of certificates, relative to the workflow file.
    ca_file: String,
}

/// A broker, with the login. Never shown as a whole: it has the password.
#[derive(Clone)]
pub(crate) struct Broker {
    host: String,
    port: u16,
    login: Option<(String, String)>,
    tls: Option<Arc<rustls::ClientConfig>>,
    pub(crate) client_id: String,
}

fn wrong(text: impl Into<String>, help: &str) -> Diagnostic {
    Diagnostic::error("E0606", text).with_help(help)
}

impl Broker {
    /// Checks the options; reads passwords and certificates only where the context opens the end.
    pub(crate) fn of(
        context: &EndContext<'_>,
        written: &Written<'_>,
        errors: &mut Diagnostics,
    ) -> Option<Self> {
        let place = place_of(written.broker).map_err(|error| errors.push(error)).ok();
        let login = login(context, written).map_err(|error| errors.push(error)).ok();
        let tls = tls(context, written.tls).map_err(|error| errors.push(error)).ok();
        let client_id = match written.client_id {
            Some(given) if given.is_empty() || given.len() > 256 || given.chars().any(char::is_control) => {
                errors.push(
                    wrong(
                        "`client_id` is empty, too long, or has control characters",
                        "write a name such as `line-4`",
                    )
                    .at(given.span.clone()),
                );
                return None;
            }
            Some(given) => given.value.clone(),
            None => default_client_id(context),
        };
        let (host, port) = place?;
        Some(Self { host, port, login: login?, tls: tls?, client_id })
    }

    /// `HOST:PORT`.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The options of a connection to it.
    pub(crate) fn options(&self) -> MqttOptions {
        let mut options = MqttOptions::new(self.client_id.clone(), (self.host.clone(), self.port));
        options.set_keep_alive(KEEP_ALIVE);
        options.set_connect_timeout(Duration::from_secs(10));
        if let Some((user, password)) = &self.login {
            options.set_credentials(user.clone(), password.clone().into_bytes());
        }
        if let Some(tls) = &self.tls {
            options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::clone(tls))));
        }
        options
    }
}

/// Whether a new attempt would end in the same way, with what to do.
pub(crate) fn final_cause(error: &ConnectionError, client_id: &str) -> Option<String> {
    let taken = || {
        format!(
            "another client with the id `{client_id}` has connected: give each run a `client_id` of its own"
        )
    };
    match error {
        ConnectionError::ConnectionRefused(code)
        | ConnectionError::MqttState(StateError::ConnFail { reason: code }) => match code {
            ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized => {
                Some("the broker rejects the user or its password".into())
            }
            ConnectReturnCode::ClientIdentifierNotValid | ConnectReturnCode::BadClientId => {
                Some(format!("the broker rejects the client id `{client_id}`"))
            }
            ConnectReturnCode::Banned => Some("the broker has banned this client".into()),
            ConnectReturnCode::RefusedProtocolVersion | ConnectReturnCode::UnsupportedProtocolVersion => {
                Some("the broker does not know version 5 of MQTT".into())
            }
            _ => None,
        },
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => {
            (*reason_code == DisconnectReasonCode::SessionTakenOver).then(taken)
        }
        _ => None,
    }
}

/// Whether a message that was on its way is larger than the broker takes: each new connection would end for it.
pub(crate) fn too_large_for(error: &ConnectionError) -> Option<String> {
    let ConnectionError::MqttState(error) = error else { return None };
    let is_too_large = match error {
        StateError::OutgoingPacketTooLarge { .. } => true,
        StateError::ServerDisconnect { reason_code, .. } => {
            *reason_code == DisconnectReasonCode::PacketTooLarge
        }
        // Some brokers answer so, which the protocol does not know.
        StateError::Deserialization(rumqttc::Error::InvalidConnectReturnCode(code)) => {
            *code == DisconnectReasonCode::PacketTooLarge as u8
        }
        _ => false,
    };
    is_too_large.then(|| {
        "it does not take a message because of its size, and has told no limit that says so: raise its limit, name fewer \
         `columns`, or leave such rows out by a `filter` before the sink"
            .into()
    })
}

/// Spreads reconnects: clients that lost the same broker do not return at once.
pub(crate) fn spread(pause: Duration, number: u64) -> Duration {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(number);
    pause.mul_f64(0.5 + (hasher.finish() >> 11) as f64 / (1u64 << 54) as f64)
}

fn place_of(written: &Located<String>) -> Result<(String, u16), Diagnostic> {
    let help =
        "write host and port, such as `broker.local:1883`; user and password have options of their own";
    if written.contains('@') || written.contains("://") {
        // Not shown: it may have a password.
        return Err(wrong("`broker` is a URL, expected a host and a port", help));
    }
    let parts = written.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    match parts {
        Some((host, port)) if !host.is_empty() && port > 0 => {
            Ok((host.trim_matches(['[', ']']).to_owned(), port))
        }
        _ => Err(wrong(format!("`{written}` is not a host with a port"), help).at(written.span.clone())),
    }
}

fn login(context: &EndContext<'_>, written: &Written<'_>) -> Result<Option<(String, String)>, Diagnostic> {
    let (env, file) = (written.password_env, written.password_file);
    let given = env.or(file);
    let Some(user) = written.user else {
        return match given {
            None => Ok(None),
            Some(given) => {
                Err(wrong("there is a password and no user", "write `user` too").at(given.span.clone()))
            }
        };
    };
    let password = match (env, file) {
        (Some(_), Some(file)) => {
            let text = "`password_env` and `password_file` are both given";
            return Err(wrong(text, "write one of them").at(file.span.clone()));
        }
        _ if !context.opens() => String::new(),
        (Some(variable), None) => std::env::var(&variable.value).map_err(|_| {
            wrong(
                format!("the variable `{variable}` of the environment is not set"),
                "set it where this runs, or write `password_file`",
            )
            .at(variable.span.clone())
        })?,
        (None, Some(file)) => read(context, file).map_err(|error| {
            Diagnostic::error("E0609", format!("cannot read the password in `{file}`: {error}"))
                .at(file.span.clone())
                .with_help("write the path of a file with the password alone, relative to the workflow file")
        })?,
        (None, None) => String::new(),
    };
    Ok(Some((user.value.clone(), password)))
}

fn read(context: &EndContext<'_>, file: &str) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(context.path(file))?.take(FILE_LIMIT).read_to_string(&mut text)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn tls(
    context: &EndContext<'_>,
    written: Option<&Located<Tls>>,
) -> Result<Option<Arc<rustls::ClientConfig>>, Diagnostic> {
    let Some(written) = written else { return Ok(None) };
    if matches!(written.value, Tls::Switched(false)) || !context.opens() {
        return Ok(None);
    }
    configured(context, &written.value).map(|config| Some(Arc::new(config))).map_err(|error| {
        Diagnostic::error("E0609", format!("cannot read the certificates to trust: {error}"))
            .at(written.span.clone())
            .with_help("write `tls: {ca_file: PATH}` with a PEM file, relative to the workflow file")
    })
}

fn configured(
    context: &EndContext<'_>,
    tls: &Tls,
) -> Result<rustls::ClientConfig, Box<dyn std::error::Error>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    match tls {
        Tls::Switched(_) => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Tls::With(Trusted { ca_file }) => {
            for certificate in CertificateDer::pem_file_iter(context.path(ca_file))? {
                roots.add(certificate?)?;
            }
        }
    }
    if roots.is_empty() {
        return Err("there is none".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The same for each start of a workflow in its folder, and another for each of its ends.
fn default_client_id(context: &EndContext<'_>) -> String {
    let base = std::fs::canonicalize(context.base).unwrap_or_else(|_| context.base.to_owned());
    let named = format!("{}\n{}", base.display(), context.id.value);
    format!("tidemill-{}-{:016x}", context.id.value, xxhash_rust::xxh3::xxh3_64(named.as_bytes()))
}
