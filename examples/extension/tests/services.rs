//! The service under the supervisor of an agent.
use std::fs;
use std::time::Duration;
use tidemill_extension::heartbeat::REGISTRATION;
use tidemill_link::remote::Credentials;
use tidemill_service::{Host, Supervisor, Watched};

#[path = "../../../runtime/link/tests/remote/authority.rs"]
mod authority;

/// A host with a certificate.
fn host(folder: &std::path::Path) -> Host {
    let certificates = authority::Authority::named("tests").certify("tidemill", |_| {});
    Host {
        folder: folder.to_owned(),
        worker: "edge".into(),
        address: [127, 0, 0, 1].into(),
        only_dials: false,
        credentials: Credentials::new(&certificates).unwrap(),
    }
}

/// Waits until this holds, and leaves the processors to other tests meanwhile.
fn wait(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_heart_that_fails_beats_again() {
    let folder = tempfile::tempdir().unwrap();
    let services = vec![(REGISTRATION.name, (REGISTRATION.make)())];
    let supervisor = Supervisor::start(services, &host(folder.path())).unwrap();
    let is = |wanted: fn(&Watched) -> bool| supervisor.states().iter().all(wanted);
    wait(|| is(|service| service.problem.is_none()));
    let own = folder.path().join("heartbeat");
    assert!(fs::read_to_string(own.join("beat")).unwrap().starts_with("edge "));

    fs::rename(&own, folder.path().join("elsewhere")).unwrap();
    wait(|| is(|service| service.problem.is_none() && service.restarts == 1));
    let beat = || fs::read_to_string(own.join("beat")).unwrap();
    let first = beat();
    wait(|| beat() != first);
    drop(supervisor); // which joins the thread that writes
}
