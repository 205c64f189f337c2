//! Which sides connect, and the errors of the others.
use crate::parts::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use tidemill_link::remote::*;

fn host(address: &Address) -> &str {
    assert_eq!(address.scheme(), "tcp");
    address.place()
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
        (Greeting { run: greeting(Role::Sender).run, ..control("hub") }, "purposes"),
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

/// A side that waits for an answer that does not come, or that finds no listener.
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

/// Sends these bytes to a listener and reads the answer, until it closes.
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
    let address = Address::tcp(listener.local_addr().unwrap().to_string());
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
    let cases: [(&[u8], &str); 7] = [
        (b"GET / HTTP/1.1\r\nHost: tidemill\r\n\r\n", "tidemill begins"),
        (&long, "the most"),
        (&said(PROTOCOL_VERSION, 1, b"{{{{"), "key"),
        (&said(PROTOCOL_VERSION, 1, br#"{"run":"f00"}"#), "missing"),
        (&said(PROTOCOL_VERSION, 9, b"{}"), "kind 9"),
        (&[preamble(PROTOCOL_VERSION, 1, 6), b"{}1234".to_vec()].concat(), "checksum differs"),
        (&[preamble(PROTOCOL_VERSION, 1, 2), b"{}".to_vec()].concat(), "no checksum"),
    ];
    for (bytes, word) in cases {
        let text = String::from_utf8_lossy(&say(serving.address(), bytes)).into_owned();
        assert!(text.contains(word), "{text}");
    }
    assert!(incoming.try_recv().is_err());
}

/// The one that has been silent for longest makes room: a peer that greets gets in at once.
#[test]
fn silent_peers_do_not_keep_others_out() {
    let (serving, incoming) = serve(&tcp());
    let mut silent: Vec<_> =
        (0..MAX_HANDSHAKES).map(|_| TcpStream::connect(host(serving.address())).unwrap()).collect();
    let accept = std::thread::spawn(move || {
        incoming.recv_timeout(PATIENCE).expect("somebody dials").accept(&control("hub")).expect("fits")
    });
    // Last in the queue of the system: all places are taken when it comes.
    let dialed = dial(serving.address(), &Security::none(), &control("edge"), PATIENCE).expect("gets in");
    assert_eq!(dialed.peer(), &control("hub"));
    accept.join().unwrap();
    // Without an answer.
    assert_eq!(silent.remove(0).read(&mut [0; 1]).unwrap_or(0), 0);
}

/// A flood of them, while others dial one after the other.
#[test]
fn a_flood_of_silent_peers_does_not_keep_others_out() {
    let (serving, incoming) = serve(&tcp());
    let address = serving.address().clone();
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let until = std::sync::Arc::clone(&done);
    let flood = std::thread::spawn(move || {
        let mut held = std::collections::VecDeque::new();
        let mut count = 0;
        while !until.load(std::sync::atomic::Ordering::Acquire) {
            held.extend(TcpStream::connect(host(&address)));
            count += 1;
            if held.len() > 2 * MAX_HANDSHAKES {
                held.pop_front();
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        count
    });
    let accept = std::thread::spawn(move || {
        let mut accepted = 0;
        while accepted < 20 {
            // One that was taken for silent at that moment is gone already.
            let incoming = incoming.recv_timeout(PATIENCE).expect("somebody dials");
            accepted += usize::from(incoming.accept(&control("hub")).is_ok());
        }
    });
    for _ in 0..20 {
        // One that is slow to greet may have to dial again.
        while dial(serving.address(), &Security::none(), &control("edge"), PATIENCE).is_err() {}
    }
    accept.join().unwrap();
    done.store(true, std::sync::atomic::Ordering::Release);
    assert!(flood.join().unwrap() > 0);
}

#[test]
fn a_socket_file_comes_and_goes() {
    let kind = unix();
    let path = std::path::Path::new(kind.address.place());
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

/// Names without a file: nothing is left, whatever becomes of the process.
#[test]
fn a_name_is_chosen_and_free_again() {
    let kind = named();
    let (serving, incoming) = serve(&kind);
    assert!(serving.address().place().starts_with("@tidemill-"), "{}", serving.address());
    let (other, _others) = serve(&kind);
    assert_ne!(serving.address(), other.address());
    let own = serving.address().clone();
    let error = Listener::bind(&own, &kind.security).expect_err("is taken");
    assert!(matches!(error, RemoteError::Io(_)), "{error}");
    let accepted = std::thread::spawn(move || accept(&incoming, &control("hub")));
    let dialed = dial(&own, &kind.security, &control("edge"), PATIENCE).expect("is accepted");
    let listens = accepted.join().unwrap();
    assert_eq!((dialed.peer(), listens.peer()), (&control("hub"), &control("edge")));
    drop(serving);
    let error = dial(&own, &kind.security, &control("edge"), PATIENCE).expect_err("nobody is there");
    assert!(
        matches!(&error, RemoteError::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error}"
    );
    assert!(Listener::bind(&own, &kind.security).is_ok());
    assert!(Listener::bind(&Address::unix(format!("@{}", "x".repeat(200))), &kind.security).is_err());
}

/// A listener that accepts none, because its process stands still, does not stop a side that dials.
#[test]
fn a_listener_that_stands_still_is_given_up() {
    let address = unix().address;
    let path = std::path::Path::new(address.place());
    let listener = UnixListener::bind(path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    // It has no place for more.
    let _first = std::os::unix::net::UnixStream::connect(path).unwrap();
    let patience = std::time::Duration::from_millis(50);
    let error = dial(&address, &Security::none(), &control("edge"), patience).expect_err("is not heard");
    assert!(matches!(error, RemoteError::Timeout), "{error}");
    std::fs::remove_file(path).unwrap();
}

/// Set in the process that dials as another user.
const OTHER: &str = "TIDEMILL_TEST_OTHER_USER";

/// A process of another user can connect to no name, and no process that connects to its name trusts it.
#[test]
fn processes_of_other_users_are_turned_away() {
    use std::os::unix::process::CommandExt;
    if let Ok(address) = std::env::var(OTHER) {
        let error = dial(&address.parse().unwrap(), &Security::none(), &control("edge"), PATIENCE);
        let error = error.expect_err("another user listens");
        assert!(error.to_string().contains("the peer is a process of user"), "{error}");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: who is not root cannot be somebody else");
        return;
    }
    let (serving, incoming) = serve(&named());
    let name = serving.address().place().strip_prefix('@').expect("a name");
    // One that does not look at whom it talks to, but is looked at.
    let connect = format!(
        "import os, socket\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0{name}')\nassert s.recv(1) == b'', 'heard'"
    );
    match std::process::Command::new("python3").args(["-c", &connect]).status() {
        Ok(status) => assert!(status.success(), "another user was heard"),
        Err(error) => eprintln!("skipped: python3 to be turned away: {error}"),
    }
    let own = std::env::current_exe().unwrap();
    let status = std::process::Command::new(own)
        .args(["--exact", "greetings::processes_of_other_users_are_turned_away", "--nocapture"])
        .env(OTHER, serving.address().to_string())
        .uid(65534)
        .status();
    match status {
        Ok(status) => assert!(status.success()),
        // Others may not read the folder that the test lies in.
        Err(error) => eprintln!("skipped: that another user is not believed: {error}"),
    }
    assert!(incoming.try_recv().is_err(), "a stranger got through");
}

/// Set in the process that dials from another user namespace.
const NAMESPACE: &str = "TIDEMILL_TEST_OTHER_NAMESPACE";

/// In a user namespace that gives no numbers, everybody outside of it, and who is in it, too, is shown as the same user.
#[test]
fn users_without_a_number_are_not_taken_for_one() {
    if let Ok(address) = std::env::var(NAMESPACE) {
        let own = rustix::process::geteuid().as_raw();
        let error = dial(&address.parse().unwrap(), &Security::none(), &control("edge"), PATIENCE);
        let error = error.expect_err("somebody of another namespace listens");
        // The fault: by their numbers both are the same.
        let text = format!("the peer is a process of user {own}, this one is of user {own}");
        assert_eq!(error.to_string(), text);
        // Processes of one namespace meet as ever.
        pair(&named(), &greeting(Role::Sender), &greeting(Role::Receiver));
        return;
    }
    let in_namespace = |program: &std::path::Path| {
        let mut command = std::process::Command::new("unshare");
        command.arg("--user").arg(program);
        command
    };
    if !in_namespace("true".as_ref()).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system makes no user namespace");
        return;
    }
    let (serving, incoming) = serve(&named());
    let status = in_namespace(&std::env::current_exe().unwrap())
        .args(["--exact", "greetings::users_without_a_number_are_not_taken_for_one", "--nocapture"])
        .env(NAMESPACE, serving.address().to_string())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(incoming.try_recv().is_err(), "a stranger was greeted");
}
