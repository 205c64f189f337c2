//! The authority of a cluster, in a folder.
mod access;
mod join;
mod signing;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rcgen::{KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor};
use tidemill_link::remote::{Certificates, Revoked};
use zeroize::Zeroizing;

use crate::address::{JoinAddress, JoinAddressError};
use crate::certificate::{CertificateFacts, Serial};
use crate::error::{IdentityError, StoreError};
use crate::fingerprint::Fingerprint;
use crate::folder::Folder;
use crate::register::Register;
use crate::registry::Registry;
use crate::timestamp::Timestamp;

pub use access::{FIRST_ADMIN, PERSON_LENGTH};
pub use join::{Issued, JoinRequest, JoinTokenOptions, MAX_TOKEN_LIFETIME, MAX_USES};
pub use workers::{MAX_GOOD_CERTIFICATES, VerifiedPeer};

/// The key of the authority and its certificate.
const AUTHORITY: &str = "authority.pem";
/// Tokens, certificates and people.
const REGISTER: &str = "register.json";

/// Lifetimes of certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of workers, which request a new one after two thirds of it. Default: 30 days.
    pub worker: Duration,
    /// Of the controller, which issues itself a new one after two thirds of it: 30 days.
    pub controller: Duration,
    /// Of the authority itself, when it is made: 20 years. No certificate outlives it.
    pub authority: Duration,
}

/// Lifetime of certificates of a controller that stands by. They are in no register and cannot be revoked, so they
/// end soon.
const STANDING_BY: Duration = Duration::from_secs(10 * 86_400);
/// The shortest lifetime.
const SHORTEST: Duration = Duration::from_secs(10);

impl Lifetimes {
    fn check(&self) -> Result<(), IdentityError> {
        let all = [
            ("a worker", self.worker),
            ("the controller", self.controller),
            ("the authority", self.authority),
        ];
        for (whose, lifetime) in all {
            if lifetime < SHORTEST {
                let text = format!("the certificate of {whose} cannot be valid for {lifetime:?}");
                return Err(IdentityError::Invalid(format!("{text}: the least is {SHORTEST:?}")));
            }
        }
        Ok(())
    }
}

impl Default for Lifetimes {
    fn default() -> Self {
        let days = |count: u64| Duration::from_secs(count * 86_400);
        Self { worker: days(30), controller: days(30), authority: days(20 * 365) }
    }
}

/// Decides who belongs to a cluster: issues and revokes certificates, makes and takes tokens, knows people.
///
/// All methods take `&self` and can be called on many threads. The result of a method is on the disk: a used token is
/// refused and a revoked certificate stays revoked, whenever the process is killed or the power fails. A change that
/// could not be stored is an error, and does not count.
///
/// One process has the folder at a time. No other user of the machine may read it: its content is enough to be the
/// authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    facts: CertificateFacts,
    anchors: Vec<TrustAnchor<'static>>,
    fingerprint: Fingerprint,
    lifetimes: Lifetimes,
    revoked: Revoked,
    kept: Mutex<Kept>,
}

/// Memory and disk have the same content.
struct Kept {
    shelf: Shelf,
    register: Register,
}

/// The place of the key and the register.
struct Shelf {
    folder: Folder,
    /// None: in the folder, too.
    registry: Option<Box<dyn Registry>>,
}

impl Shelf {
    fn failed(registry: &dyn Registry, why: String) -> StoreError {
        StoreError::Elsewhere { place: registry.place(), why }
    }

    /// Names the register in messages.
    fn place(&self) -> String {
        match &self.registry {
            Some(registry) => registry.place(),
            None => self.folder.path_of(REGISTER).display().to_string(),
        }
    }

    fn damaged(&self, why: impl ToString) -> StoreError {
        match &self.registry {
            Some(registry) => Self::failed(
                &**registry,
                format!("the register of the authority is damaged ({})", why.to_string()),
            ),
            None => StoreError::damaged(&self.folder.path_of(REGISTER), why),
        }
    }

    fn read(&mut self) -> Result<Option<Register>, StoreError> {
        let bytes = match &mut self.registry {
            Some(registry) => registry.read().map_err(|why| Self::failed(&**registry, why))?,
            None => self.folder.read(REGISTER)?,
        };
        bytes.map(|bytes| Register::from_bytes(&bytes)).transpose().map_err(|why| self.damaged(why))
    }

    fn keep(&mut self, register: &Register) -> Result<(), StoreError> {
        let bytes = register.to_bytes().map_err(|why| self.damaged(why))?;
        match &mut self.registry {
            Some(registry) => registry.replace(&bytes).map_err(|why| Self::failed(&**registry, why)),
            None => self.folder.replace(REGISTER, &bytes),
        }
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("Authority").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority in this folder, and makes it if there is none yet.
    ///
    /// # Errors
    /// [`IdentityError::Store`] when another process has it, when others could read it, when something is missing or damaged,
    /// or the system refuses; [`IdentityError::Invalid`] when a lifetime is too short.
    pub fn open_or_create(
        folder: &Path,
        lifetimes: Lifetimes,
        now: Timestamp,
    ) -> Result<Self, IdentityError> {
        lifetimes.check()?;
        Self::establish(Folder::open(folder, &[AUTHORITY, REGISTER])?, None, lifetimes, now)
    }

    /// As [`Authority::open_or_create`], for a controller that shares the register with others: the key is in the
    /// folder, and `registry` keeps the register. A controller that is to share an authority has a copy of its key,
    /// which [`Authority::shared_key`] names; without one it makes a new authority, if there is none yet.
    ///
    /// # Errors
    /// As [`Authority::open_or_create`]; [`StoreError::NoKey`] where the register is of an authority whose key is not
    /// in the folder.
    pub fn open_or_create_shared(
        folder: &Path,
        registry: Box<dyn Registry>,
        lifetimes: Lifetimes,
        now: Timestamp,
    ) -> Result<Self, IdentityError> {
        lifetimes.check()?;
        Self::establish(Folder::open(folder, &[AUTHORITY, REGISTER])?, Some(registry), lifetimes, now)
    }

    /// Returns the file with the key of the authority in a folder: the key is enough to be the authority.
    pub fn shared_key(folder: &Path) -> PathBuf {
        folder.join(AUTHORITY)
    }

    /// Returns certificates for a controller that does not lead and only names the leader, and the fingerprint of the
    /// authority. The certificates are in no register, because only the leader writes there, and are valid for their
    /// lifetime, ten days at most. None: there is no key in the folder yet.
    ///
    /// # Errors
    /// As [`Authority::open`] and [`Authority::issue_controller`].
    pub fn stand_by(
        folder: &Path,
        lifetimes: Lifetimes,
        names: &[&str],
        now: Timestamp,
    ) -> Result<Option<(Certificates, Fingerprint)>, IdentityError> {
        lifetimes.check()?;
        if !folder.join(AUTHORITY).exists() {
            return Ok(None);
        }
        let key = Folder::open(folder, &[AUTHORITY, REGISTER])?;
        let fingerprint = match key.read(AUTHORITY)? {
            Some(bytes) => String::from_utf8(bytes)
                .map_err(|_| "it is not text".to_owned())
                .and_then(|text| Parts::read(&Zeroizing::new(text)))
                .map(|parts| Fingerprint::of(&parts.certificate))
                .map_err(|why| StoreError::damaged(&key.path_of(AUTHORITY), why))?,
            None => return Ok(None),
        };
        let aside = Box::new(Aside(Register::new(fingerprint)));
        let lifetimes = Lifetimes { controller: lifetimes.controller.min(STANDING_BY), ..lifetimes };
        let authority = Self::establish(key, Some(aside), lifetimes, now)?;
        Ok(Some((authority.issue_controller(names, now)?, fingerprint)))
    }

    /// Opens the authority in this folder.
    ///
    /// # Errors
    /// [`StoreError::Absent`] when there is none; others as [`Authority::open_or_create`].
    pub fn open(folder: &Path, lifetimes: Lifetimes, now: Timestamp) -> Result<Self, IdentityError> {
        if !folder.join(AUTHORITY).exists() {
            return Err(StoreError::Absent { path: folder.to_owned() }.into());
        }
        Self::open_or_create(folder, lifetimes, now)
    }

    /// As `open_or_create`, on other files.
    #[cfg(test)]
    pub(crate) fn on(
        files: Box<dyn crate::files::Files>,
        lifetimes: Lifetimes,
        now: Timestamp,
    ) -> Result<Self, IdentityError> {
        let folder = Folder::on(Path::new("/authority"), &[AUTHORITY, REGISTER], files)?;
        Self::establish(folder, None, lifetimes, now)
    }

    fn establish(
        folder: Folder,
        registry: Option<Box<dyn Registry>>,
        lifetimes: Lifetimes,
        now: Timestamp,
    ) -> Result<Self, IdentityError> {
        let mut shelf = Shelf { folder, registry };
        let key = shelf.folder.path_of(AUTHORITY);
        let text = match shelf.folder.read(AUTHORITY)? {
            Some(bytes) => {
                String::from_utf8(bytes).map_err(|_| StoreError::damaged(&key, "it is not text"))?
            }
            None => {
                // An empty register was left by a process that ended here.
                if let Some(register) = shelf.read()?.filter(|register| !register.is_new()) {
                    let why = "the key of the authority is missing, but its register is there";
                    return Err(match &shelf.registry {
                        Some(_) => {
                            let (place, authority) = (shelf.place(), register.authority.to_string());
                            StoreError::NoKey { path: key, place, authority }
                        }
                        None => StoreError::damaged(&key, why),
                    }
                    .into());
                }
                let (text, fingerprint) = new_authority(lifetimes, now)?;
                // The register first: an authority whose register is missing has lost it.
                shelf.keep(&Register::new(fingerprint))?;
                shelf.folder.replace(AUTHORITY, text.as_bytes())?;
                text.to_string()
            }
        };
        let text = Zeroizing::new(text);
        let damaged = |why: String| StoreError::damaged(&key, why);
        let parts = Parts::read(&text).map_err(damaged)?;
        let fingerprint = Fingerprint::of(&parts.certificate);
        let Some(register) = shelf.read()? else {
            return Err(shelf
                .damaged("it is missing, with its lists of revoked certificates and used tokens")
                .into());
        };
        if register.authority != fingerprint {
            let why =
                format!("it belongs to the authority {}, but this one is {fingerprint}", register.authority);
            return Err(shelf.damaged(why).into());
        }
        let revoked = Revoked::default();
        revoked.replace(revoked_in(&register));
        let anchor =
            webpki::anchor_from_trusted_cert(&parts.certificate).map_err(|e| damaged(e.to_string()))?;
        let anchors = vec![anchor.to_owned()];
        let Parts { issuer, certificate, certificate_pem, facts } = parts;
        let kept = Mutex::new(Kept { shelf, register });
        Ok(Self {
            issuer,
            certificate,
            certificate_pem,
            facts,
            anchors,
            fingerprint,
            lifetimes,
            revoked,
            kept,
        })
    }

    /// Returns the fingerprint of the authority.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the certificate of the authority as PEM. It is no secret.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Returns the certificate of the authority in DER.
    pub fn certificate_der(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns facts about the certificate of the authority, such as its expiry.
    pub fn certificate(&self) -> &CertificateFacts {
        &self.facts
    }

    /// Returns the address that workers join by, if the controller is reached at this host and port.
    ///
    /// # Errors
    /// When these cannot be a host and a port.
    pub fn join_address(&self, host: &str, port: u16) -> Result<JoinAddress, JoinAddressError> {
        JoinAddress::new(host, port, self.fingerprint)
    }

    /// Returns the revoked serial numbers, for the [`Credentials`](tidemill_link::remote::Credentials) of this
    /// process: the set follows revocations here.
    pub fn revoked(&self) -> &Revoked {
        &self.revoked
    }

    /// Returns the revoked serial numbers, to be sent to workers, which put them into a set of their own.
    pub fn revoked_serials(&self) -> Vec<Serial> {
        self.look(|register| {
            let all = register.certificates.iter().filter(|certificate| certificate.revoked.is_some());
            all.map(|certificate| certificate.serial).collect()
        })
    }

    fn look<T>(&self, act: impl FnOnce(&Register) -> T) -> T {
        act(&self.kept.lock().unwrap_or_else(PoisonError::into_inner).register)
    }

    /// Changes the register. All changes of `act` are on the disk when this returns, or none of them counts.
    fn change<T>(
        &self,
        now: Timestamp,
        act: impl FnOnce(&mut Register) -> Result<T, IdentityError>,
    ) -> Result<T, IdentityError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut register = kept.register.clone();
        let result = act(&mut register)?;
        if register != kept.register {
            register.prune(now);
            kept.shelf.keep(&register)?;
            self.revoked.replace(revoked_in(&register));
            kept.register = register;
        }
        Ok(result)
    }
}

/// Register of a controller that stands by: no other process sees what it writes there.
struct Aside(Register);

impl Registry for Aside {
    fn place(&self) -> String {
        "the register of a controller that stands by".to_owned()
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.0.to_bytes().map(Some)
    }

    fn replace(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

fn revoked_in(register: &Register) -> impl Iterator<Item = &[u8]> {
    let revoked = register.certificates.iter().filter(|certificate| certificate.revoked.is_some());
    revoked.map(|certificate| certificate.serial.as_bytes())
}

/// The content of an authority's file.
struct Parts {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    facts: CertificateFacts,
}

impl Parts {
    fn read(text: &str) -> Result<Self, String> {
        const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
        const END: &str = "-----END CERTIFICATE-----";
        let begin = text.find(BEGIN).ok_or("there is no certificate in it")?;
        let end = text[begin..].find(END).ok_or("there is no whole certificate in it")?;
        let certificate_pem = format!("{}\n", &text[begin..begin + end + END.len()]);
        let certificate =
            CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| error.to_string())?;
        let key = KeyPair::try_from(&key).map_err(|error| error.to_string())?;
        let parsed = webpki::EndEntityCert::try_from(&certificate).map_err(|error| error.to_string())?;
        if *parsed.subject_public_key_info() != key.subject_public_key_info() {
            return Err("its key does not match its certificate".to_owned());
        }
        let facts = CertificateFacts::of_der(&certificate).map_err(|error| error.to_string())?;
        let name = facts.common_name.clone().filter(|_| facts.is_authority);
        let name = name.ok_or("its certificate is not that of an authority")?;
        let issuer = Issuer::new(parameters(&name), key);
        Ok(Self { issuer, certificate, certificate_pem, facts })
    }
}

/// Returns the parameters of an authority's certificate, by its name.
fn parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

/// Makes a key with its certificate, in one text. ECDSA P-256: browsers do not take Ed25519.
fn new_authority(
    lifetimes: Lifetimes,
    now: Timestamp,
) -> Result<(Zeroizing<String>, Fingerprint), IdentityError> {
    let serial = Serial::draw()?;
    // Different names let a peer report that a certificate is of another authority, rather than that its signature is
    // wrong.
    let mut parameters = parameters(&format!("Tidemill authority {}", &serial.to_string()[..8]));
    parameters.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
    let from = now.before(Duration::from_secs(3_600));
    signing::set_validity(&mut parameters, from, now.after(lifetimes.authority));
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IdentityError::certificate)?;
    let certificate = parameters.self_signed(&key).map_err(IdentityError::certificate)?;
    let private = Zeroizing::new(key.serialize_pem());
    let text = Zeroizing::new(format!("{}{}", certificate.pem(), *private));
    Ok((text, Fingerprint::of(certificate.der())))
}
