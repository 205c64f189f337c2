//! The stored identity of a worker, and data that the folder rejects.
use std::fs;
use std::os::unix::fs::PermissionsExt;

use tidemill_identity::*;

use crate::parts::*;

fn answer(cluster: &Cluster, request_pem: String, worker: &str) -> Issued {
    let token = cluster.token(&JoinTokenOptions::default(), NOON);
    let join = JoinRequest {
        token: token.reveal().to_string(),
        request_pem,
        name: Some(name(worker)),
        location: None,
        tier: None,
    };
    cluster.authority().redeem(&join, NOON).expect("comes in")
}

fn key_of(request: &str) -> CertificateRequest {
    CertificateRequest::from_pem(request).expect("a request")
}

#[test]
fn an_identity_is_kept_and_replaced() {
    let cluster = Cluster::new();
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("worker");
    let mut folder = WorkerFolder::open(&path).unwrap();
    assert!(folder.current().is_none());
    let request = folder.request().unwrap();
    // The process ends before the answer: the next one asks for the same key.
    drop(folder);
    let mut folder = WorkerFolder::open(&path).unwrap();
    assert_eq!(key_of(&folder.request().unwrap()), key_of(&request));
    let issued = answer(&cluster, request.clone(), "edge-1");
    let fingerprint = cluster.authority().fingerprint();
    folder.install(&issued, fingerprint).unwrap();
    drop(folder);
    let mut folder = WorkerFolder::open(&path).unwrap();
    let identity = folder.current().unwrap().clone();
    assert_eq!((&identity.identity, identity.authority), (&issued.identity, fingerprint));
    assert_eq!(identity.facts.not_after, issued.expires);
    assert_eq!(fs::metadata(path.join("identity.pem")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!path.join("pending.pem").exists());
    // A renewal is for another key.
    let renewal = folder.request().unwrap();
    assert_ne!(key_of(&renewal), key_of(&request));
    let chain = chain(&issued);
    let renewed = cluster.authority().renew(&chain, &renewal, minutes(40)).unwrap();
    folder.install(&renewed, identity.authority).unwrap();
    assert_eq!(folder.current().unwrap().facts.not_after, minutes(100));
    let error = folder.install(&renewed, fingerprint).unwrap_err().to_string();
    assert_eq!(error, "there is a certificate, but no request for it");
}

/// The process ends between the two steps of keeping an answer: the remaining key is not used for another request.
#[test]
fn a_key_that_is_in_use_is_not_asked_for_again() {
    let cluster = Cluster::new();
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("worker");
    let mut folder = WorkerFolder::open(&path).unwrap();
    let request = folder.request().unwrap();
    let pending = fs::read(path.join("pending.pem")).unwrap();
    let issued = answer(&cluster, request.clone(), "edge-1");
    folder.install(&issued, cluster.authority().fingerprint()).unwrap();
    drop(folder);
    fs::write(path.join("pending.pem"), pending).unwrap();
    fs::set_permissions(path.join("pending.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut folder = WorkerFolder::open(&path).unwrap();
    assert_ne!(key_of(&folder.request().unwrap()), key_of(&request));
}

#[test]
fn an_answer_that_does_not_fit_replaces_nothing() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let temporary = tempfile::tempdir().unwrap();
    let mut folder = WorkerFolder::open(temporary.path()).unwrap();
    let request = folder.request().unwrap();
    let good = answer(&cluster, request.clone(), "edge-1");
    let (fingerprint, theirs) = (cluster.authority().fingerprint(), other.authority().fingerprint());
    let foreign = answer(&other, request, "edge-1");
    let error = folder.install(&foreign, fingerprint).unwrap_err().to_string();
    assert!(error.contains(&theirs.to_string()) && error.contains(&fingerprint.to_string()), "{error}");
    let leaf = &good.chain_pem[..good.chain_pem.rfind("-----BEGIN").unwrap()];
    let cases = [
        (cluster.worker("hub").issued, "the chain and its key"), // of another key
        (Issued { chain_pem: String::new(), ..good.clone() }, "there are not two certificates"),
        (Issued { chain_pem: leaf.to_owned(), ..good.clone() }, "there are not two certificates"),
        (Issued { chain_pem: format!("{leaf}{leaf}"), ..good.clone() }, "its last not that of an authority"),
        (
            Issued { chain_pem: format!("{leaf}{}", other.authority().certificate_pem()), ..good.clone() },
            "its certificate is not of its authority",
        ),
    ];
    for (issued, word) in cases {
        let error = folder.install(&issued, fingerprint).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(folder.current().is_none() && !temporary.path().join("identity.pem").exists());
    folder.install(&good, fingerprint).unwrap();
    drop(folder);
    fs::write(temporary.path().join("identity.pem"), "nothing").unwrap();
    let error = WorkerFolder::open(temporary.path()).unwrap_err().to_string();
    assert!(error.contains("identity.pem is damaged (there is no private key in it)"), "{error}");
}
