//! The identity in a certificate.
use rustls::pki_types::CertificateDer;

/// Prefix of the identity among the names of a certificate: `tidemill:worker/edge-1`. The issuer decides the rest.
pub const PEER_SCHEME: &str = "tidemill:";

/// Returns the identity in a certificate: its one URI name that begins with [`PEER_SCHEME`]. None where there is no
/// such name, or more than one. TLS must have verified the certificate: this reads only its names.
pub fn peer_name(certificate: &[u8]) -> Option<String> {
    let certificate = CertificateDer::from(certificate);
    let parsed = webpki::EndEntityCert::try_from(&certificate).ok()?;
    let mut names = parsed.valid_uri_names().filter(|name| name.starts_with(PEER_SCHEME));
    let name = names.next()?.to_owned();
    names.next().is_none().then_some(name)
}
