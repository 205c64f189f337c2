//! TLS on a connection.
use super::credentials::Revoked;
use rustls::CertificateError;
use std::io::{self, ErrorKind};

/// TLS, and a check that the other side is not revoked.
pub(super) struct Secured {
    pub(super) tls: rustls::Connection,
    revoked: Revoked,
    /// Number of changes of the set at the last check of the certificate.
    looked: Option<u64>,
}

impl Secured {
    pub(super) fn new(tls: rustls::Connection, revoked: Revoked) -> Self {
        Self { tls, revoked, looked: None }
    }

    /// Whether the certificate of the other side still counts: it may have been revoked since both found out who they are.
    pub(super) fn check(&mut self) -> io::Result<()> {
        let changes = self.revoked.changes();
        if self.looked == Some(changes) {
            return Ok(());
        }
        let Some(certificate) = self.tls.peer_certificates().and_then(<[_]>::first) else { return Ok(()) };
        if let Err(error) = self.revoked.check(certificate) {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, explain(&error)));
        }
        self.looked = Some(changes);
        Ok(())
    }
}

/// Explains a failure of TLS to people.
pub(super) fn explain(error: &rustls::Error) -> String {
    use rustls::AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => {
            "the certificate of the peer is refused: it has been revoked".into()
        }
        rustls::Error::InvalidCertificate(
            why @ (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }),
        ) => format!("the certificate of the peer is refused: {why}; is the clock of this machine right?"),
        rustls::Error::InvalidCertificate(why) => format!("the certificate of the peer is refused: {why}"),
        rustls::Error::NoCertificatesPresented => "the peer shows no certificate".into(),
        rustls::Error::AlertReceived(Alert::CertificateExpired) => {
            "the peer refuses the certificate of this side: it has expired".into()
        }
        rustls::Error::AlertReceived(Alert::CertificateRevoked) => {
            "the peer refuses the certificate of this side: it has been revoked".into()
        }
        rustls::Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "the peer refuses the certificate of this side: it is of another authority".into()
        }
        rustls::Error::AlertReceived(Alert::CertificateRequired) => {
            "the peer wants a certificate of this side".into()
        }
        rustls::Error::AlertReceived(
            alert @ (Alert::BadCertificate | Alert::UnsupportedCertificate | Alert::CertificateUnknown),
        ) => format!("the peer refuses the certificate of this side: {alert:?}"),
        rustls::Error::InvalidMessage(why) => {
            format!("the peer does not speak TLS, or something between damaged it ({why:?})")
        }
        other => other.to_string(),
    }
}
