//! The stored identity of a worker.
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tidemill_link::remote::{Certificates, Credentials};
use zeroize::Zeroizing;

use crate::authority::Issued;
use crate::certificate::CertificateFacts;
use crate::error::{IdentityError, StoreError};
use crate::fingerprint::Fingerprint;
use crate::folder::Folder;
use crate::new_key::NewKey;
use crate::peer::PeerIdentity;

/// The certificate, that of the authority, and the key.
const IDENTITY: &str = "identity.pem";
/// The key of a request that was not answered yet.
const PENDING: &str = "pending.pem";

/// The identity of a worker in a folder that no other user can read. It survives any end of the process: the key of a
/// request is kept before it is sent, so that the same request is sent again until its answer is there, and a new
/// certificate takes the place of the old one all at once.
pub struct WorkerFolder {
    folder: Folder,
    current: Option<WorkerIdentity>,
}

/// A worker's certificate and key.
#[derive(Debug, Clone)]
pub struct WorkerIdentity {
    /// The identity in the certificate.
    pub identity: PeerIdentity,
    /// Facts of its certificate: its expiry, and when to renew it.
    pub facts: CertificateFacts,
    /// The authority of the cluster that it belongs to.
    pub authority: Fingerprint,
    /// For the [`Credentials`] of its connections.
    pub certificates: Certificates,
}

impl std::fmt::Debug for WorkerFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerFolder").field("path", &self.folder.path()).finish_non_exhaustive()
    }
}

impl WorkerFolder {
    /// Opens the folder, and makes it if it does not exist.
    ///
    /// # Errors
    /// [`IdentityError::Store`] when another process has it, when others could read it, when it is damaged or the system refuses.
    pub fn open(path: &Path) -> Result<Self, IdentityError> {
        Self::establish(Folder::open(path, &[IDENTITY, PENDING])?)
    }

    fn establish(mut folder: Folder) -> Result<Self, IdentityError> {
        let path = folder.path_of(IDENTITY);
        let current = match folder.read(IDENTITY)? {
            None => None,
            Some(bytes) => {
                let text = String::from_utf8(bytes).map(Zeroizing::new);
                let text = text.map_err(|_| StoreError::damaged(&path, "it is not text"))?;
                let read = WorkerIdentity::read(&text);
                Some(read.map_err(|error| StoreError::damaged(&path, error))?)
            }
        };
        // A process that ended between the two steps of `install` has left the key that is in use now.
        let pending = folder.read(PENDING)?.map(Zeroizing::new);
        let in_use = current.as_ref().map(|current| &current.certificates.key_pem);
        if in_use.is_some() && in_use == pending.as_deref() {
            folder.remove(PENDING)?;
        }
        Ok(Self { folder, current })
    }

    /// Returns the identity of the worker, once it has joined.
    pub fn current(&self) -> Option<&WorkerIdentity> {
        self.current.as_ref()
    }

    /// Returns the request to send, as PEM, to join or to renew: for a new key, which is on the disk when this
    /// returns, or for that of the last request, while it has no answer.
    ///
    /// # Errors
    /// When no key can be made or kept.
    pub fn request(&mut self) -> Result<String, IdentityError> {
        let kept = self.folder.read(PENDING)?.map(Zeroizing::new);
        if let Some(key) = kept {
            let path = self.folder.path_of(PENDING);
            let text = std::str::from_utf8(&key).map_err(|_| StoreError::damaged(&path, "it is not text"))?;
            let key = NewKey::from_pem(text).map_err(|error| StoreError::damaged(&path, error))?;
            return Ok(key.request_pem().to_owned());
        }
        let key = NewKey::generate()?;
        self.folder.replace(PENDING, key.key_pem().as_bytes())?;
        Ok(key.request_pem().to_owned())
    }

    /// Gives up the request that was not answered: the next one is for another key.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn give_up_request(&mut self) -> Result<(), IdentityError> {
        Ok(self.folder.remove(PENDING)?)
    }

    /// Keeps what the authority answered to [`WorkerFolder::request`], and shows it from now on. `authority` is the fingerprint of the
    /// address at which the worker joined, or [`WorkerIdentity::authority`] when it renews.
    ///
    /// # Errors
    /// [`IdentityError::Invalid`] when it is of another authority or no request is open, [`IdentityError::Certificate`] when it
    /// does not fit the request; then everything stays as it was.
    pub fn install(
        &mut self,
        issued: &Issued,
        authority: Fingerprint,
    ) -> Result<&WorkerIdentity, IdentityError> {
        let Some(key) = self.folder.read(PENDING)?.map(Zeroizing::new) else {
            return Err(IdentityError::Invalid("there is a certificate, but no request for it".to_owned()));
        };
        let key = String::from_utf8_lossy(&key);
        let text =
            Zeroizing::new(format!("{}{}", issued.chain_pem, Zeroizing::new(key.into_owned()).as_str()));
        let new = WorkerIdentity::read(&text).map_err(IdentityError::Certificate)?;
        if new.authority != authority {
            return Err(IdentityError::Invalid(format!(
                "the certificate is of the cluster with the fingerprint {}, but {authority} is expected",
                new.authority
            )));
        }
        self.folder.replace(IDENTITY, text.as_bytes())?;
        self.folder.remove(PENDING)?;
        Ok(self.current.insert(new))
    }
}

impl WorkerIdentity {
    /// Reads a chain that ends with an authority, and the key after it; all of it must belong together.
    fn read(text: &str) -> Result<Self, String> {
        const KEY: &str = "-----BEGIN PRIVATE KEY-----";
        let split = text.find(KEY).ok_or("there is no private key in it")?;
        let (chain, key) = text.split_at(split);
        let all: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(chain.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let [leaf, .., last] = &all[..] else {
            return Err("there are not two certificates in it, that of the worker and that of the authority"
                .to_owned());
        };
        let facts = CertificateFacts::of_der(leaf).map_err(|error| error.to_string())?;
        let is_authority = CertificateFacts::of_der(last).is_ok_and(|facts| facts.is_authority);
        if !is_authority || facts.is_authority {
            return Err(
                "its first certificate is not that of a worker, or its last not that of an authority"
                    .to_owned(),
            );
        }
        let anchor = webpki::anchor_from_trusted_cert(last).map_err(|error| error.to_string())?;
        let parsed = webpki::EndEntityCert::try_from(leaf).map_err(|error| error.to_string())?;
        // Whether it is valid now is for connections to find out: one that has expired is still an identity.
        let usage = webpki::KeyUsage::client_auth();
        let (algorithms, time) = (webpki::ALL_VERIFICATION_ALGS, facts.not_before.into());
        parsed
            .verify_for_usage(algorithms, &[anchor], &[], time, usage, None, None)
            .map_err(|error| format!("its certificate is not of its authority: {error}"))?;
        let identity = PeerIdentity::of_verified(leaf).map_err(|error| error.to_string())?;
        let begin = chain.rfind("-----BEGIN CERTIFICATE-----").unwrap_or_default();
        let certificates = Certificates {
            chain_pem: chain.as_bytes().to_vec(),
            key_pem: key.as_bytes().to_vec(),
            authority_pem: chain.as_bytes()[begin..].to_vec(),
        };
        Credentials::new(&certificates).map_err(|error| error.to_string())?;
        Ok(Self { identity, facts, authority: Fingerprint::of(last), certificates })
    }
}
