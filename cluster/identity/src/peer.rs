//! Identities in certificates.
use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::name::Name;

const SCHEME: &str = tidemill_link::remote::PEER_SCHEME;
const WORKER: &str = "worker/";
const CONTROLLER: &str = "controller";

/// The identity in a certificate, a URI among its names: `tidemill:controller`, `tidemill:worker/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PeerIdentity {
    /// The controller of the cluster.
    Controller,
    /// A worker.
    Worker(Name),
}

/// A certificate, or a text, without an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerIdentityError {
    /// The certificate cannot be read.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// No name in it is an identity.
    #[error("the certificate has no name such as tidemill:worker/NAME: it is not of a cluster's authority")]
    Missing,
    /// More than one.
    #[error("the certificate has {count} names such as tidemill:worker/NAME, and one is expected")]
    Ambiguous {
        /// Their number.
        count: usize,
    },
    /// The part after `tidemill:` is not known.
    #[error("{found:?} is not an identity: tidemill:controller or tidemill:worker/NAME is expected")]
    Unknown {
        /// All of it.
        found: String,
    },
}

impl PeerIdentity {
    /// Returns the identity in a certificate. TLS, or [`Authority::verify`](crate::Authority::verify), must have
    /// verified the certificate: this reads only its names.
    ///
    /// # Errors
    /// See [`PeerIdentityError`].
    pub fn of_verified(certificate: &[u8]) -> Result<Self, PeerIdentityError> {
        let certificate = CertificateDer::from(certificate);
        let parsed =
            webpki::EndEntityCert::try_from(&certificate).map_err(|_| PeerIdentityError::Unreadable)?;
        let names: Vec<&str> = parsed.valid_uri_names().filter(|name| name.starts_with(SCHEME)).collect();
        match names[..] {
            [] => Err(PeerIdentityError::Missing),
            [name] => name.parse(),
            _ => Err(PeerIdentityError::Ambiguous { count: names.len() }),
        }
    }

    /// The name of the worker, if it is one.
    pub fn worker(&self) -> Option<&Name> {
        match self {
            Self::Controller => None,
            Self::Worker(name) => Some(name),
        }
    }

    /// Returns the name for messages: ``worker `edge-1` ``.
    pub fn for_people(&self) -> String {
        match self {
            Self::Controller => "the controller".to_owned(),
            Self::Worker(name) => format!("worker `{name}`"),
        }
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => write!(f, "{SCHEME}{CONTROLLER}"),
            Self::Worker(name) => write!(f, "{SCHEME}{WORKER}{name}"),
        }
    }
}

impl FromStr for PeerIdentity {
    type Err = PeerIdentityError;

    fn from_str(text: &str) -> Result<Self, PeerIdentityError> {
        let unknown = || PeerIdentityError::Unknown { found: text.chars().take(100).collect() };
        let rest = text.strip_prefix(SCHEME).ok_or_else(unknown)?;
        if rest == CONTROLLER {
            return Ok(Self::Controller);
        }
        let name = rest.strip_prefix(WORKER).ok_or_else(unknown)?;
        name.parse().map(Self::Worker).map_err(|_| unknown())
    }
}

impl TryFrom<String> for PeerIdentity {
    type Error = PeerIdentityError;

    fn try_from(text: String) -> Result<Self, PeerIdentityError> {
        text.parse()
    }
}

impl From<PeerIdentity> for String {
    fn from(identity: PeerIdentity) -> Self {
        identity.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate(uris: &[&str]) -> Vec<u8> {
        let mut parameters = CertificateParams::new(vec!["tidemill".to_owned()]).expect("a name");
        for uri in uris {
            parameters.subject_alt_names.push(SanType::URI((*uri).try_into().expect("ASCII")));
        }
        let key = KeyPair::generate().expect("random bytes");
        parameters.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn one_name_in_a_certificate_says_who_it_is_of() {
        let of = |uris: &[&str]| PeerIdentity::of_verified(&certificate(uris));
        let edge = PeerIdentity::Worker("edge-1".parse().unwrap());
        assert_eq!(of(&["https://x", "tidemill:worker/edge-1"]), Ok(edge.clone()));
        assert_eq!(of(&["tidemill:controller"]), Ok(PeerIdentity::Controller));
        assert_eq!(of(&["https://x"]), Err(PeerIdentityError::Missing));
        let two = of(&["tidemill:worker/edge-1", "tidemill:controller"]);
        assert_eq!(two, Err(PeerIdentityError::Ambiguous { count: 2 }));
        for uri in ["tidemill:worker/", "tidemill:worker/a/b", "tidemill:Controller", "tidemill:admin"] {
            assert_eq!(of(&[uri]), Err(PeerIdentityError::Unknown { found: uri.to_owned() }));
        }
        assert_eq!(PeerIdentity::of_verified(b"x"), Err(PeerIdentityError::Unreadable));
        assert_eq!((edge.to_string().parse(), edge.for_people()), (Ok(edge), "worker `edge-1`".to_owned()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_identity_or_an_error(text in ".{0,100}", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(PeerIdentity::of_verified(&bytes).is_err());
            for text in [text.clone(), format!("tidemill:worker/{text}")] {
                if let Ok(identity) = text.parse::<PeerIdentity>() {
                    prop_assert_eq!(identity.to_string(), text);
                }
            }
        }
    }
}
