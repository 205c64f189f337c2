//! Certificates that end while a cluster runs.
use crate::place::{Place, until};
use std::time::Duration;
use tidemill_cluster::api::{ControllerView, WorkerView};
use tidemill_cluster::client::Client;
use tidemill_identity::Lifetimes;

/// New connections use it when the first one has ended, and existing connections continue.
#[test]
#[ignore = "long: make test-long"]
fn a_controller_renews_its_certificate_before_it_ends() {
    let lifetimes = Lifetimes { controller: Duration::from_secs(12), ..Lifetimes::default() };
    let mut place = Place::that_lives(lifetimes);
    let token = place.join_token(1);
    place.agent("w00", &token, &["true"]);
    let ends = |client: &Client| client.get::<ControllerView>("/v1/controller").unwrap().certificate_ends;
    let first = ends(&place.admin);
    until("it is renewed", || ends(&place.admin) > first);
    until("the first one has ended", || ends(&place.admin) > first + 12);
    let secret: String = place.token.reveal().to_string();
    let another = Client::new(&place.address, Some(secret.parse().unwrap())).unwrap();
    assert!(ends(&another) > first + 12);
}

/// The worker still reports, with the new one, long after the first one has ended.
#[test]
#[ignore = "long: make test-long"]
fn a_worker_renews_its_certificate_before_it_ends() {
    let lifetimes = Lifetimes { worker: Duration::from_secs(12), ..Lifetimes::default() };
    let mut place = Place::that_lives(lifetimes);
    let token = place.join_token(1);
    place.agent("w00", &token, &["true"]);
    let worker = || place.admin.get::<Vec<WorkerView>>("/v1/workers").unwrap().pop();
    let ends = || worker()?.health.map(|health| health.certificate_ends);
    until("it is heard", || ends().is_some());
    let first = ends().unwrap();
    until("it is renewed", || ends() > Some(first));
    until("the first one has ended, and the one after it", || ends() > Some(first + 24));
    assert!(worker().is_some_and(|worker| worker.is_alive));
}
