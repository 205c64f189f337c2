//! Who a certificate is of.
use rustls::pki_types::CertificateDer;

/// A name in a certificate that begins so says who it is of: `tidemill:worker/edge-1`. What follows is up to who issues it.
pub const PEER_SCHEME: &str = "tidemill:";

/// Who a certificate is of: its one URI name that begins with [`PEER_SCHEME`]. None where there is no such name, or more than one. It
/// must be a certificate that TLS has verified: nothing but its names is looked at.
pub fn peer_name(certificate: &[u8]) -> Option<String> {
    let certificate = CertificateDer::from(certificate);
    let parsed = webpki::EndEntityCert::try_from(&certificate).ok()?;
    let mut names = parsed.valid_uri_names().filter(|name| name.starts_with(PEER_SCHEME));
    let name = names.next()?.to_owned();
    names.next().is_none().then_some(name)
}
