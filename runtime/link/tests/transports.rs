//! Holds all registered transports to the same behaviour.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;
use tidemill_link::transport::{Acceptor, Address, Stream, Transport, conformance, register, registered};

/// Runs a test of the suite for each transport, at a place of its own.
fn each(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (_, test) = conformance::TESTS.iter().find(|(known, _)| *known == name).unwrap();
    for transport in registered() {
        test(transport, transport.anywhere());
    }
    // As above, with another kind of place.
    let file = folder.path().join("a.sock");
    test(Address::unix("@").transport().unwrap(), file.to_str().unwrap());
}

#[test]
fn addresses_name_their_transport() {
    each("addresses_name_their_transport");
}

#[test]
fn bytes_go_both_ways_in_order() {
    each("bytes_go_both_ways_in_order");
}

#[test]
fn large_amounts_arrive_whole_in_both_directions_at_once() {
    each("large_amounts_arrive_whole_in_both_directions_at_once");
}

#[test]
fn a_side_that_reads_nothing_stops_the_other_one() {
    each("a_side_that_reads_nothing_stops_the_other_one");
}

#[test]
fn space_is_an_edge_of_the_descriptor_that_links_wait_for() {
    each("space_is_an_edge_of_the_descriptor_that_links_wait_for");
}

#[test]
fn what_a_side_wrote_before_it_ended_can_be_read() {
    each("what_a_side_wrote_before_it_ended_can_be_read");
}

#[test]
fn a_side_that_goes_away_is_noticed_by_who_reads_and_who_writes() {
    each("a_side_that_goes_away_is_noticed_by_who_reads_and_who_writes");
}

#[test]
fn any_thread_can_hang_up_and_what_was_written_can_still_be_read() {
    each("any_thread_can_hang_up_and_what_was_written_can_still_be_read");
}

#[test]
fn a_place_is_taken_while_its_listener_is_there_and_refuses_afterwards() {
    each("a_place_is_taken_while_its_listener_is_there_and_refuses_afterwards");
}

#[test]
fn many_sides_dial_while_others_are_accepted() {
    each("many_sides_dial_while_others_are_accepted");
}

#[test]
fn every_test_of_the_suite_runs_here() {
    let own = include_str!("transports.rs");
    for (name, _) in conformance::TESTS {
        assert!(own.contains(&format!("fn {name}()")), "{name}");
    }
}

/// A transport of another crate: the one in memory with another scheme.
struct Added;

impl Transport for Added {
    fn scheme(&self) -> &'static str {
        "added"
    }
    fn form(&self) -> &'static str {
        "NAME"
    }
    fn is_place(&self, place: &str) -> bool {
        place.len() < 100
    }
    fn anywhere(&self) -> &'static str {
        ""
    }
    fn listen(&self, place: &str) -> std::io::Result<Box<dyn Acceptor>> {
        Address::new("memory", place).transport()?.listen(place)
    }
    fn dial(&self, place: &str, timeout: Duration) -> std::io::Result<Box<dyn Stream>> {
        Address::new("memory", place).transport()?.dial(place, timeout)
    }
}

#[test]
fn a_transport_is_added_once_and_then_has_addresses() {
    assert!("added://here".parse::<Address>().is_err());
    assert!(register(Added) && !register(Added));
    assert_eq!("added://here".parse::<Address>().unwrap().place(), "here");
    let error = "none://here".parse::<Address>().unwrap_err().to_string();
    assert!(error.contains("memory://NAME or added://NAME"), "{error}");
}
