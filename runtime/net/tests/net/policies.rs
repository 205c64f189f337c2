//! Policies under load: what the receiver gets is what the policies leave, in order, once.
use crate::ends::{End, PATIENCE, Place, Receiving, Sending, connected, records};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tidemill_link::remote::Role;
use tidemill_net::protocol::Request;

/// Ends that resume over each new connection at the last frontier, as a run does.
fn stream(place: &Place, epochs: u64, disturb: impl FnOnce(&AtomicBool) + Send) -> Vec<i64> {
    let sender = End::register(&place.socket(), Role::Sender, Vec::new()).expect("it registers");
    let receiver = End::register(&place.socket(), Role::Receiver, Vec::new()).expect("it registers");
    let ended = AtomicBool::new(false);
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let ended = &ended;
        scope.spawn(move || disturb(ended));
        let mut done = 0;
        while done < epochs {
            let (sending, receiving) = connected(&sender, &receiver);
            let (mut sending, mut receiving) = (Sending::new(sending), Receiving::new(receiving));
            receiving.frontier = done;
            let mut whole = Vec::new();
            let until = Instant::now() + PATIENCE;
            for epoch in done..epochs {
                let from = epoch as i64 * 20;
                let pad = if epoch % 50 == 7 { 5000 } else { 0 };
                let sent = sending
                    .send(epoch, records(from..from + 20, pad))
                    .and_then(|_| sending.frontier(epoch + 1));
                let mut lost = sent.is_err();
                while !lost && receiving.frontier <= epoch {
                    lost = receiving.take().is_err() || sending.control().is_err();
                    assert!(Instant::now() < until, "epoch {epoch}");
                }
                if lost {
                    break;
                }
                whole.append(&mut receiving.numbers);
                done = epoch + 1;
            }
            // Rows of an epoch that is not complete come again.
            all.extend(whole);
        }
        ended.store(true, Ordering::Release);
    });
    all
}

#[test]
fn policies_are_attached_changed_and_detached_under_load() {
    let place = Place::new();
    // One stays, so that the channel always goes through the service.
    place.attach("stays", "none", json!({})).expect("it fits");
    let mut changes = 0;
    let all = stream(&place, 3000, |ended| {
        let kinds = [
            ("rate_limit", json!({"rps": 1e6, "burst": 1e6})),
            ("acl", json!({"deny_if": "number < 0"})),
            ("compress", json!({"at_least": 1})),
            ("log", json!({})),
            ("qos", json!({})),
            ("fault", json!({"delay": "1ms", "percent": 1})),
        ];
        while !ended.load(Ordering::Acquire) && changes < 500 {
            let (kind, options) = &kinds[changes % kinds.len()];
            let id = format!("p{}", changes % 3);
            place.attach(&id, kind, options.clone()).expect("it fits");
            place.ask(Request::Set { id: id.clone(), options: options.clone() }).expect("it fits");
            place.detach(&id);
            changes += 1;
        }
    });
    assert_eq!(all, (0..60_000).collect::<Vec<i64>>());
    assert!(changes > 50, "{changes} changes");
}

#[test]
fn connections_that_a_policy_cuts_lose_and_double_nothing() {
    let place = Place::new();
    place.attach("cuts", "fault", json!({"abort": true, "percent": 2})).expect("it fits");
    let all = stream(&place, 1000, |_| {});
    assert_eq!(all, (0..20_000).collect::<Vec<i64>>());
    let cuts = place.listing().policies[0].counts.cuts;
    assert!((5..60).contains(&cuts), "{cuts} cuts");
}

#[test]
fn a_filter_takes_out_what_it_names_and_nothing_else() {
    let place = Place::new();
    place
        .attach("deny", "acl", json!({"deny_if": "number % 20 == 3 || number / 100 == 5"}))
        .expect("it fits");
    let all = stream(&place, 500, |_| {});
    let expected: Vec<i64> = (0..10_000).filter(|n| n % 20 != 3 && n / 100 != 5).collect();
    assert_eq!(all, expected);
    let policy = &place.listing().policies[0];
    assert_eq!(policy.counts.rejected, 10_000 - expected.len() as u64);
    // Large frames lie in memory that the sender can write, so they are copied before they are judged.
    assert!(policy.counts.copied > 100_000, "{:?}", policy.counts);
}

#[test]
fn a_limit_holds() {
    let place = Place::new();
    place.attach("cap", "rate_limit", json!({"rps": 2000, "burst": 20})).expect("it fits");
    let begun = Instant::now();
    let all = stream(&place, 50, |_| {});
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(all.len(), 1000);
    assert!(seconds > 0.45, "1000 records in {seconds} s, at most 2000 in one");
    let counts = place.listing().policies[0].counts;
    assert!(counts.held > 10 && counts.held_ms > 100, "{counts:?}");
}
