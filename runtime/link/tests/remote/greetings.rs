//! Who comes together with whom, and what the others hear.
use crate::parts::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use tidemill_link::remote::*;

fn host(address: &Address) -> &str {
    match address {
        Address::Tcp(host) => host,
        Address::Unix(_) => panic!("not over TCP"),
    }
}

#[test]
fn both_sides_know_each_other() {
    for kind in kinds() {
        let (dialed, accepted) = pair(&kind, &greeting(Role::Sender), &greeting(Role::Receiver));
        assert_eq!(dialed.peer(), &greeting(Role::Receiver));
        assert_eq!(accepted.peer(), &greeting(Role::Sender));
    }
}

#[test]
fn a_greeting_survives_json() {
    for greeting in [greeting(Role::Sender), control("edge-1")] {
        let text = serde_json::to_string(&greeting).unwrap();
        assert_eq!(serde_json::from_str::<Greeting>(&text).unwrap(), greeting);
    }
}

fn refused(kind: &Kind, dials: &Greeting, own: Greeting) -> (RemoteError, RemoteError) {
    let (serving, incoming) = serve(kind);
    let accept = std::thread::spawn(move || {
        incoming.recv_timeout(PATIENCE).expect("somebody dials").accept(&own).expect_err("does not fit")
    });
    let theirs = dial(serving.address(), &kind.security, dials, PATIENCE).expect_err("is refused");
    (theirs, accept.join().unwrap())
}

#[test]
fn who_does_not_fit_is_refused_on_both_sides() {
    let with = |change: &dyn Fn(&mut Greeting)| {
        let mut own = greeting(Role::Receiver);
        change(&mut own);
        own
    };
    let purpose = |channel, role, schema| {
        with(&|own| own.purpose = Purpose::Channel { channel, role, incarnation: 0, schema })
    };
    let hash = schema_hash(&schema());
    let cases = [
        (with(&|own| own.run = 3), "run"),
        (purpose(8, Role::Receiver, hash), "channel"),
        (purpose(7, Role::Sender, hash), "both sides"),
        (purpose(7, Role::Receiver, hash + 1), "schema"),
        (Greeting { run: greeting(Role::Sender).run, ..control("hub") }, "control"),
    ];
    for kind in kinds() {
        for (own, word) in &cases {
            let (dialed, accepted) = refused(&kind, &greeting(Role::Sender), own.clone());
            assert!(matches!(&dialed, RemoteError::Refused(reason) if reason.contains(word)), "{dialed}");
            assert!(
                matches!(&accepted, RemoteError::Mismatch(reason) if reason.contains(word)),
                "{accepted}"
            );
        }
    }
}

#[test]
fn a_refusal_has_a_reason() {
    for kind in kinds() {
        let (serving, incoming) = serve(&kind);
        let refuse =
            std::thread::spawn(move || incoming.recv_timeout(PATIENCE).unwrap().refuse("no such channel"));
        let error = dial(serving.address(), &kind.security, &control("x"), PATIENCE).expect_err("refused");
        assert!(matches!(&error, RemoteError::Refused(reason) if reason == "no such channel"), "{error}");
        refuse.join().unwrap();
    }
}

/// Somebody who waits for an answer that does not come, or who finds nobody.
#[test]
fn dialing_has_patience_and_no_more() {
    let short = std::time::Duration::from_millis(50);
    for kind in kinds() {
        let (serving, incoming) = serve(&kind);
        let error = dial(serving.address(), &kind.security, &control("x"), short).expect_err("no answer");
        assert!(matches!(error, RemoteError::Timeout), "{error}");
        let address = serving.address().clone();
        drop((serving, incoming));
        let error = dial(&address, &kind.security, &control("x"), PATIENCE).expect_err("nobody is there");
        assert!(matches!(error, RemoteError::Io(_)), "{error}");
    }
}

/// Says this to a listener and hears what it answers, until it closes.
fn say(address: &Address, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(host(address)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A listener that closes before it read everything resets the connection.
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn preamble(version: u32, kind: u8, length: u32) -> Vec<u8> {
    [b"TIDEMILL".as_slice(), &version.to_le_bytes(), &[kind, 0, 0, 0], &length.to_le_bytes()].concat()
}

#[test]
fn another_version_is_told_on_both_sides() {
    let (serving, incoming) = serve(&tcp());
    let answer = say(serving.address(), &[preamble(99, 1, 2), b"{}".to_vec()].concat());
    let text = String::from_utf8_lossy(&answer[20..]).into_owned();
    assert_eq!(answer[..16], preamble(PROTOCOL_VERSION, 2, 0)[..16]);
    assert!(text.contains("99"), "{text}");
    assert!(incoming.try_recv().is_err());

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let other = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(&preamble(98, 1, 0)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = dial(&address, &Security::none(), &control("x"), PATIENCE).expect_err("another version");
    assert!(matches!(error, RemoteError::Version { theirs: 98, .. }), "{error}");
    other.join().unwrap();
}

#[test]
fn what_is_no_greeting_is_refused() {
    let (serving, incoming) = serve(&tcp());
    let long = preamble(PROTOCOL_VERSION, 1, u32::MAX);
    let cases: [(&[u8], &str); 5] = [
        (b"GET / HTTP/1.1\r\nHost: tidemill\r\n\r\n", "tidemill begins"),
        (&long, "the most"),
        (&[preamble(PROTOCOL_VERSION, 1, 4), b"{{{{".to_vec()].concat(), "key"),
        (&[preamble(PROTOCOL_VERSION, 1, 13), br#"{"run":"f00"}"#.to_vec()].concat(), "missing"),
        (&[preamble(PROTOCOL_VERSION, 9, 2), b"{}".to_vec()].concat(), "kind 9"),
    ];
    for (bytes, word) in cases {
        let text = String::from_utf8_lossy(&say(serving.address(), bytes)).into_owned();
        assert!(text.contains(word), "{text}");
    }
    assert!(incoming.try_recv().is_err());
}

/// Peers that say nothing take a few slots; others come through when those are given up.
#[test]
fn silent_peers_do_not_keep_others_out() {
    let (serving, incoming) = serve(&tcp());
    let silent: Vec<_> =
        (0..MAX_HANDSHAKES + 10).map(|_| TcpStream::connect(host(serving.address())).unwrap()).collect();
    let accept = std::thread::spawn(move || {
        incoming.recv_timeout(PATIENCE).expect("somebody dials").accept(&control("hub")).expect("fits")
    });
    // The silent ones are given up after a while; until then nobody else is let in.
    let dialed = loop {
        match dial(serving.address(), &Security::none(), &control("edge"), PATIENCE) {
            Ok(dialed) => break dialed,
            Err(RemoteError::Io(_)) => std::thread::sleep(std::time::Duration::from_millis(100)),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(dialed.peer(), &control("hub"));
    accept.join().unwrap();
    drop(silent);
}

#[test]
fn a_socket_file_comes_and_goes() {
    let kind = unix();
    let Address::Unix(path) = &kind.address else { panic!("a path") };
    // Left by a process that was killed.
    drop(UnixListener::bind(path).unwrap());
    assert!(path.exists());
    let (serving, _incoming) = serve(&kind);
    let error = Listener::bind(&kind.address, &kind.security).expect_err("is taken");
    assert!(matches!(error, RemoteError::Io(_)), "{error}");
    assert!(path.exists());
    drop(serving);
    assert!(!path.exists());
}
