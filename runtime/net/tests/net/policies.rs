//! Policies under load: what the receiver gets is what the policies leave, in order, once.
use crate::ends::directly;
use crate::ends::{End, PATIENCE, Place, Receiving, Sending, connected, records};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tidemill_link::remote::Role;
use tidemill_net::protocol::Request;

/// Ends that resume over each new connection at the last frontier, as a run does: at least so many epochs, and until `disturb` ends.
/// While no policy is attached they are connected with each other.
fn stream(place: &Place, epochs: u64, disturb: impl FnOnce() + Send) -> Vec<i64> {
    let mut sender = End::register(&place.socket(), Role::Sender, Vec::new()).expect("it registers");
    let mut receiver = End::register(&place.socket(), Role::Receiver, Vec::new()).expect("it registers");
    let ended = AtomicBool::new(false);
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let ended = &ended;
        scope.spawn(move || {
            disturb();
            ended.store(true, Ordering::Release);
        });
        let mut done = 0;
        let is_over = |done: u64| done >= epochs && ended.load(Ordering::Acquire);
        while !is_over(done) {
            // Both have heard of the same change, or one of them waits for the other in vain.
            let through = sender.look();
            if receiver.look() != through {
                std::thread::yield_now();
                continue;
            }
            let Some((sending, receiving)) =
                (if through { connected(&sender, &receiver) } else { Some(directly()) })
            else {
                continue;
            };
            let (mut sending, mut receiving) = (Sending::new(sending), Receiving::new(receiving));
            receiving.frontier = done;
            let mut whole = Vec::new();
            let until = Instant::now() + PATIENCE;
            for epoch in done.. {
                let from = epoch as i64 * 20;
                let pad = if epoch % 50 == 7 { 5000 } else { 0 };
                let sent = sending
                    .send(epoch, records(from..from + 20, pad))
                    .and_then(|_| sending.frontier(epoch + 1));
                let mut lost = sent.is_err();
                while !lost && receiving.frontier <= epoch {
                    lost = receiving.take().is_err() || sending.control().is_err();
                    lost |= sender.look() != through || receiver.look() != through;
                    assert!(Instant::now() < until, "epoch {epoch}");
                }
                if receiving.frontier > epoch {
                    done = epoch + 1;
                    whole.append(&mut receiving.numbers);
                }
                if lost || is_over(done) {
                    break;
                }
            }
            // Rows of an epoch that is not complete come again.
            all.extend(whole);
        }
    });
    all
}

/// The numbers of so many records.
fn numbers(count: usize) -> Vec<i64> {
    (0..count as i64).collect()
}

#[test]
fn policies_are_attached_changed_and_detached_under_load() {
    let place = Place::new();
    // One stays, so that the channel always goes through the service.
    place.attach("stays", "none", json!({})).expect("it fits");
    let all = stream(&place, 1000, || {
        let kinds = [
            ("rate_limit", json!({"rps": 1e6, "burst": 1e6})),
            ("acl", json!({"deny_if": "number < 0"})),
            ("compress", json!({"at_least": 1})),
            ("log", json!({})),
            ("qos", json!({})),
            ("fault", json!({"delay": "1ms", "percent": 1})),
        ];
        for change in 0..500 {
            let (kind, options) = &kinds[change % kinds.len()];
            let id = format!("p{}", change % 3);
            place.attach(&id, kind, options.clone()).expect("it fits");
            place.ask(Request::Set { id: id.clone(), options: options.clone() }).expect("it fits");
            place.detach(&id);
        }
    });
    assert!(all.len() >= 20_000 && all == numbers(all.len()), "{} records", all.len());
}

#[test]
fn a_channel_moves_500_times_and_loses_and_doubles_nothing() {
    let place = Place::new();
    let all = stream(&place, 1000, || {
        for change in 0..250 {
            place.attach("only", "rate_limit", json!({"rps": 1e6})).expect("it fits");
            if change % 2 == 0 {
                // Until some frames have gone through it; else ends may meet again before they have moved.
                let until = Instant::now() + PATIENCE;
                while place.listing().policies[0].counts.frames < 3 {
                    assert!(Instant::now() < until, "{:?}", place.listing());
                }
            }
            place.detach("only");
        }
    });
    assert!(all.len() >= 20_000 && all == numbers(all.len()), "{} records", all.len());
}

#[test]
fn connections_that_a_policy_cuts_lose_and_double_nothing() {
    let place = Place::new();
    place.attach("cuts", "fault", json!({"abort": true, "percent": 2})).expect("it fits");
    let all = stream(&place, 1000, || {});
    assert_eq!(all, numbers(20_000));
    let cuts = place.listing().policies[0].counts.cuts;
    assert!((5..60).contains(&cuts), "{cuts} cuts");
}

#[test]
fn a_filter_takes_out_what_it_names_and_nothing_else() {
    let place = Place::new();
    place
        .attach("deny", "acl", json!({"deny_if": "number % 20 == 3 || number / 100 == 5"}))
        .expect("it fits");
    let all = stream(&place, 500, || {});
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
    let all = stream(&place, 50, || {});
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(all.len(), 1000);
    assert!(seconds > 0.45, "1000 records in {seconds} s, at most 2000 in one");
    let counts = place.listing().policies[0].counts;
    assert!(counts.held > 10 && counts.held_ms > 100, "{counts:?}");
}
