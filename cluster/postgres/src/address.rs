//! Address and connection settings of the server, as a user writes them.
use crate::error::{PostgresError, in_words};
use postgres::config::{Host, SslMode};
use postgres::{Client, Config, NoTls};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres_rustls::MakeRustlsConnect;

/// The address of a schema that controllers share:
/// `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full&sslrootcert=FILE&schema=NAME`.
///
/// Over a network TLS is required, with the certificate of the authority that verifies the server's; a socket of this
/// machine, and a loopback address, need none. `sslmode=disable` declares the network trusted. `schema` defaults to
/// `tidemill`.
#[derive(Clone)]
pub struct Address {
    config: Config,
    tls: Tls,
    schema: String,
    /// The schema in SQL: quoted, so that no word is reserved.
    quoted: String,
    shown: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Tls {
    None,
    VerifiedBy(PathBuf),
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: write postgres://USER@HOST/DATABASE?sslmode=verify-full&sslrootcert=FILE, or postgres:///DATABASE?host=/var/run/postgresql&user=USER for a \
         socket of this machine"
)]
pub struct AddressError(String);

/// Time limit for connecting.
const CONNECTING: Duration = Duration::from_secs(5);
/// Time without acknowledgement that ends a connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(6);
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

impl Address {
    /// Whether a text is meant as an address.
    pub fn is_meant(text: &str) -> bool {
        SCHEMES.iter().any(|scheme| text.starts_with(scheme))
    }

    /// The schema, as in SQL.
    pub(crate) fn quoted_schema(&self) -> &str {
        &self.quoted
    }

    /// The schema's name, in messages and in names of locks.
    pub(crate) fn schema_name(&self) -> &str {
        &self.schema
    }

    /// Whether it has a password.
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    /// Returns it with a password.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.config.password(password);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// The server cannot be reached, or rejects the login or the database.
    pub fn connect(&self) -> Result<Client, PostgresError> {
        let failed = |error: postgres::Error| {
            let (place, reason) = (self.to_string(), in_words(&error));
            let is_refusal = error.as_db_error().is_some_and(|error| {
                // Wrong password, no such role, no such database: 28xxx and 3D000.
                error.code().code().starts_with("28") || error.code().code().starts_with("3D")
            });
            match is_refusal {
                true => PostgresError::Unfit { place, reason },
                false => PostgresError::Server { place, reason },
            }
        };
        match &self.tls {
            Tls::None => self.config.connect(NoTls).map_err(failed),
            Tls::VerifiedBy(path) => {
                let wrong = |reason: String| PostgresError::RootCertificate { path: path.clone(), reason };
                let mut roots = RootCertStore::empty();
                let certificates =
                    CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                    roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(wrong("there is no certificate in it".to_owned()));
                }
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let config = ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .map_err(|error| wrong(error.to_string()))?
                    .with_root_certificates(roots)
                    .with_no_client_auth();
                self.config.connect(MakeRustlsConnect::new(config)).map_err(failed)
            }
        }
    }
}

impl fmt::Display for Address {
    /// Displays the address without its password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.shown)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        let wrong = |why: &str| AddressError(why.to_owned());
        if !Self::is_meant(text) {
            return Err(wrong("it does not start with postgres://"));
        }
        let (place, options) = text.split_once('?').unwrap_or((text, ""));
        let (mut mode, mut root, mut schema, mut others) = (None, None, "tidemill".to_owned(), Vec::new());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let Some((name, value)) = option.split_once('=') else {
                return Err(AddressError(format!("`{option}` is not an option NAME=VALUE")));
            };
            // The parser of the other options decodes them.
            let value = || {
                let wrong =
                    || AddressError(format!("`{option}` has a `%` that does not stand for a character"));
                decoded(value).ok_or_else(wrong)
            };
            match name {
                "sslmode" => mode = Some(value()?),
                "sslrootcert" => root = Some(PathBuf::from(value()?)),
                "schema" => schema = value()?,
                _ => others.push(option),
            }
        }
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let begins = schema.bytes().next().is_some_and(|first| !first.is_ascii_digit());
        if !begins || schema.len() > 63 || !schema.bytes().all(is_name) || schema.starts_with("pg_") {
            return Err(AddressError(format!(
                "`{schema}` is not the name of a schema: lower-case letters, digits and `_`, with no digit first"
            )));
        }
        let query = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        let mut config: Config = format!("{place}{query}").parse().map_err(|error: postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            AddressError(cause.unwrap_or_else(|| error.to_string()))
        })?;
        if config.get_hosts().is_empty() {
            return Err(wrong("it names no host"));
        }
        let is_near = |host: &Host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => {
                let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
                name == "localhost" || address.is_ok_and(|address| address.is_loopback())
            }
        };
        let is_near = config.get_hosts().iter().all(is_near);
        let tls = match (mode.as_deref(), root) {
            (Some("disable"), None) => Tls::None,
            (None, None) if is_near => Tls::None,
            (Some("verify-full") | None, Some(root)) => Tls::VerifiedBy(root),
            (Some("disable"), Some(_)) => {
                return Err(wrong("`sslmode=disable` and `sslrootcert` exclude each other"));
            }
            (Some("verify-full"), None) => {
                return Err(wrong("`sslmode=verify-full` needs `sslrootcert=FILE`"));
            }
            (None, None) => {
                return Err(wrong(
                    "the connection to the server is not declared safe: add `sslmode=verify-full` and `sslrootcert=FILE`, or `sslmode=disable` in a trusted network",
                ));
            }
            (Some(other), _) => {
                return Err(AddressError(format!(
                    "`sslmode={other}` is not supported: write `verify-full` or `disable`"
                )));
            }
        };
        config.ssl_mode(if tls == Tls::None { SslMode::Disable } else { SslMode::Require });
        config.application_name("tidemill").connect_timeout(CONNECTING).tcp_user_timeout(UNACKNOWLEDGED);
        config
            .keepalives_idle(Duration::from_secs(2))
            .keepalives_interval(Duration::from_secs(1))
            .keepalives_retries(3);
        let shown = shown(&config, &schema);
        let quoted = format!("\"{schema}\"");
        Ok(Self { config, tls, schema, quoted, shown })
    }
}

/// Decodes the value of an option, in which `%41` is `A`; none: it is not text.
fn decoded(value: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(value.len()), value.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(16 * digit()? + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The address for messages, without the password.
fn shown(config: &Config, schema: &str) -> String {
    let ports = config.get_ports();
    let port = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| match host {
        Host::Tcp(name) => format!("{name}:{}", port(index)),
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    let name = config.get_dbname().or(config.get_user()).unwrap_or_default();
    let schema = if schema == "tidemill" { String::new() } else { format!(", schema {schema}") };
    format!("PostgreSQL at {user}{hosts}, database {name}{schema}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(text: &str) -> Result<Tls, String> {
        text.parse::<Address>().map(|address| address.tls).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_says_whether_the_way_is_safe() {
        for near in [
            "postgres:///tidemill?host=/run/postgresql&user=me",
            "postgresql://me@127.0.0.1/x",
            "postgres://me@[::1]:5433/x",
            "postgres://localhost/x",
        ] {
            assert_eq!(tls(near), Ok(Tls::None), "{near}");
        }
        assert_eq!(tls("postgres://me@db/x?sslmode=disable"), Ok(Tls::None));
        assert_eq!(
            tls("postgres://me@db/x?sslmode=verify-full&sslrootcert=/ca.pem"),
            Ok(Tls::VerifiedBy("/ca.pem".into()))
        );
        assert_eq!(tls("postgres://me@db/x?sslrootcert=/ca.pem"), Ok(Tls::VerifiedBy("/ca.pem".into())));
        assert_eq!(
            tls("postgres://me@db/x?sslrootcert=%2Fthe%20ca%26c%c3%A9.pem"),
            Ok(Tls::VerifiedBy("/the ca&cé.pem".into()))
        );
        for (text, why) in [
            ("postgres://me@db/x", "the connection to the server is not declared safe"),
            ("postgres://me@db/x?sslmode=prefer", "`sslmode=prefer` is not supported"),
            ("postgres://me@db/x?sslmode=verify-full", "`sslmode=verify-full` needs"),
            ("postgres://me@db/x?sslmode=disable&sslrootcert=a", "exclude each other"),
            ("mysql://db/x", "it does not start with postgres://"),
            ("postgres://me@localhost/x?schema=A-b", "`A-b` is not the name of a schema"),
            ("postgres://me@localhost/x?schema=1st", "`1st` is not the name of a schema"),
            ("postgres://me@localhost/x?schema=a%22b", "`a\"b` is not the name of a schema"),
            ("postgres://me@localhost/x?schema=", "`` is not the name of a schema"),
            ("postgres://me@db/x?sslrootcert=100%", "a `%` that does not stand for a character"),
            ("postgres://me@db/x?sslrootcert=%ff", "a `%` that does not stand for a character"),
            ("postgres://me@localhost/x?sslmode", "`sslmode` is not an option"),
            ("postgres://me@localhost/x?colour=red", "unknown option `colour`"),
        ] {
            let message = tls(text).unwrap_err();
            assert!(message.contains(why) && message.contains("write postgres://"), "{text}: {message}");
        }
    }

    #[test]
    fn nobody_is_shown_a_password() {
        let address: Address = "postgres://me:secret@localhost:5433/x?schema=night".parse().unwrap();
        let message = format!("{address} {address:?}");
        assert!(
            !message.contains("secret") && message.contains("me@localhost:5433, database x, schema night"),
            "{message}"
        );
    }
}
