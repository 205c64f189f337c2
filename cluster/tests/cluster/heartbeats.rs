//! Cost of a heartbeat, over a kept connection and over a new one each.
use crate::place::Place;
use std::sync::Arc;
use std::time::Duration;
use tidemill_cluster::api::{Duties, Heartbeat};
use tidemill_cluster::client::Client;
use tidemill_identity::{Issued, JoinRequest, WorkerFolder};
use tidemill_link::remote::Credentials;

/// Heartbeats that are counted.
const COUNT: u32 = 150;

#[test]
#[ignore = "long: make test-long"]
fn alone_a_heartbeat_over_a_connection_that_stays_costs_less() {
    let place = Place::new();
    let mut folder = WorkerFolder::open(&place.folder.path().join("worker")).unwrap();
    let request = JoinRequest {
        token: place.join_token(1),
        request_pem: folder.request().unwrap(),
        name: Some("edge".parse().unwrap()),
        location: None,
        tier: None,
    };
    let stranger = Client::new(&place.address, None).unwrap();
    let issued: Issued = stranger.post("/v1/join", &request).unwrap();
    let identity = folder.install(&issued, place.address.fingerprint()).unwrap().clone();
    let credentials = Credentials::new(&identity.certificates).unwrap();
    let client = Arc::new(Client::of_worker(&place.address, &credentials).unwrap());
    let beat = || drop(client.post_again::<Duties>("/v1/heartbeat", &Heartbeat::default()).unwrap());
    beat();
    let measured = |what: &str, each: &dyn Fn()| {
        let begin = tidemill_machine::process_time();
        (0..COUNT).for_each(|_| each());
        let taken = (tidemill_machine::process_time() - begin).as_secs_f64() * 1e3 / f64::from(COUNT);
        // Both sides of all of them are in this process.
        println!("{what}: {taken:.3} ms of processor time, {:.1} % of a processor at 200/s", taken * 20.0);
        taken
    };
    let new = measured("a connection each", &|| {
        client.reconnect();
        beat();
    });
    let before = client.connections();
    let kept = measured("a connection that stays", &beat);
    assert_eq!(client.connections(), before, "a connection was made anew");
    assert!(kept < new, "{kept} ms, {new} ms with a connection each");
}

/// The connection is lost, and the agent's certificate is replaced: the next question makes another one.
#[test]
fn a_connection_that_is_lost_is_made_anew() {
    let place = Place::new();
    for _ in 0..3 {
        place.admin.get::<Vec<tidemill_cluster::api::RunView>>("/v1/runs").unwrap();
    }
    assert_eq!(place.admin.connections(), 1);
    place.admin.reconnect();
    place.admin.get::<Vec<tidemill_cluster::api::RunView>>("/v1/runs").unwrap();
    assert_eq!(place.admin.connections(), 2);
    // A router that forgets: the proxy ends its connections between two questions.
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = proxy.local_addr().unwrap().port();
    let to = (place.address.host().to_owned(), place.address.port());
    std::thread::spawn(move || {
        for near in proxy.incoming().map_while(Result::ok) {
            let far = std::net::TcpStream::connect((to.0.as_str(), to.1)).unwrap();
            let pump = |mut from: std::net::TcpStream, mut into: std::net::TcpStream| {
                from.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(std::net::Shutdown::Both);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                })
            };
            pump(near.try_clone().unwrap(), far.try_clone().unwrap());
            pump(far, near);
        }
    });
    let text = place.address.to_string();
    let through = text.replace(&format!(":{}/", place.address.port()), &format!(":{port}/"));
    let token: String = place.token.reveal().to_string();
    let client = Client::new(&through.parse().unwrap(), Some(token.parse().unwrap())).unwrap();
    for expected in 1..=3 {
        client.get::<Vec<tidemill_cluster::api::RunView>>("/v1/runs").unwrap();
        assert_eq!(client.connections(), expected);
        std::thread::sleep(Duration::from_millis(700));
    }
}
