//! Sessions behave as every transport does.
use tidemill_link::transport::{Address, conformance};

/// Runs a test of the suite over one path and over two.
fn holds(name: &str) {
    tidemill_session::install().unwrap();
    let (_, test) = conformance::TESTS.iter().find(|(known, _)| *known == name).unwrap();
    for place in ["127.0.0.1:0", "fibre=127.0.0.1:0,lte=127.0.0.1:0"] {
        test(Address::new("session", place).transport().unwrap(), place);
    }
}

#[test]
fn addresses_name_their_transport() {
    holds("addresses_name_their_transport");
}

#[test]
fn bytes_go_both_ways_in_order() {
    holds("bytes_go_both_ways_in_order");
}

#[test]
fn large_amounts_arrive_whole_in_both_directions_at_once() {
    holds("large_amounts_arrive_whole_in_both_directions_at_once");
}

#[test]
fn a_side_that_reads_nothing_stops_the_other_one() {
    holds("a_side_that_reads_nothing_stops_the_other_one");
}

#[test]
fn space_is_an_edge_of_the_descriptor_that_links_wait_for() {
    holds("space_is_an_edge_of_the_descriptor_that_links_wait_for");
}

#[test]
fn what_a_side_wrote_before_it_ended_can_be_read() {
    holds("what_a_side_wrote_before_it_ended_can_be_read");
}

#[test]
fn a_side_that_goes_away_is_noticed_by_who_reads_and_who_writes() {
    holds("a_side_that_goes_away_is_noticed_by_who_reads_and_who_writes");
}

#[test]
fn any_thread_can_hang_up_and_what_was_written_can_still_be_read() {
    holds("any_thread_can_hang_up_and_what_was_written_can_still_be_read");
}

#[test]
fn a_place_is_taken_while_its_listener_is_there_and_refuses_afterwards() {
    holds("a_place_is_taken_while_its_listener_is_there_and_refuses_afterwards");
}

#[test]
fn many_sides_dial_while_others_are_accepted() {
    holds("many_sides_dial_while_others_are_accepted");
}

#[test]
fn every_test_of_the_suite_runs_here() {
    let own = include_str!("conformance.rs");
    for (name, _) in conformance::TESTS {
        assert!(own.contains(&format!("fn {name}()")), "{name}");
    }
}
