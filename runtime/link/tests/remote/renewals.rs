//! Certificates that change while listeners and channels exist.
use crate::authority::Authority;
use crate::parts::*;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tidemill_link::link::LinkError;
use tidemill_link::remote::*;

fn credentials(certificates: &Certificates) -> Credentials {
    Credentials::new(certificates).expect("they belong together")
}

fn secured(credentials: &Credentials) -> Security {
    Security::with(credentials).expect("TLS 1.3 is there")
}

fn serial(credentials: &Credentials) -> Vec<u8> {
    let certificate = credentials.certificate();
    webpki::EndEntityCert::try_from(&certificate).expect("a certificate").serial().to_vec()
}

/// Returns the log of the listening side, of all tests in this process.
fn log() -> &'static Mutex<Vec<String>> {
    static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    struct Lines;
    struct Text(String);
    impl tracing::field::Visit for Text {
        fn record_debug(&mut self, _field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0.push_str(&format!("{value:?}"));
        }
    }
    impl tracing::Subscriber for Lines {
        fn enabled(&self, _metadata: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            log().lock().expect("nobody panics").push(text.0);
        }
        fn enter(&self, _span: &tracing::span::Id) {}
        fn exit(&self, _span: &tracing::span::Id) {}
    }
    let lines = LINES.get_or_init(Mutex::default);
    // Only the first one is taken.
    let _ = tracing::subscriber::set_global_default(Lines);
    lines
}

/// Dials, and gives the certificates that the two sides have seen of each other.
fn meet(dials: &Security, listens: &Security) -> Result<(Vec<u8>, Vec<u8>), RemoteError> {
    let (serving, incoming) = serve(&Kind { security: listens.clone(), ..tcp() });
    let accept = std::thread::spawn(move || {
        let incoming = incoming.recv().ok()?;
        let early = incoming.peer_certificate()?.to_vec();
        let connection = incoming.accept(&control("hub")).ok()?;
        assert_eq!(connection.peer_certificate(), Some(&early[..]));
        Some(early)
    });
    let dialed = dial(serving.address(), dials, &control("edge"), PATIENCE);
    drop(serving);
    let seen = accept.join().expect("does not panic");
    let dialed = dialed?;
    let shown = dialed.peer_certificate().expect("TLS").to_vec();
    Ok((shown, seen.expect("both sides came together")))
}

#[test]
fn both_sides_know_the_certificate_of_the_other() {
    let authority = Authority::new();
    let (edge, hub) = (credentials(&authority.host()), credentials(&authority.host()));
    let (hub_seen, edge_seen) = meet(&secured(&edge), &secured(&hub)).unwrap();
    assert_eq!((&hub_seen[..], &edge_seen[..]), (&*hub.certificate(), &*edge.certificate()));
    let (dialed, accepted) = pair(&tcp(), &control("edge"), &control("hub"));
    assert_eq!((dialed.peer_certificate(), accepted.peer_certificate()), (None, None));
}

/// A channel is neither cut nor loses anything while both sides get new certificates; the next connection to the same
/// listener shows them.
#[test]
fn a_renewed_certificate_is_for_new_connections_alone() {
    let authority = Authority::new();
    let (edge, hub) = (credentials(&authority.host()), credentials(&authority.host()));
    let (serving, incoming) = serve(&Kind { security: secured(&hub), ..tcp() });
    let edge_security = secured(&edge);
    let connect = |dials: &Greeting, listens: &Greeting| {
        std::thread::scope(|scope| {
            let dialed = scope.spawn(|| dial(serving.address(), &edge_security, dials, PATIENCE));
            let accepted = accept(&incoming, listens);
            (dialed.join().expect("does not panic").expect("is accepted"), accepted)
        })
    };
    let (sender, receiver) = connect(&greeting(Role::Sender), &greeting(Role::Receiver));
    let first = (edge.certificate(), hub.certificate());
    assert_eq!(sender.peer_certificate(), Some(&*first.1));
    let mut sender = sender.into_sender(schema()).unwrap();
    let mut receiver = receiver.into_receiver(schema()).unwrap();
    for sequence in 0..400 {
        let sent = data(sequence, 50, 200);
        sender.send(sent.clone()).unwrap();
        // Some frames are in transit while it happens.
        if sequence == 200 {
            edge.replace(&authority.host()).unwrap();
            hub.replace(&authority.host()).unwrap();
        }
        if sequence % 7 == 6 {
            for expected in sequence - 6..=sequence {
                let got = receive(Some(&mut *sender), &mut *receiver).unwrap();
                assert_eq!(got, data(expected, 50, 200));
            }
        }
    }
    assert_eq!(receive(Some(&mut *sender), &mut *receiver).unwrap(), data(399, 50, 200));
    assert!(first.0 != edge.certificate() && first.1 != hub.certificate());
    let (dialed, accepted) = connect(&control("edge"), &control("hub"));
    assert_eq!(dialed.peer_certificate(), Some(&*hub.certificate()));
    assert_eq!(accepted.peer_certificate(), Some(&*edge.certificate()));
    // And the former channel continues.
    sender.send(data(400, 1, 1)).unwrap();
    assert_eq!(receive(Some(&mut *sender), &mut *receiver).unwrap(), data(400, 1, 1));
}

#[test]
fn a_revoked_peer_is_refused_on_new_connections_with_a_clear_text_on_both_sides() {
    let authority = Authority::new();
    let (edge, hub) = (credentials(&authority.host()), credentials(&authority.host()));
    let (edge_security, hub_security) = (secured(&edge), secured(&hub));
    log();
    let (serving, incoming) = serve(&Kind { security: hub_security.clone(), ..tcp() });
    let accept = std::thread::spawn(move || (accept(&incoming, &control("hub")), incoming));
    let before = dial(serving.address(), &edge_security, &control("edge"), PATIENCE).unwrap();
    let (accepted, _incoming) = accept.join().unwrap();
    let number = serial(&edge);
    hub.revoked().add(&number);
    let error = dial(serving.address(), &edge_security, &control("edge"), PATIENCE).unwrap_err();
    let message = "TLS: the peer refuses the certificate of this side: it has been revoked";
    assert_eq!(error.to_string(), message);
    drop(serving); // waits until the listening side has said what it has to say
    let logged = log().lock().unwrap().join("\n");
    let text = "turned away: TLS: the certificate of the peer is refused: it has been revoked";
    assert!(logged.contains(text), "{logged}");
    // In the other direction the side that dials refuses.
    let error = meet(&hub_security, &edge_security).unwrap_err();
    assert_eq!(error.to_string(), "TLS: the certificate of the peer is refused: it has been revoked");
    // The former connection carries nothing more, from either side.
    let (writer, _reader) = before.into_messages().unwrap();
    let (answers, mut reader) = accepted.into_messages().unwrap();
    writer.send(b"still here").unwrap();
    assert!(matches!(reader.receive(), Err(LinkError::Lost)));
    assert!(matches!(answers.send(b"to nobody"), Err(LinkError::Lost)));
    // A new certificate is another one, and a set that is replaced forgets.
    edge.replace(&authority.host()).unwrap();
    assert!(meet(&edge_security, &hub_security).is_ok());
    hub.revoked().add(&serial(&edge));
    assert!(meet(&edge_security, &hub_security).is_err());
    hub.revoked().replace([number]);
    assert!(meet(&edge_security, &hub_security).is_ok());
}

#[derive(Debug)]
struct Clock(AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

#[test]
fn certificates_end_by_the_clock_that_is_passed_in() {
    let authority = Authority::new();
    let clock = Arc::new(Clock(AtomicU64::new(1_000_000_000)));
    let time = Arc::<Clock>::clone(&clock);
    let certificates = authority.expired(); // of the year 2001
    let edge = secured(&Credentials::with(&certificates, Revoked::default(), time.clone()).unwrap());
    let hub = secured(&Credentials::with(&authority.host(), Revoked::default(), time).unwrap());
    assert!(meet(&edge, &hub).is_ok());
    clock.0.store(1_100_000_000, Ordering::Relaxed);
    let error = meet(&edge, &hub).unwrap_err().to_string();
    assert!(error.contains("this side: it has expired"), "{error}");
    clock.0.store(900_000_000, Ordering::Relaxed);
    let error = meet(&hub, &edge).unwrap_err().to_string();
    assert!(error.contains("is the clock of this machine right?"), "{error}");
}

#[test]
fn certificates_that_cannot_be_used_replace_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let edge = credentials(&authority.host());
    let before = edge.certificate();
    let wrong = Certificates { key_pem: other.host().key_pem, ..authority.host() };
    let error = edge.replace(&wrong).unwrap_err().to_string();
    assert!(error.contains("the chain and its key"), "{error}");
    assert_eq!(edge.certificate(), before);
    assert_eq!(format!("{edge:?}"), "Credentials { revoked: Revoked(0 certificates), .. }");
    // Authorities are replaced, too.
    let hub = credentials(&other.host());
    assert!(meet(&secured(&edge), &secured(&hub)).is_err());
    edge.replace(&other.host()).unwrap();
    assert!(meet(&secured(&edge), &secured(&hub)).is_ok());
}
