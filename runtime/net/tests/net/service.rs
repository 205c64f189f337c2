//! Attaching, detaching, and the end of a service.
use crate::ends::{End, PATIENCE, Place, Receiving, Sending, policy, records, until_connected};
use serde_json::json;
use std::time::{Duration, Instant};
use tidemill_link::link::LinkError;
use tidemill_link::remote::Role;
use tidemill_net::ClientError;
use tidemill_net::protocol::Route;

fn both(place: &Place) -> (End, End) {
    let sender = End::register(&place.socket(), Role::Sender, Vec::new()).expect("it registers");
    let receiver = End::register(&place.socket(), Role::Receiver, Vec::new()).expect("it registers");
    (sender, receiver)
}

#[test]
fn a_channel_goes_through_the_service_while_a_policy_is_attached() {
    let place = Place::new();
    let (mut sender, mut receiver) = both(&place);
    assert!(!sender.through && !receiver.through, "an ordinary edge is direct");
    place.attach("nothing", "none", json!({})).expect("it fits");
    let (sending, receiving) = until_connected(&mut sender, &mut receiver);
    let (mut sending, mut receiving) = (Sending::new(sending), Receiving::new(receiving));
    // Small ones go over the socket, large ones through shared memory.
    for epoch in 0..20 {
        let pad = if epoch % 3 == 0 { 20_000 } else { 0 };
        sending.send(epoch, records(epoch as i64 * 10..epoch as i64 * 10 + 10, pad)).expect("it is there");
        sending.frontier(epoch + 1).expect("it is there");
        receiving.until(epoch + 1);
    }
    assert_eq!(receiving.numbers, (0..200).collect::<Vec<i64>>());
    let until = Instant::now() + PATIENCE;
    while sending.credit < 2000 {
        assert!(Instant::now() < until, "credit of {}", sending.credit);
        sending.control().expect("the receiver is there");
        std::thread::sleep(Duration::from_millis(1));
    }
    let listing = place.listing();
    assert_eq!((listing.edges.len(), listing.edges[0].route), (2, Route::Service));
    assert_eq!(listing.policies[0].counts.frames, 20);
    place.detach("nothing");
    sender.wait_until(false);
    receiver.wait_until(false);
}

#[test]
fn policies_stay_over_a_restart_of_the_service_and_programs_return() {
    let mut place = Place::new();
    let (mut sender, mut receiver) = both(&place);
    place.attach("cap", "rate_limit", json!({"rps": 1e6})).expect("it fits");
    for _ in 0..3 {
        let (sending, receiving) = until_connected(&mut sender, &mut receiver);
        let (mut sending, mut receiving) = (Sending::new(sending), Receiving::new(receiving));
        sending.send(0, records(0..10, 0)).expect("it is there");
        sending.frontier(1).expect("it is there");
        receiving.until(1);
        place.stop();
        let until = Instant::now() + PATIENCE;
        // Both ends learn at once that the service is gone, and nothing else does.
        while !matches!(sending.control(), Err(LinkError::Lost)) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        while !matches!(receiving.take(), Err(LinkError::Lost)) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        place.start();
    }
    assert_eq!(place.listing().policies[0].spec, policy("cap", "rate_limit", json!({"rps": 1e6})));
}

#[test]
fn the_policies_of_a_plan_hold_from_the_first_record_on() {
    let place = Place::new();
    let plan = vec![policy("deny", "acl", json!({"deny_if": "camera == 'cam3'"}))];
    let mut sender = End::register(&place.socket(), Role::Sender, plan.clone()).expect("it registers");
    let mut receiver = End::register(&place.socket(), Role::Receiver, plan).expect("it registers");
    assert!(sender.through && receiver.through);
    let (sending, receiving) = until_connected(&mut sender, &mut receiver);
    let (mut sending, mut receiving) = (Sending::new(sending), Receiving::new(receiving));
    sending.send(0, records(0..40, 0)).expect("it is there");
    sending.frontier(1).expect("it is there");
    receiving.until(1);
    assert_eq!(receiving.numbers, (0..40).filter(|number| number % 10 != 3).collect::<Vec<i64>>());
    drop((sender, receiver));
    let until = Instant::now() + PATIENCE;
    while !place.listing().policies.is_empty() {
        assert!(Instant::now() < until, "a policy of a plan ends with its programs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn mistakes_are_refused_with_a_reason() {
    let place = Place::new();
    let _ends = both(&place);
    let refused = |answer: Result<_, ClientError>| match answer {
        Err(ClientError::Refused(reason)) => reason,
        other => panic!("{:?}", other.map(drop)),
    };
    let reason = refused(place.attach("a", "acl", json!({"deny_if": "cam == 'x'"})));
    assert!(reason.contains("cameras -> detect") && reason.contains("camera"), "{reason}");
    let reason = refused(place.attach("a", "acls", json!({})));
    assert!(reason.contains("there is no policy `acls`"), "{reason}");
    let reason = refused(place.attach("a", "rate_limit", json!({"rps": 0})));
    assert!(reason.contains("more than 0"), "{reason}");
    let reason = refused(place.attach("../a", "log", json!({})));
    assert!(reason.contains("no id of a policy"), "{reason}");
    place.attach("a", "none", json!({})).expect("it fits");
    let reason = refused(place.attach("a", "none", json!({})));
    assert!(reason.contains("already"), "{reason}");
    let reason = refused(place.ask(tidemill_net::protocol::Request::Detach { id: "b".into() }));
    assert!(reason.contains("there are a"), "{reason}");
    let wrong = vec![policy("w", "acl", json!({"deny": "x"}))];
    let error = End::register(&place.socket(), Role::Sender, wrong).map(drop).expect_err("a wrong plan");
    assert!(error.to_string().contains("policy w of the plan"), "{error}");
}
