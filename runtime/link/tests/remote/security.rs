//! Who is believed.
use crate::authority::Authority;
use crate::parts::*;
use rcgen::SanType;
use tidemill_link::remote::*;

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("tests")
    }

    /// For a host with these names that say who it is.
    fn issue_to(&self, who: &[&str]) -> Certificates {
        let names = who.iter().map(|who| SanType::URI((*who).try_into().expect("ASCII")));
        self.certify("tidemill", |parameters| parameters.subject_alt_names.extend(names))
    }

    pub(crate) fn host(&self) -> Certificates {
        self.issue_to(&[])
    }

    /// Valid in the year 2001.
    pub(crate) fn expired(&self) -> Certificates {
        self.certify("tidemill", |parameters| {
            parameters.not_before = rcgen::date_time_ymd(2001, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(2002, 1, 1);
        })
    }
}

fn secured(certificates: &Certificates) -> Security {
    Security::mutual(certificates).expect("they belong together")
}

/// Connects both sides, which must both succeed or fail. Returns the error of the side that dials.
fn meet(dials: &Security, listens: &Security) -> Result<(), String> {
    let (serving, incoming) = serve(&Kind { security: listens.clone(), ..tcp() });
    let accept = std::thread::spawn(move || match incoming.recv() {
        Ok(incoming) => incoming.accept(&control("hub")).is_ok(),
        Err(_) => false,
    });
    let dialed = dial(serving.address(), dials, &control("edge"), PATIENCE);
    drop(serving);
    let accepted = accept.join().expect("does not panic");
    assert_eq!(dialed.is_ok(), accepted);
    dialed.map(drop).map_err(|error| error.to_string())
}

#[test]
fn hosts_of_one_authority_believe_each_other() {
    let authority = Authority::new();
    assert_eq!(meet(&secured(&authority.host()), &secured(&authority.host())), Ok(()));
}

#[test]
fn others_are_refused_with_a_clear_text() {
    let (authority, other) = (Authority::new(), Authority::named("others"));
    // Has the name of the authority and another key.
    let forged = Authority::new();
    let good = secured(&authority.host());
    // A host of another authority that believes ours, and one that does not.
    let stranger = Certificates { authority_pem: authority.host().authority_pem, ..other.host() };
    let (stranger, foreign) = (secured(&stranger), secured(&other.host()));
    let expired = secured(&authority.expired());
    let misnamed = secured(&authority.certify("elsewhere", |_| {}));
    let forged = Certificates { authority_pem: authority.host().authority_pem, ..forged.host() };
    let forged = secured(&forged);
    let cases = [
        ("a forged one dials", &forged, &good, "this side: it is of another authority"),
        ("a forged one listens", &good, &forged, "of the peer is refused"),
        ("a stranger dials", &stranger, &good, "this side: it is of another authority"),
        ("a stranger listens", &good, &stranger, "UnknownIssuer"),
        ("of another authority", &good, &foreign, "UnknownIssuer"),
        ("an expired one dials", &expired, &good, "this side: it has expired"),
        ("an expired one listens", &good, &expired, "expired"),
        ("another name listens", &good, &misnamed, "not valid for name"),
    ];
    for (case, dials, listens, word) in cases {
        let error = meet(dials, listens).expect_err(case);
        assert!(error.starts_with("TLS: ") && error.contains(word), "{case}: {error}");
    }
}

#[test]
fn who_shows_no_certificate_is_refused() {
    let good = secured(&Authority::new().host());
    // Plain text where TLS is asked for.
    let error = meet(&Security::none(), &good).expect_err("no TLS");
    assert!(!error.is_empty());
    // TLS where plain text is expected: the error says that this is no greeting.
    let error = meet(&good, &Security::none()).expect_err("TLS");
    assert!(error.starts_with("TLS: "), "{error}");
}

/// A client that does TLS right but has no certificate.
#[test]
fn a_client_without_a_certificate_is_refused() {
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    use std::io::{Read, Write};
    use std::sync::Arc;
    let certificates = Authority::new().host();
    let (serving, incoming) = serve(&Kind { security: secured(&certificates), ..tcp() });
    let host = serving.address().place();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&certificates.authority_pem).unwrap()).unwrap();
    let configuration = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("tidemill").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(configuration), name).unwrap();
    let mut socket = std::net::TcpStream::connect(host).unwrap();
    let mut stream = rustls::Stream::new(&mut client, &mut socket);
    let told = stream.write_all(b"TIDEMILL").and_then(|()| stream.read_exact(&mut [0; 1]));
    let error = told.expect_err("no certificate").to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
    drop(serving);
    assert!(incoming.recv().is_err());
}

#[test]
fn certificates_that_do_not_belong_together_are_told() {
    let (one, other) = (Authority::new().host(), Authority::new().host());
    let cases = [
        (Certificates { chain_pem: b"no PEM".to_vec(), ..one.clone() }, "the chain"),
        (Certificates { key_pem: Vec::new(), ..one.clone() }, "the key"),
        (Certificates { authority_pem: Vec::new(), ..one.clone() }, "the authority"),
        (Certificates { key_pem: other.key_pem, ..one }, "the chain and its key"),
    ];
    for (certificates, word) in cases {
        let error = Security::mutual(&certificates).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let certificates = Authority::new().host();
    let text = format!("{certificates:?} {:?}", secured(&certificates));
    assert_eq!(text, "Certificates { .. } Security::mutual");
}

/// A host of the same authority that answers in the place of another one learns nothing: not even the number of the run.
#[test]
fn a_host_with_the_certificate_of_another_one_is_not_greeted() {
    let authority = Authority::new();
    let of = |who: &[&str]| secured(&authority.issue_to(who));
    let (edge, other) = ("tidemill:worker/edge-1", "tidemill:worker/edge-2");
    let hub = of(&["tidemill:controller"]);
    for (listens, found) in [
        (of(&[other]), other),
        (of(&[]), "does not say who"),
        (of(&["https://elsewhere"]), "does not say who"),
        (of(&[edge, other]), "does not say who"),
    ] {
        let (serving, incoming) = serve(&Kind { security: listens, ..tcp() });
        let error =
            dial_to(serving.address(), &hub, &control("hub"), PATIENCE, Some(edge)).expect_err("another one");
        assert!(matches!(&error, RemoteError::Stranger { wanted, .. } if wanted == edge), "{error}");
        assert!(error.to_string().contains(found), "{error}");
        drop(serving);
        assert!(incoming.recv().is_err(), "it was greeted");
    }
    // Without TLS no peer has an identity.
    let (serving, incoming) = serve(&tcp());
    let error = dial_to(serving.address(), &Security::none(), &control("hub"), PATIENCE, Some(edge))
        .expect_err("nobody");
    assert!(matches!(error, RemoteError::Stranger { .. }), "{error}");
    drop(serving);
    assert!(incoming.recv().is_err(), "it was greeted");
}

#[test]
fn both_sides_know_who_the_other_one_is() {
    let authority = Authority::new();
    let of = |who: &str| secured(&authority.issue_to(&[who]));
    let (serving, incoming) = serve(&Kind { security: of("tidemill:worker/edge-1"), ..tcp() });
    let accept = std::thread::spawn(move || {
        let incoming = incoming.recv_timeout(PATIENCE).unwrap();
        let early = incoming.peer_name();
        let connection = incoming.accept(&control("edge")).unwrap();
        assert_eq!(connection.peer_name(), early);
        early
    });
    let wanted = Some("tidemill:worker/edge-1");
    let dialed =
        dial_to(serving.address(), &of("tidemill:controller"), &control("hub"), PATIENCE, wanted).unwrap();
    assert_eq!(dialed.peer_name().as_deref(), wanted);
    assert_eq!(accept.join().unwrap().as_deref(), Some("tidemill:controller"));
    let (dialed, accepted) = pair(&tcp(), &control("edge"), &control("hub"));
    assert_eq!((dialed.peer_name(), accepted.peer_name()), (None, None));
}
