//! Certificates of hosts. Tests of other crates have this file as a module, too.
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::sync::Arc;
use tidemill_link::remote::Certificates;

/// Issues certificates.
#[derive(Clone)]
pub(crate) struct Authority {
    pem: String,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

impl Authority {
    pub(crate) fn named(name: &str) -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names");
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = parameters.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Arc::new(Issuer::new(parameters, key)) }
    }

    /// Certifies a host of this name. `change` adds further facts.
    pub(crate) fn certify(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Certificates {
        let mut parameters = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut parameters);
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        Certificates {
            chain_pem: certificate.pem().into_bytes(),
            key_pem: key.serialize_pem().into_bytes(),
            authority_pem: self.pem.clone().into_bytes(),
        }
    }
}
