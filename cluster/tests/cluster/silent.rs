//! Peers that connect and say nothing.
use crate::place::Place;
use std::io::Read;
use std::net::TcpStream;

/// As many as the controller asks at once who they are: the oldest makes room.
#[test]
fn silent_peers_do_not_keep_others_from_the_controller() {
    let place = Place::new();
    let connect = || TcpStream::connect((place.address.host(), place.address.port())).unwrap();
    let mut silent: Vec<TcpStream> = (0..256).map(|_| connect()).collect();
    // After them in the queue of the system.
    place.admin.get::<Vec<tidemill_cluster::api::RunView>>("/v1/runs").unwrap();
    // Without an answer.
    assert_eq!(silent.remove(0).read(&mut [0; 1]).unwrap_or(0), 0);
}
