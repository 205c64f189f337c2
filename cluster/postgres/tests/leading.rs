//! Leading, with a real server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod server;

use server::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tidemill_postgres::{Announcement, Candidate, Change, Lead, PostgresError, Standing};

fn candidate(address: &str, name: &str) -> Candidate {
    let announcement = Announcement { name: name.into(), address: format!("tidemill://{name}") };
    Candidate::new(&address.parse().unwrap(), announcement).unwrap()
}

#[track_caller]
fn leads(candidate: &Candidate) -> Box<Lead> {
    for _ in 0..400 {
        if let Ok(Standing::Leads(lead)) = candidate.stand() {
            return lead;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{candidate:?} does not lead within 20 s");
}

#[track_caller]
fn until_over(lead: &Lead) -> String {
    for _ in 0..400 {
        if let Some(reason) = lead.ended() {
            return reason;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it still leads after 20 s");
}

#[test]
fn one_leads_and_the_next_one_follows_when_it_ends() {
    let Some(server) = Server::start() else { return };
    let (a, b) = (candidate(&server.address(), "a:1"), candidate(&server.address(), "b:1"));
    let first = leads(&a);
    assert_eq!(first.term(), 1);
    let Standing::StandsBy(Some(leader)) = b.stand().unwrap() else { panic!("two lead") };
    assert_eq!((leader.term, leader.name.as_str(), leader.address.as_str()), (1, "a:1", "tidemill://a:1"));
    let others = first.others().unwrap();
    assert_eq!(others.len(), 1);
    assert_eq!(others[0].address, "tidemill://b:1");
    first
        .write(&[
            Change::put("run", "x", b"1"),
            Change::put("run", "y", b"2"),
            Change::put("worker", "x", b"3"),
        ])
        .unwrap();
    first
        .write(&[Change::put("run", "x", b"4"), Change::delete("run", "y"), Change::delete("run", "none")])
        .unwrap();
    drop(first);
    let second = leads(&b);
    assert_eq!(second.term(), 2);
    assert_eq!(second.all("run").unwrap(), [("x".to_owned(), b"4".to_vec())]);
    assert_eq!(second.get("worker", "x").unwrap().unwrap(), b"3");
    assert_eq!(b.get("worker", "x").unwrap().unwrap(), b"3");
    assert_eq!(second.get("worker", "y").unwrap(), None);
    assert_eq!(second.kinds("r").unwrap(), ["run"]);
    second.clear("run").unwrap();
    assert!(second.names("run").unwrap().is_empty());
    let many: Vec<String> = (0..700).map(|n| format!("{n:03}")).collect();
    let changes: Vec<Change<'_>> =
        many.iter().map(|name| Change::put("run", name, name.as_bytes())).collect();
    second.write(&changes).unwrap();
    assert_eq!(second.names("run").unwrap(), many);
}

/// All start at once, without existing tables.
#[test]
#[ignore = "long: make test-long"]
fn of_many_that_begin_at_once_one_leads() {
    let Some(server) = Server::start() else { return };
    let (barrier, address) = (Arc::new(Barrier::new(6)), server.address());
    let threads: Vec<_> = (0..6)
        .map(|n| {
            let (barrier, address) = (Arc::clone(&barrier), address.clone());
            std::thread::spawn(move || {
                barrier.wait();
                let candidate = candidate(&address, &format!("c{n}:1"));
                let standing = candidate.stand().unwrap();
                barrier.wait();
                matches!(standing, Standing::Leads(_))
            })
        })
        .collect();
    let leading = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|leads| *leads).count();
    assert_eq!(leading, 1);
}

/// A proxy between a controller and the server: it can silently stop forwarding, as when a machine is suspended or a
/// cable is cut.
struct CutProxy {
    port: u16,
    is_cut: Arc<AtomicBool>,
}

impl CutProxy {
    fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, to, is_cut) =
            (listener.local_addr().unwrap().port(), server.port(), Arc::new(AtomicBool::new(false)));
        let cut = Arc::clone(&is_cut);
        std::thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                let Ok(to) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                for (mut from, mut to) in [(from.try_clone().unwrap(), to.try_clone().unwrap()), (to, from)] {
                    let cut = Arc::clone(&cut);
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(count) = from.read(&mut bytes) {
                            while cut.load(Ordering::Acquire) {
                                std::thread::sleep(Duration::from_millis(10));
                            }
                            if count == 0 || to.write_all(&bytes[..count]).is_err() {
                                let _ = to.shutdown(std::net::Shutdown::Both);
                                return;
                            }
                        }
                    });
                }
            }
        });
        Self { port, is_cut }
    }

    fn address(&self) -> String {
        format!("postgres://tidemill@127.0.0.1:{}/postgres", self.port)
    }
}

/// Both believe to lead: writes of the older one are rejected, also one in flight when the newer one started.
#[test]
fn what_an_old_leader_writes_is_refused() {
    let Some(server) = Server::start() else { return };
    let way = CutProxy::to(&server);
    let (a, b) = (candidate(&way.address(), "a:1"), candidate(&server.address(), "b:1"));
    let old = Arc::new(leads(&a));
    old.write(&[Change::put("run", "x", b"old")]).unwrap();
    way.is_cut.store(true, Ordering::Release);
    // It does not know yet, and its write is in flight.
    assert_eq!(old.ended(), None);
    let writer = Arc::clone(&old);
    let late = std::thread::spawn(move || writer.write(&[Change::put("run", "x", b"late")]));
    let new = leads(&b);
    assert_eq!(new.term(), 2);
    new.write(&[Change::put("run", "x", b"new")]).unwrap();
    way.is_cut.store(false, Ordering::Release);
    let refused = late.join().unwrap().unwrap_err();
    assert!(refused.is_end_of_lead(), "{refused}");
    until_over(&old);
    let again = old.write(&[Change::put("run", "x", b"again")]).unwrap_err();
    assert!(again.is_end_of_lead(), "{again}");
    assert_eq!(new.get("run", "x").unwrap().unwrap(), b"new");
    assert_eq!(new.ended(), None);
}

/// The lock alone does not suffice: it is gone while the connection that writes still works.
#[test]
#[ignore = "long: make test-long"]
fn a_term_that_is_over_is_refused_by_the_server() {
    let Some(server) = Server::start() else { return };
    let (a, b) = (candidate(&server.address(), "a:1"), candidate(&server.address(), "b:1"));
    let old = leads(&a);
    old.write(&[Change::put("run", "x", b"old")]).unwrap();
    let mut other = postgres::Client::connect(&server.address(), postgres::NoTls).unwrap();
    let holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted";
    let ended: bool =
        other.query_one(&format!("SELECT pg_terminate_backend(({holder}))"), &[]).unwrap().get(0);
    assert!(ended);
    let new = leads(&b);
    // Immediately, before it can have checked.
    let refused = old.write(&[Change::put("run", "x", b"late")]);
    assert!(
        matches!(
            refused,
            Err(PostgresError::Deposed { own: 1, found: 2 } | PostgresError::Lost { own: 1, .. })
        ),
        "{refused:?}"
    );
    assert_eq!(new.get("run", "x").unwrap().unwrap(), b"old");
    // Even without a check of its own: a transaction started before the change of leaders delays the next one until it
    // is done.
    drop(new);
    let third = leads(&a);
    let mut open = other.transaction().unwrap();
    open.query_one("SELECT term FROM tidemill.leader FOR SHARE", &[]).unwrap();
    drop(third);
    let waits = std::thread::spawn(move || leads(&b).term());
    std::thread::sleep(Duration::from_millis(500));
    assert!(!waits.is_finished(), "the next leader does not wait for a write under way");
    open.commit().unwrap();
    assert_eq!(waits.join().unwrap(), 4);
}

/// Ends all sessions of leaders except those that hold a lock.
fn end_kept_connections(client: &mut postgres::Client) -> usize {
    let kept =
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'tidemill'
                AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    client.query(kept, &[]).unwrap().len()
}

/// A firewall drops it, or an operator ends it: the lead continues.
#[test]
#[ignore = "long: make test-long"]
fn a_connection_that_has_ended_costs_no_lead() {
    let Some(server) = Server::start() else { return };
    let lead = leads(&candidate(&server.address(), "a:1"));
    let mut other = postgres::Client::connect(&server.address(), postgres::NoTls).unwrap();
    for value in [b"1", b"2", b"3"] {
        lead.write(&[Change::put("run", "x", value)]).unwrap();
        assert!(end_kept_connections(&mut other) > 0);
        // Immediately, mostly before the client can know.
        assert_eq!(lead.get("run", "x").unwrap().unwrap(), value);
        assert!(end_kept_connections(&mut other) > 0);
    }
    assert_eq!(lead.ended(), None);
}

/// If the session ends within a write its outcome is unknown; if the server rejects it, nothing was written.
#[test]
#[ignore = "long: make test-long"]
fn what_ends_a_session_within_a_write_is_no_refusal() {
    let Some(server) = Server::start() else { return };
    let mut other = postgres::Client::connect(&server.address(), postgres::NoTls).unwrap();
    let says = |function: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION says() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {function}; RETURN NULL; END $$;
             CREATE OR REPLACE TRIGGER says AFTER INSERT ON tidemill.rows FOR EACH ROW EXECUTE FUNCTION says()"
        )
    };
    for ends in ["PERFORM pg_terminate_backend(pg_backend_pid())", "RAISE 'gone' USING ERRCODE = '08006'"] {
        let lead = leads(&candidate(&server.address(), "a:1"));
        other.batch_execute(&says("RAISE 'no'")).unwrap();
        let refused = lead.write(&[Change::put("run", "x", b"1")]).unwrap_err();
        assert!(matches!(refused, PostgresError::Unfit { .. }), "{refused}");
        assert_eq!(lead.ended(), None);
        other.batch_execute(&says(ends)).unwrap();
        let lost = lead.write(&[Change::put("run", "x", b"1")]).unwrap_err();
        assert!(matches!(lost, PostgresError::Lost { .. }), "{lost}");
        assert!(lead.ended().is_some());
    }
}

/// Only the owner of the database may request a schema, even an existing one.
#[test]
#[ignore = "long: make test-long"]
fn a_role_that_owns_the_schema_alone_leads() {
    let Some(server) = Server::start() else { return };
    let mut client = postgres::Client::connect(&server.address(), postgres::NoTls).unwrap();
    // A reserved word of SQL works too.
    client
        .batch_execute(
            "CREATE ROLE keeper LOGIN; CREATE SCHEMA \"user\" AUTHORIZATION keeper;
             REVOKE CREATE ON DATABASE postgres FROM PUBLIC",
        )
        .unwrap();
    let address = format!("postgres://keeper@127.0.0.1:{}/postgres?schema=user", server.port());
    let lead = leads(&candidate(&address, "a:1"));
    lead.write(&[Change::put("run", "x", b"1")]).unwrap();
    assert_eq!(lead.all("run").unwrap(), [("x".to_owned(), b"1".to_vec())]);
    drop(lead);
    assert_eq!(leads(&candidate(&address, "b:1")).term(), 2);
}

/// A leader that is stopped, or whose machine is gone, within a write: it is never committed.
#[test]
#[ignore = "long: make test-long"]
fn a_write_that_never_ends_does_not_keep_others_from_leading() {
    let Some(server) = Server::start() else { return };
    let mut stopped = postgres::Client::connect(&server.address(), postgres::NoTls).unwrap();
    drop(leads(&candidate(&server.address(), "a:1")));
    let mut open = stopped.transaction().unwrap();
    open.query_one("SELECT term FROM tidemill.leader FOR SHARE", &[]).unwrap();
    assert_eq!(leads(&candidate(&server.address(), "b:1")).term(), 2);
    assert!(open.commit().is_err(), "it goes on, and its session is gone");
}

#[test]
#[ignore = "long: make test-long"]
fn a_restart_of_the_server_ends_the_lead_and_somebody_leads_again() {
    let Some(server) = Server::start() else { return };
    let a = candidate(&server.address(), "a:1");
    let lead = leads(&a);
    lead.write(&[Change::put("run", "x", b"1")]).unwrap();
    server.down();
    let reason = until_over(&lead);
    assert!(reason.contains("lock is gone"), "{reason}");
    assert!(a.stand().unwrap_err().is_passing());
    server.up();
    let again = leads(&a);
    assert_eq!((again.term(), again.get("run", "x").unwrap().as_deref()), (2, Some(&b"1"[..])));
}

#[test]
fn what_cannot_be_used_is_told() {
    let Some(server) = Server::start() else { return };
    let told = |address: String| {
        let announcement = Announcement { name: "a:1".into(), address: String::new() };
        Candidate::new(&address.parse().unwrap(), announcement).unwrap_err().to_string()
    };
    let port = server.port();
    let missing = told(format!("postgres://tidemill@127.0.0.1:{port}/none"));
    assert!(missing.contains("cannot use") && missing.contains("\"none\" does not exist"), "{missing}");
    let nobody = told("postgres://tidemill@127.0.0.1:9/postgres".to_owned());
    assert!(nobody.contains("onnection refused"), "{nobody}");
    let mut client = postgres::Client::connect(&server.address(), postgres::NoTls).unwrap();
    drop(candidate(&server.address(), "a:1"));
    client.batch_execute("UPDATE tidemill.leader SET format = 9").unwrap();
    let newer = told(server.address());
    assert!(newer.contains("format 9"), "{newer}");
    client.batch_execute("CREATE ROLE guest LOGIN; REVOKE CREATE ON DATABASE postgres FROM PUBLIC").unwrap();
    let refused = told(format!("postgres://guest@127.0.0.1:{port}/postgres?schema=own"));
    assert!(refused.contains("create the schema own for it"), "{refused}");
}

/// A test killed at its time limit leaves neither its server nor a folder.
#[test]
#[ignore = "long: make test-long"]
fn a_server_goes_with_a_test_that_is_killed() {
    const WAITS: &str = "TIDEMILL_TEST_WAITS_TO_BE_KILLED";
    if std::env::var_os(WAITS).is_some() {
        let Some(server) = Server::start() else { return };
        println!("has {} {}", server.process_number(), server.folder().display());
        std::thread::park();
        panic!("nobody killed it");
    }
    let mut test = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "a_server_goes_with_a_test_that_is_killed", "--nocapture"])
        .env(WAITS, "yes")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(test.stdout.take().unwrap()).lines();
    let has = lines.find_map(|line| Some(line.unwrap().split_once("has ")?.1.to_owned()));
    let Some(has) = has else {
        assert!(test.wait().unwrap().success(), "it has no server");
        return; // there is none on this machine
    };
    let (process, folder) = has.split_once(' ').unwrap();
    let process = std::path::Path::new("/proc").join(process);
    assert!(process.exists() && std::path::Path::new(folder).join("data").exists());
    test.kill().unwrap();
    test.wait().unwrap();
    // The server is not our child, so an ended one may still wait to be reaped.
    let is_gone = || {
        let stat = std::fs::read_to_string(process.join("stat"));
        stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
    };
    for _ in 0..600 {
        if is_gone() && !std::path::Path::new(folder).exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!(
        "after 30 s the server is gone: {}, its folder is there: {}",
        is_gone(),
        std::path::Path::new(folder).exists()
    );
}
