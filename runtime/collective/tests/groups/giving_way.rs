//! Groups that yield to others: bytes are really held, and results stay right.
use crate::place::{Place, until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::protocol::{Answer, GroupView, Question};
use tidemill_collective::topology::{Host, Priority};
use tidemill_link::remote::Address;

fn place(name: &str, rack: &str, conductor: Option<&Place>) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let host = Host { name: name.to_owned(), rack: rack.to_owned(), ..Host::default() };
    let options = tidemill_collective::service::Options {
        listen: Some(Address::tcp("127.0.0.1:0")),
        conductor: conductor.map(Place::address),
        silence: Duration::from_secs(30),
        ..tidemill_collective::service::Options::new(folder.path().join("net.sock"), host)
    };
    let mut place = Place { folder, service: None, options };
    place.start();
    place
}

/// A program that computes and sums, until it is over. Rank 0 says so in the last element.
fn work(group: &Group, compute: Duration, length: usize, is_over: &AtomicBool) {
    let buffer = group.buffer(Element::I64, length + 1).unwrap();
    for round in 1_i64.. {
        std::thread::sleep(compute);
        let values: Vec<i64> = (0..length as i64).map(|index| index + round).collect();
        buffer.write(0, &values).unwrap();
        let last = i64::from(group.rank() == 0 && is_over.load(Ordering::Acquire));
        buffer.write(length, &[last]).unwrap();
        group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
        let result = buffer.to_vec::<i64>().unwrap();
        assert!(result[..length].iter().copied().eq(values.iter().map(|value| 2 * value)), "round {round}");
        if result[length] > 0 {
            break;
        }
    }
}

/// Lets two groups of two ranks run with `ts` until the second one is as wanted, and returns it.
fn beside(first: [&Place; 2], other: [&Place; 2], is_wanted: impl Fn(&GroupView) -> bool) -> GroupView {
    let asks = first[0];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (name, places, priority, compute, length) in [
            ("first", first, Priority::High, Duration::from_millis(100), 1 << 17),
            ("other", other, Priority::Bulk, Duration::from_millis(1), 1 << 13),
        ] {
            for (rank, place) in (0..).zip(places) {
                let options = JoinOptions { priority, ..place.options(name, rank, 2) };
                let is_over = &is_over;
                scope.spawn(move || work(&Group::join(&options).unwrap(), compute, length, is_over));
            }
        }
        let runs = |name: &str| asks.group(name).is_some_and(|group| group.figures.operations > 0);
        until("both run", || runs("first") && runs("other"));
        for group in ["first", "other"] {
            let question = Question::Strategy { group: group.into(), strategy: "ts".into() };
            assert!(matches!(asks.ask(question), Answer::Done(_)));
        }
        let mut found = None;
        // Ranks end also where this test fails.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the other group yields", || {
                found = asks.group("other").filter(|group| group.figures.held_us > 0 && is_wanted(group));
                found.is_some()
            });
        }));
        is_over.store(true, Ordering::Release);
        outcome.unwrap_or_else(|failure| {
            eprintln!("last seen: {:?}", asks.group("other"));
            std::panic::resume_unwind(failure)
        });
        found.unwrap()
    })
}

#[test]
fn a_group_yields_to_one_that_goes_first_on_the_same_hosts() {
    let a = place("a", "", None);
    let b = place("b", "", Some(&a));
    until("both are registered", || a.listing().hosts.len() == 2);
    let other = beside([&a, &b], [&a, &b], |group| {
        group.strategy.as_ref().is_some_and(|strategy| !strategy.yields.is_empty())
    });
    assert!(other.reasons[0].contains("waits on each host while"), "{:?}", other.reasons);
    assert!(other.figures.changes > 0 && other.minute.operations > 0, "{other:?}");
}

#[test]
fn a_group_on_other_hosts_sends_within_windows() {
    let a = place("a", "east", None);
    let [b, c, d] =
        [("b", "west"), ("c", "east"), ("d", "west")].map(|(name, rack)| place(name, rack, Some(&a)));
    until("all are registered", || a.listing().hosts.len() == 4);
    let other = beside([&a, &b], [&c, &d], |group| {
        group.strategy.as_ref().is_some_and(|strategy| strategy.windows.is_some())
    });
    assert!(other.reasons[0].contains("sends in the gaps of"), "{:?}", other.reasons);
}

#[test]
fn the_service_counts_its_groups() {
    let a = Place::new("a", None);
    let group = a.join("counted", 0, 1);
    let buffer = group.buffer(Element::I64, 100).unwrap();
    for _ in 0..3 {
        group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
    }
    group.broadcast(&buffer, 0).unwrap().wait().unwrap();
    let counts = || match a.ask(Question::Counts) {
        Answer::Counts(all) => all.into_iter().find(|counts| counts.name == "counted"),
        other => panic!("{other:?}"),
    };
    let ended = counts().unwrap().ended;
    let of = |name: &str| (ended[name].operations, ended[name].bytes);
    assert_eq!((of("all-reduce"), of("broadcast"), ended.len()), ((3, 2400), (1, 800), 2));
    let answer = a.ask(Question::Strategy { group: "counted".into(), strategy: "locality".into() });
    assert!(matches!(answer, Answer::Done(_)));
    until("its change is counted", || counts().unwrap().changes == 1);
    drop((buffer, group));
    until("a group without programs is counted no more", || counts().is_none());
}
