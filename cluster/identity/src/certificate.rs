//! Facts of a certificate besides its names.
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::der::{BOOLEAN, INTEGER, Malformed, OBJECT_IDENTIFIER, OCTET_STRING, Reader, SEQUENCE, SET};
use crate::hexadecimal::as_hexadecimal;
use crate::timestamp::Timestamp;
use crate::token::NoRandomness;

/// The number of a certificate: 16 random bytes, as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(pub(crate) [u8; 16]);

as_hexadecimal!(Serial, "serial number: 32 hexadecimal digits");

impl Serial {
    /// Draws a new one. Its first two bits make it a positive number of always the same length.
    pub(crate) fn draw() -> Result<Self, NoRandomness> {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
        bytes[0] = bytes[0] & 0x3f | 0x40;
        Ok(Self(bytes))
    }

    /// Returns the bytes, big-endian, as [`Revoked`](tidemill_link::remote::Revoked) takes them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Serial {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::str::FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, SerialError> {
        crate::hexadecimal::read(text.trim())
            .map(Self)
            .ok_or_else(|| SerialError { found: text.chars().take(40).collect() })
    }
}

/// A text that is no serial number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a serial number: write its 32 hexadecimal digits from the list of certificates")]
pub struct SerialError {
    found: String,
}

/// A certificate that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not a readable certificate")]
pub struct CertificateError;

impl From<Malformed> for CertificateError {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// Claims of a certificate about itself. TLS, or [`Authority::verify`](crate::Authority::verify), verifies them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Its serial number as in DER: big-endian, with a zero before it where the first bit is set.
    pub serial: Vec<u8>,
    /// Beginning of its validity.
    pub not_before: Timestamp,
    /// Its expiry.
    pub not_after: Timestamp,
    /// Whether it is of an authority, which issues others.
    pub is_authority: bool,
    /// Its common name, if it has one.
    pub(crate) common_name: Option<String>,
}

const BASIC_CONSTRAINTS: &[u8] = b"\x55\x1d\x13";
const COMMON_NAME: &[u8] = b"\x55\x04\x03";

impl CertificateFacts {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// When it is none.
    pub fn of_der(bytes: &[u8]) -> Result<Self, CertificateError> {
        let mut outer = Reader::new(bytes);
        let mut certificate = Reader::new(outer.expect(SEQUENCE)?.content);
        outer.end()?;
        let mut signed = Reader::new(certificate.expect(SEQUENCE)?.content);
        let _version = signed.optional(0xa0)?;
        let serial = signed.expect(INTEGER)?.content.to_vec();
        let _algorithm = signed.expect(SEQUENCE)?;
        let _issuer = signed.expect(SEQUENCE)?;
        let mut validity = Reader::new(signed.expect(SEQUENCE)?.content);
        let mut time = || {
            let (date, time) = validity.time()?;
            Timestamp::of_date(date, time).ok_or(CertificateError)
        };
        let (not_before, not_after) = (time()?, time()?);
        validity.end()?;
        let common_name = common_name(signed.expect(SEQUENCE)?.content)?;
        let _key = signed.expect(SEQUENCE)?;
        let mut is_authority = false;
        while !signed.is_at_end() {
            let part = signed.element()?;
            if part.tag == 0xa3 {
                is_authority = allows_issuing(part.content)?;
            }
        }
        Ok(Self { serial, not_before, not_after, is_authority, common_name })
    }

    /// Reads the first certificate of PEM.
    ///
    /// # Errors
    /// When there is none.
    pub fn of_pem(text: &str) -> Result<Self, CertificateError> {
        let certificate = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| CertificateError)?;
        Self::of_der(&certificate)
    }

    /// Returns when to request a new one: after two thirds of its life. A third is left to try again while the
    /// authority cannot be reached.
    pub fn renewal_due(&self) -> Timestamp {
        let life = self.not_after.since(self.not_before);
        self.not_before.after(Duration::from_secs(life.as_secs() * 2 / 3))
    }

    /// Returns whether it is valid at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

fn common_name(names: &[u8]) -> Result<Option<String>, Malformed> {
    let mut names = Reader::new(names);
    while !names.is_at_end() {
        let mut set = Reader::new(names.expect(SET)?.content);
        let mut pair = Reader::new(set.expect(SEQUENCE)?.content);
        let is_common_name = pair.expect(OBJECT_IDENTIFIER)?.content == COMMON_NAME;
        let value = pair.element()?.content;
        if is_common_name {
            return Ok(Some(String::from_utf8_lossy(value).into_owned()));
        }
    }
    Ok(None)
}

fn allows_issuing(extensions: &[u8]) -> Result<bool, Malformed> {
    let mut outer = Reader::new(extensions);
    let mut all = Reader::new(outer.expect(SEQUENCE)?.content);
    outer.end()?;
    while !all.is_at_end() {
        let mut extension = Reader::new(all.expect(SEQUENCE)?.content);
        let kind = extension.expect(OBJECT_IDENTIFIER)?.content;
        let _critical = extension.optional(BOOLEAN)?;
        let value = extension.expect(OCTET_STRING)?.content;
        if kind == BASIC_CONSTRAINTS {
            let mut constraints = Reader::new(Reader::new(value).expect(SEQUENCE)?.content);
            return Ok(constraints.optional(BOOLEAN)?.is_some_and(|flag| flag.content == [0xff]));
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut parameters = CertificateParams::new(vec!["tidemill".to_owned()]).expect("a name");
        parameters.not_before = rcgen::date_time_ymd(2049, 12, 1);
        parameters.not_after = rcgen::date_time_ymd(2050, 1, 3);
        change(&mut parameters);
        let key = KeyPair::generate().expect("random bytes");
        parameters.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn dates_and_kinds_are_read() {
        let facts = CertificateFacts::of_der(&certificate(|_| {})).unwrap();
        assert_eq!(facts.not_before.to_string(), "2049-12-01 00:00:00 UTC");
        assert_eq!(facts.not_after.to_string(), "2050-01-03 00:00:00 UTC");
        assert_eq!(facts.renewal_due().to_string(), "2049-12-23 00:00:00 UTC");
        assert_eq!(facts.common_name.as_deref(), Some("rcgen self signed cert"));
        assert!(!facts.is_authority);
        assert!(
            facts.is_valid(facts.not_after) && !facts.is_valid(facts.not_after.after(Duration::from_secs(1)))
        );
        let of =
            |kind: IsCa| CertificateFacts::of_der(&certificate(|it| it.is_ca = kind)).unwrap().is_authority;
        assert!(
            of(IsCa::Ca(BasicConstraints::Constrained(0))) && of(IsCa::Ca(BasicConstraints::Unconstrained))
        );
        assert!(!of(IsCa::ExplicitNoCa));
    }

    #[test]
    fn serial_numbers_are_texts() {
        let serial = Serial::draw().unwrap();
        assert_eq!(serial.to_string().parse(), Ok(serial));
        assert!(serial.0[0] & 0xc0 == 0x40 && serial != Serial::draw().unwrap());
        assert!("7".parse::<Serial>().unwrap_err().to_string().contains("32 hexadecimal"));
        let bytes =
            certificate(|it| it.serial_number = Some(rcgen::SerialNumber::from_slice(serial.as_bytes())));
        assert_eq!(CertificateFacts::of_der(&bytes).unwrap().serial, serial.as_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_certificate_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300), place: prop::sample::Index) {
            prop_assert!(CertificateFacts::of_der(&bytes).is_err());
            prop_assert!(CertificateFacts::of_pem(&String::from_utf8_lossy(&bytes)).is_err());
            let mut damaged = certificate(|_| {});
            let at = place.index(damaged.len());
            damaged[at] ^= 0x55;
            let _ = CertificateFacts::of_der(&damaged); // a date may be another one
            damaged.truncate(at);
            prop_assert!(CertificateFacts::of_der(&damaged).is_err());
        }
    }
}
