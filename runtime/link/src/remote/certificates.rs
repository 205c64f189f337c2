//! The certificate that a side shows and the authorities that it trusts, in the format of files.

/// The name that every certificate of a deployment must have: membership depends on the authority, not on a host's
/// name.
pub(super) const SUBJECT: &str = "tidemill";

/// The certificate that a host shows and the authorities that it trusts, as PEM.
#[derive(Clone)]
pub struct Certificates {
    /// The certificate of the host, then those between it and the authority. It must be valid for the DNS name `tidemill`,
    /// as a server and as a client.
    pub chain_pem: Vec<u8>,
    /// The private key of the host's certificate.
    pub key_pem: Vec<u8>,
    /// The certificates of the trusted authorities.
    pub authority_pem: Vec<u8>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}
