//! A new private key with its request for a certificate.
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use zeroize::Zeroizing;

use crate::error::IdentityError;

/// A new private key (ECDSA P-256) and its request. The key never leaves the machine. Store it before sending the
/// request, so that a lost answer can be requested again.
pub struct NewKey {
    key: Zeroizing<String>,
    request: String,
}

impl std::fmt::Debug for NewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewKey")
    }
}

impl NewKey {
    /// A new one.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] when the system gives no random bytes.
    pub fn generate() -> Result<Self, IdentityError> {
        Self::of(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IdentityError::certificate)?)
    }

    /// A request for a key that was kept.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] when the text is no private key that is taken.
    pub fn from_pem(key_pem: &str) -> Result<Self, IdentityError> {
        Self::of(KeyPair::from_pem(key_pem).map_err(IdentityError::certificate)?)
    }

    fn of(pair: KeyPair) -> Result<Self, IdentityError> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        let request = parameters.serialize_request(&pair).and_then(|request| request.pem());
        let request = request.map_err(IdentityError::certificate)?;
        Ok(Self { key: Zeroizing::new(pair.serialize_pem()), request })
    }

    /// The private key as PEM.
    pub fn key_pem(&self) -> &Zeroizing<String> {
        &self.key
    }

    /// The request as PEM.
    pub fn request_pem(&self) -> &str {
        &self.request
    }
}
