//! Addresses of servers of others: `https://host/path`, which may have secrets.
use crate::hidden;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_http::Place;
use tidemill_operators::kind::EndContext;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::value::Value;
use url::Url;

/// Authorities to trust beside those of the machine.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trusted {
    /// PEM file of certificates, relative to the workflow file.
    pub(crate) ca_file: String,
}

/// See the module. Never shown as a whole.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) url: Url,
    /// What may be shown: without query, and without path if the address is hidden.
    pub(crate) shown: String,
    /// Texts of it that are never shown.
    pub(crate) secrets: Vec<String>,
    /// The configuration of TLS, where it is encrypted and opened here.
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

fn wrong(text: impl Into<String>, help: impl Into<String>) -> Diagnostic {
    // Without its line, which may have a secret.
    Diagnostic::error("E0606", text).with_help(help)
}

impl Endpoint {
    /// Checks the option `url`; `schemes`: the plain and the encrypted one. `None` where it is hidden and not opened.
    pub(crate) fn of(
        context: &EndContext<'_>,
        written: &Value,
        schemes: [&str; 2],
        tls: Option<&Trusted>,
    ) -> Result<Option<Self>, Diagnostics> {
        let Some(found) = hidden::read(context, "url", written)? else { return Ok(None) };
        let example = format!("write an address such as `{}://gateway.local/plant`", schemes[1]);
        // Its line is shown where it has no part that may be secret.
        let is_open = found.secret.is_some() || !found.text.contains(['@', '?', '#']);
        let malformed = |text: &str| {
            let error = wrong(format!("`url` of `{}` {text}", context.id), example.clone());
            if is_open { error.at(written.span.clone()) } else { error }
        };
        let url = Url::parse(&found.text).map_err(|_| malformed("is not an address"))?;
        if !schemes.contains(&url.scheme()) {
            let text = format!("does not begin with `{}://` or `{}://`", schemes[0], schemes[1]);
            return Err(malformed(&text).into());
        }
        let (Some(host), Some(_)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(malformed("has no host").into());
        };
        if !url.username().is_empty() || url.password().is_some() {
            let help = "leave them out, and write `headers: {Authorization: {env: VARIABLE}}`";
            return Err(wrong(format!("`url` of `{}` has a user or a password", context.id), help).into());
        }
        if url.fragment().is_some() {
            return Err(malformed("has a part after `#`, which no server gets").into());
        }
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let path = if found.secret.is_some() { "" } else { url.path() };
        let shown = format!("{}://{host}{port}{path}", url.scheme());
        let mut secrets: Vec<String> = url.query().map(str::to_owned).into_iter().collect();
        if found.secret.is_some() {
            secrets.extend((url.path().len() > 1).then(|| url.path().to_owned()));
        }
        let is_encrypted = url.scheme() == schemes[1];
        let tls = match is_encrypted && context.opens() {
            false => None,
            true => Some(Arc::new(configured(context, tls).map_err(|error| {
                Diagnostic::error("E0609", format!("cannot read the certificates to trust: {error}"))
                    .with_help("write `tls: {ca_file: PATH}` with a PEM file, relative to the workflow file")
            })?)),
        };
        Ok(Some(Self { url, shown, secrets, tls }))
    }

    /// Its host and port.
    pub(crate) fn address(&self) -> String {
        // Checked when it was made.
        let port = self.url.port_or_known_default().unwrap_or(80);
        format!("{}:{port}", self.url.host_str().unwrap_or_default())
    }

    /// Where requests go.
    pub(crate) fn place(&self) -> Place {
        match &self.tls {
            None => Place::Tcp(self.address()),
            Some(config) => {
                Place::Tls { address: self.address(), config: Arc::clone(config), name: self.name().into() }
            }
        }
    }

    /// The name or address that its certificate must be of.
    pub(crate) fn name(&self) -> String {
        self.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned()
    }

    /// Path and query.
    pub(crate) fn target(&self) -> String {
        match self.url.query() {
            None => self.url.path().to_owned(),
            Some(query) => format!("{}?{query}", self.url.path()),
        }
    }
}

fn configured(
    context: &EndContext<'_>,
    trusted: Option<&Trusted>,
) -> Result<rustls::ClientConfig, Box<dyn std::error::Error>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    match trusted {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(Trusted { ca_file }) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tidemill_spec::{span::SourceFile, yaml};

    fn endpoint(yaml: &str) -> Result<Endpoint, String> {
        let id = "out".into();
        let value = yaml::parse(&SourceFile::new("workflow.yaml", yaml)).unwrap();
        let found = Endpoint::of(&EndContext::new(&id, Path::new(".")), &value, ["http", "https"], None);
        found.map(Option::unwrap).map_err(|errors| errors.to_string())
    }

    #[test]
    fn an_address_is_shown_without_its_query() {
        let found = endpoint("http://a.local:8080/in/?token=hunter22").unwrap();
        assert_eq!(
            (found.shown.as_str(), found.target().as_str()),
            ("http://a.local:8080/in/", "/in/?token=hunter22")
        );
        assert_eq!((found.address().as_str(), found.secrets.len()), ("a.local:8080", 1));
        assert_eq!(endpoint("http://[::1]/").unwrap().address(), "[::1]:80");
    }

    #[test]
    fn wrong_addresses_are_refused_and_not_shown() {
        for (yaml, message) in [
            ("a.local/in", "`url` of `out` is not an address"),
            ("a.local?hunter22", "`url` of `out` is not an address"),
            ("ftp://a/", "does not begin with `http://` or `https://`"),
            ("ftp://me:hunter22@a/", "does not begin with `http://` or `https://`"),
            ("http://me:hunter22@a/", "has a user or a password"),
            ("http://a/#hunter22", "has a part after `#`"),
            ("{}", "`url` needs either `env` or `secret_file`"),
        ] {
            let error = endpoint(yaml).err().expect(yaml);
            assert!(error.contains(message) && !error.contains("hunter22"), "{yaml}: {error}");
        }
    }
}
