//! The certificate with which this process reaches devices at `tls://HOST:PORT`.
use std::sync::OnceLock;
use tidemill_link::remote::Security;

static CERTIFICATE: OnceLock<Security> = OnceLock::new();

/// Sets the certificate of this process for devices with TLS, and the authority that certifies them; once, before it opens a
/// model on a device. Credentials in it may be renewed later.
pub fn set(security: Security) {
    // Whoever was first decides.
    let _ = CERTIFICATE.set(security);
}

/// Returns the certificate, if this process has one.
pub(crate) fn get() -> Option<&'static Security> {
    CERTIFICATE.get()
}
