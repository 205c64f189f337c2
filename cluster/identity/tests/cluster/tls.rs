//! Who is believed to be the controller, and who is let in.
use std::sync::Arc;
use std::sync::mpsc::channel;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::{ClientConfig, ServerConfig};
use tidemill_http::{Call, CallError};
use tidemill_identity::*;
use tidemill_link::remote::*;

use crate::calls::{Asked, PATIENCE, Server, send};
use crate::parts::*;

fn hello(config: ClientConfig, server: ServerConfig) -> Result<Vec<u8>, CallError> {
    let server = Server::start(
        server,
        Arc::new(|asked: &Asked| {
            let peer = asked
                .chain
                .first()
                .map(|certificate| PeerIdentity::of_verified(certificate).expect("verified"));
            (200, peer.map_or_else(|| b"nobody".to_vec(), |peer| peer.to_string().into_bytes()))
        }),
    );
    send(&Call::get("/"), &server.place(), &Arc::new(config), PATIENCE).map(|answer| answer.body)
}

fn stranger(result: Result<Vec<u8>, CallError>) -> ControllerError {
    match result.expect_err("is not believed") {
        CallError::Stranger { reason, .. } => {
            reason.0.downcast_ref::<ControllerError>().expect("a reason of this crate").clone()
        }
        other => panic!("{other}"),
    }
}

fn server(certificates: &Certificates, clock: &Clock) -> ServerConfig {
    let credentials =
        Credentials::with(certificates, Revoked::default(), clock.provider()).expect("they fit");
    credentials.server_config(ClientCertificates::Optional).expect("TLS")
}

fn known_by(cluster: &Cluster, clock: &Clock) -> ClientConfig {
    fingerprint_config(cluster.authority().fingerprint(), clock.provider()).expect("TLS")
}

#[test]
fn the_fingerprint_decides_who_is_the_controller() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let clock = Clock::at(NOON);
    let ours = cluster.authority().issue_controller(&[], NOON).unwrap();
    let theirs = other.authority().issue_controller(&[], NOON).unwrap();
    let (wanted, shown) = (cluster.authority().fingerprint(), other.authority().fingerprint());
    let ask = |certificates: &Certificates| hello(known_by(&cluster, &clock), server(certificates, &clock));
    assert_eq!(ask(&ours).unwrap(), b"nobody");
    let reason = stranger(ask(&theirs));
    assert_eq!(reason, ControllerError::OtherCluster { shown, wanted });
    let text = reason.to_string();
    assert!(text.contains(&wanted.to_string()) && text.contains(&shown.to_string()), "{text}");
    // Without the certificate of the authority nothing can be compared.
    let leaf = String::from_utf8(ours.chain_pem.clone()).unwrap();
    let leaf = leaf[..leaf.rfind("-----BEGIN").unwrap()].to_owned().into_bytes();
    let alone = Certificates { chain_pem: leaf, ..ours.clone() };
    assert_eq!(stranger(ask(&alone)), ControllerError::NoAuthority { wanted });
    // A peer in between shows the right authority after a certificate of another one.
    let between = String::from_utf8(theirs.chain_pem.clone()).unwrap();
    let between = format!(
        "{}{}",
        &between[..between.rfind("-----BEGIN").unwrap()],
        cluster.authority().certificate_pem()
    );
    let between = Certificates { chain_pem: between.into_bytes(), ..theirs };
    let error = ask(&between).unwrap_err();
    assert!(matches!(&error, CallError::Tls { reason: rustls::Error::InvalidCertificate(_), .. }), "{error}");
    // A worker has a good certificate, for the same name, and is not the controller.
    let worker = cluster.worker("edge-1");
    let reason = stranger(ask(&worker.certificates()));
    assert_eq!(reason, ControllerError::NotTheController { of: "worker `edge-1`".to_owned() });
}

/// A certificate of the right authority that says nothing of whom it is of, or has another name; and an "authority" that the
/// fingerprint fits but that may not issue any.
#[test]
fn what_the_authority_did_not_say_does_not_count() {
    let clock = Clock::at(NOON);
    let make = |is_ca: bool, names: &[&str], uri: Option<&str>| {
        let mut parameters = CertificateParams::new(vec![]).expect("no names");
        parameters.is_ca = if is_ca { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
        let key = KeyPair::generate().expect("a key");
        let authority = parameters.self_signed(&key).expect("a certificate");
        let issuer = Issuer::new(parameters, key);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = CertificateParams::new(names).expect("names");
        parameters.subject_alt_names.extend(uri.map(|uri| SanType::URI(uri.try_into().expect("ASCII"))));
        let key = KeyPair::generate().expect("a key");
        let leaf = parameters.signed_by(&key, &issuer).expect("a certificate");
        let certificates = Certificates {
            chain_pem: format!("{}{}", leaf.pem(), authority.pem()).into_bytes(),
            key_pem: key.serialize_pem().into_bytes(),
            authority_pem: authority.pem().into_bytes(),
        };
        let config = fingerprint_config(Fingerprint::of(authority.der()), clock.provider()).expect("TLS");
        hello(config, server(&certificates, &clock))
    };
    let controller = Some("tidemill:controller");
    assert!(make(true, &["tidemill"], controller).is_ok());
    let misnamed = make(true, &["elsewhere"], controller).unwrap_err().to_string();
    assert!(misnamed.contains("not valid for name"), "{misnamed}");
    assert!(matches!(stranger(make(true, &["tidemill"], None)), ControllerError::NotTheController { .. }));
    assert!(matches!(stranger(make(false, &["tidemill"], controller)), ControllerError::NoAuthority { .. }));
}

#[test]
fn nothing_is_believed_outside_its_time() {
    let cluster = Cluster::new();
    let clock = Clock::at(NOON);
    let certificates = cluster.authority().issue_controller(&[], NOON).unwrap();
    let ask = || hello(known_by(&cluster, &clock), server(&certificates, &clock));
    clock.set(minutes(120));
    assert!(ask().is_ok());
    clock.set(minutes(121));
    let error = ask().unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    clock.set(minutes(25 * 60));
    assert!(matches!(stranger(ask()), ControllerError::AuthorityNotValid { .. }));
    clock.set(Timestamp::from_unix(0));
    let text = stranger(ask()).to_string();
    assert!(text.contains("now is 1970-01-01 00:00:00 UTC: is the clock of this machine right?"), "{text}");
}

/// The server of the controller: people come without certificates, workers with good ones.
#[test]
fn a_certificate_is_optional_and_must_be_good_if_it_is_shown() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let clock = Clock::at(NOON);
    let certificates = cluster.authority().issue_controller(&["hub.example"], NOON).unwrap();
    let revoked = cluster.authority().revoked().clone();
    let credentials = Credentials::with(&certificates, revoked, clock.provider()).unwrap();
    let server = || credentials.server_config(ClientCertificates::Optional).unwrap();
    let edge = cluster.worker("edge-1");
    let shows = |certificates: &Certificates| {
        let credentials = Credentials::with(certificates, Revoked::default(), clock.provider()).unwrap();
        worker_config(&credentials).unwrap()
    };
    assert_eq!(hello(known_by(&cluster, &clock), server()).unwrap(), b"nobody");
    assert_eq!(hello(shows(&edge.certificates()), server()).unwrap(), b"tidemill:worker/edge-1");
    // One of another cluster that believes this one.
    let authority_pem = cluster.authority().certificate_pem().as_bytes().to_vec();
    let foreign = Certificates { authority_pem, ..other.worker("edge-1").certificates() };
    let error = hello(shows(&foreign), server()).unwrap_err().to_string();
    assert!(error.contains("UnknownCA") || error.contains("DecryptError"), "{error}");
    clock.set(minutes(61));
    let error = hello(shows(&edge.certificates()), server()).unwrap_err().to_string();
    assert!(error.contains("CertificateExpired"), "{error}");
    clock.set(minutes(1));
    cluster.authority().revoke_worker(&name("edge-1"), "lost", "Ada", minutes(1)).unwrap();
    let error = hello(shows(&edge.certificates()), server()).unwrap_err().to_string();
    assert!(error.contains("CertificateRevoked"), "{error}");
    // A worker believes no other worker to be the controller.
    let hub = cluster.worker("hub");
    let edge = cluster.worker("edge-2");
    let hub = Credentials::with(&hub.certificates(), Revoked::default(), clock.provider()).unwrap();
    let hub = hub.server_config(ClientCertificates::Optional).unwrap();
    let reason = stranger(hello(shows(&edge.certificates()), hub));
    assert_eq!(reason, ControllerError::NotTheController { of: "worker `hub`".to_owned() });
}

/// Workers of one cluster connect to each other by what the authority issued, and know who the other one is.
#[test]
fn workers_know_each_other_on_links() {
    let cluster = Cluster::new();
    let clock = Clock::at(NOON);
    let credentials = |worker: &str| {
        let certificates = cluster.worker(worker).certificates();
        let revoked = cluster.authority().revoked().clone();
        Credentials::with(&certificates, revoked, clock.provider()).expect("they fit")
    };
    let (edge, hub) = (credentials("edge-1"), credentials("hub"));
    let listener =
        Listener::bind(&"tcp://127.0.0.1:0".parse().unwrap(), &Security::with(&hub).unwrap()).unwrap();
    let (sender, incoming) = channel();
    let sender = std::sync::Mutex::new(sender);
    let greeting = |host: &str| Greeting {
        run: 1,
        plan_version: 1,
        purpose: Purpose::Control { host: host.to_owned() },
    };
    let own = greeting("hub");
    let serving = listener
        .serve(move |incoming| {
            let who = incoming.peer_certificate().map(PeerIdentity::of_verified);
            let accepted = incoming.accept(&own).map(drop);
            sender.lock().expect("nobody panics").send((who, accepted.is_ok())).expect("is waited for");
        })
        .unwrap();
    // In its greeting it may say what it wants.
    let security = Security::with(&edge).unwrap();
    let connection = dial(serving.address(), &security, &greeting("controller"), PATIENCE).unwrap();
    let (who, accepted) = incoming.recv_timeout(PATIENCE).unwrap();
    assert!(accepted);
    assert_eq!(who, Some(Ok(PeerIdentity::Worker(name("edge-1")))));
    let peer = connection.peer_certificate().map(PeerIdentity::of_verified);
    assert_eq!(peer, Some(Ok(PeerIdentity::Worker(name("hub")))));
    cluster.authority().revoke_worker(&name("edge-1"), "lost", "Ada", NOON).unwrap();
    let error = dial(serving.address(), &security, &greeting("edge-1"), PATIENCE).unwrap_err().to_string();
    assert_eq!(error, "TLS: the peer refuses the certificate of this side: it has been revoked");
}
