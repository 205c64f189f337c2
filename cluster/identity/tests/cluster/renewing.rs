//! Certificates after the first one.
use std::time::Duration;

use tidemill_identity::*;

use crate::parts::*;

#[test]
fn a_worker_renews_its_certificate() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("edge-1");
    let due = worker.facts().renewal_due();
    let key = NewKey::generate().unwrap();
    let renewed = cluster.authority().renew(&worker.chain(), key.request_pem(), due).unwrap();
    assert_eq!(renewed.identity, worker.issued.identity);
    assert_eq!(renewed.expires, due.after(lifetimes().worker));
    // The old one is good until its end; both are known after a restart.
    cluster.reopen();
    assert!(cluster.authority().verify(&worker.chain(), minutes(60)).is_ok());
    assert!(cluster.authority().verify(&chain(&renewed), minutes(80)).is_ok());
    // The answer can be asked for again, and the new certificate can be renewed with the same key.
    assert_eq!(cluster.authority().renew(&worker.chain(), key.request_pem(), due).unwrap(), renewed);
    let third = cluster.authority().renew(&chain(&renewed), key.request_pem(), minutes(90)).unwrap();
    assert_eq!(third.expires, minutes(150));
    assert_eq!(cluster.authority().certificates().len(), 3);
}

#[test]
fn renewal_is_due_at_two_thirds_of_the_life() {
    let cluster = Cluster::new();
    let facts = cluster.worker("edge-1").facts();
    let life = facts.not_after.since(facts.not_before);
    assert_eq!(facts.renewal_due().since(facts.not_before), life * 2 / 3);
    // Of thirty days ten are left.
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::open_or_create(folder.path(), Lifetimes::default(), NOON).unwrap();
    let token = authority.create_join_token(&JoinTokenOptions::default(), "Ada", NOON).unwrap();
    let issued = authority.redeem(&join(&token, &NewKey::generate().unwrap()), NOON).unwrap();
    let day = |count: u64| NOON.after(Duration::from_secs(86_400 * count));
    assert_eq!(issued.expires, day(30));
    let due = CertificateFacts::of_pem(&issued.chain_pem).unwrap().renewal_due();
    assert!(due <= day(20) && day(20).since(due) < Duration::from_secs(300), "{due}");
}

#[test]
fn who_is_not_a_good_worker_renews_nothing() {
    let (mut cluster, other) = (Cluster::new(), Cluster::new());
    let worker = cluster.worker("edge-1");
    let (serial, request) = (worker.facts().serial, NewKey::generate().unwrap());
    let hexadecimal: String = serial.iter().map(|byte| format!("{byte:02x}")).collect();
    let renew = |cluster: &Cluster, chain: &[_], now| {
        refusal(cluster.authority().renew(chain, request.request_pem(), now))
    };
    let expired = renew(&cluster, &worker.chain(), minutes(61));
    assert_eq!(expired, Refusal::CertificateExpired { serial: hexadecimal.clone(), at: minutes(60) });
    let text = format!("the certificate expired on {}: join again with a new token", minutes(60));
    assert_eq!(expired.for_peer(), text);
    let early = renew(&cluster, &worker.chain(), NOON.before(Duration::from_secs(3_000)));
    assert!(matches!(early, Refusal::CertificateNotYetValid { .. }), "{early}");
    let foreign = renew(&cluster, &other.worker("edge-1").chain(), NOON);
    assert!(matches!(foreign, Refusal::OtherCluster { theirs: Some(_), .. }), "{foreign}");
    assert_eq!(renew(&cluster, &[], NOON), Refusal::NoCertificate);
    let broken = refusal(cluster.authority().renew(&worker.chain(), "no request", NOON));
    assert_eq!(broken, Refusal::Request(RequestError::Pem));
    // The controller has no need to.
    let controller = cluster.authority().issue_controller(&["hub.example", "10.0.0.1"], NOON).unwrap();
    let issued =
        Issued { chain_pem: String::from_utf8(controller.chain_pem).unwrap(), ..worker.issued.clone() };
    assert!(matches!(renew(&cluster, &chain(&issued), NOON), Refusal::NotAWorker { .. }));
    cluster.authority().revoke_worker(&name("edge-1"), "sold", "Ada", minutes(10)).unwrap();
    cluster.reopen();
    let revoked = renew(&cluster, &worker.chain(), minutes(11));
    let text =
        format!("certificate {hexadecimal} of worker `edge-1` was revoked on {} by Ada: sold", minutes(10));
    assert_eq!(revoked.to_string(), text);
}

#[test]
fn a_worker_has_not_more_certificates_than_it_needs() {
    let cluster = Cluster::new();
    let worker = cluster.worker("edge-1");
    let renew = |now| {
        let key = NewKey::generate().unwrap();
        cluster.authority().renew(&worker.chain(), key.request_pem(), now)
    };
    for _ in 1..MAX_GOOD_CERTIFICATES {
        renew(NOON).unwrap();
    }
    let refused = refusal(renew(NOON));
    assert_eq!(refused, Refusal::TooManyCertificates { name: name("edge-1"), count: MAX_GOOD_CERTIFICATES });
}

#[test]
fn what_is_revoked_stays_revoked() {
    let mut cluster = Cluster::new();
    let (edge, hub) = (cluster.worker("edge-1"), cluster.worker("hub"));
    let revoked = cluster.authority().revoked().clone();
    let serials = cluster.authority().revoke_worker(&name("edge-1"), "lost", "Ada", minutes(1)).unwrap();
    assert_eq!(serials[0].as_bytes(), edge.facts().serial);
    assert!(revoked.contains(&edge.facts().serial) && !revoked.contains(&hub.facts().serial));
    let hub_serial = cluster.authority().verify(&hub.chain(), minutes(1)).unwrap().serial;
    cluster.reopen();
    assert_eq!(cluster.authority().revoked_serials(), serials);
    assert!(cluster.authority().revoked().contains(&edge.facts().serial));
    let again = cluster.authority().revoke_worker(&name("edge-1"), "lost", "Ada", minutes(2)).unwrap_err();
    assert_eq!(again.to_string(), "there is no worker `edge-1` with a certificate to revoke");
    cluster.authority().revoke_certificate(hub_serial, "lost", "Ada", minutes(2)).unwrap();
    assert!(matches!(
        cluster.authority().verify(&hub.chain(), minutes(2)),
        Err(Refusal::CertificateRevoked { .. })
    ));
    // Revoked once is enough: who did it first stands there.
    cluster.authority().revoke_certificate(hub_serial, "again", "Grace", minutes(3)).unwrap();
    let records = cluster.authority().certificates();
    let revocation = records.iter().find(|it| it.serial == hub_serial).unwrap().revoked.clone().unwrap();
    assert_eq!((revocation.by.as_str(), revocation.at), ("Ada", minutes(2)));
    let unknown: Serial = "00112233445566778899aabbccddeeff".parse().unwrap();
    let error = cluster.authority().revoke_certificate(unknown, "", "Ada", NOON).unwrap_err();
    assert!(matches!(error, IdentityError::NoSuch(_)), "{error}");
    // A worker that was revoked can come in again by a new token.
    assert_eq!(cluster.worker("edge-1").issued.identity, edge.issued.identity);
}

/// An older copy of the folder does not know what happened since: certificates that it never issued are not renewed by it.
#[test]
fn a_certificate_that_the_register_does_not_know_is_refused() {
    let mut cluster = Cluster::new();
    let path = cluster.folder.path().join("register.json");
    let older = std::fs::read(&path).unwrap();
    let worker = cluster.worker("edge-1");
    std::fs::write(&path, older).unwrap();
    cluster.reopen();
    let refused = cluster.authority().verify(&worker.chain(), NOON).unwrap_err();
    assert!(refused.to_string().contains("was an older copy of its folder restored?"), "{refused}");
}

#[test]
fn the_controller_has_the_names_that_people_use() {
    let cluster = Cluster::new();
    let names = ["hub.example", "10.0.0.1", "[fd00::1]", "localhost"];
    let certificates = cluster.authority().issue_controller(&names, NOON).unwrap();
    let text = String::from_utf8(certificates.chain_pem).unwrap();
    let facts = CertificateFacts::of_pem(&text).unwrap();
    assert_eq!(facts.not_after, minutes(120));
    let issued = Issued { chain_pem: text, ..cluster.worker("edge-1").issued };
    let chain = chain(&issued);
    assert_eq!(PeerIdentity::of_verified(&chain[0]), Ok(PeerIdentity::Controller));
    let parsed = webpki::EndEntityCert::try_from(&chain[0]).unwrap();
    for name in ["tidemill", "hub.example", "10.0.0.1", "fd00::1", "localhost"] {
        let name = rustls::pki_types::ServerName::try_from(name).unwrap();
        assert!(parsed.verify_is_valid_for_subject_name(&name).is_ok(), "{name:?}");
    }
    for name in ["", "a b", "https://hub"] {
        let error = cluster.authority().issue_controller(&[name], NOON).unwrap_err().to_string();
        assert!(error.contains("is neither a DNS name nor an IP address"), "{error}");
    }
}
