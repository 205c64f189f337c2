//! Strategies that change while a group computes.
use crate::place::{Place, until, with_ranks};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::protocol::{Answer, Bench, GroupState, Question};
use tidemill_random::Random;

#[test]
fn no_operation_is_lost_or_wrong_while_strategies_change() {
    const CHANGES: u64 = 25;
    let a = Place::new("a", None);
    let (b, c) = (Place::new("b", Some(&a)), Place::new("c", Some(&a)));
    until("all are registered", || a.listing().hosts.len() == 3);
    let (rounds, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::of_seed(43);
            until("it runs", || a.group("busy").is_some_and(|group| group.state == GroupState::Running));
            for change in 2..CHANGES + 2 {
                let mut ring = [0, 1, 2, 3];
                for place in (1..4).rev() {
                    ring.swap(place, random.below(place + 1));
                }
                let strategy = format!("ring:{},{},{},{}", ring[0], ring[1], ring[2], ring[3]);
                let answer = a.ask(Question::Strategy { group: "busy".into(), strategy });
                assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
                if random.chance(0.5) {
                    until("it has changed", || a.group("busy").unwrap().figures.epoch >= change);
                }
            }
            until("all have changed", || a.group("busy").unwrap().figures.epoch == CHANGES + 1);
            is_over.store(true, Ordering::Release);
        });
        with_ranks(&[&a, &b, &c], "busy", 4, |group| {
            let mut random = Random::of_seed(u64::from(group.rank()));
            let rank = i64::from(group.rank());
            for round in 1_i64.. {
                let length = 1 + (round as usize * 7919) % 9000;
                let buffer = group.buffer(Element::I64, length + 1).unwrap();
                let values: Vec<i64> = (0..length as i64).map(|index| index * round + rank).collect();
                buffer.write(0, &values).unwrap();
                // Rank 0 tells in the last element that it is over.
                let last = i64::from(rank == 0 && is_over.load(Ordering::Acquire));
                buffer.write(length, &[last]).unwrap();
                if random.chance(0.2) {
                    std::thread::yield_now();
                }
                group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
                let result = buffer.to_vec::<i64>().unwrap();
                let expected = (0..length as i64).map(|index| 4 * index * round + 6);
                assert!(result[..length].iter().copied().eq(expected), "round {round} of rank {rank}");
                rounds.fetch_add(1, Ordering::Relaxed);
                if result[length] > 0 {
                    break;
                }
            }
        });
    });
    println!("{} operations of ranks during {CHANGES} changes", rounds.load(Ordering::Relaxed));
}

#[test]
fn strategies_that_are_none_are_refused() {
    let place = Place::new("a", None);
    let ask = |group: &str, strategy: &str| match place
        .ask(Question::Strategy { group: group.into(), strategy: strategy.into() })
    {
        Answer::Refused(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert!(ask("none", "rank-order").contains("no group none"));
    let group = place.join("one", 0, 1);
    assert!(ask("one", "ring:0,1").contains("once"));
    assert!(ask("one", "fastest").contains("fastest"));
    drop(group);
}

#[test]
fn the_services_measure_themselves() {
    let a = Place::new("a", None);
    let b = Place::new("b", Some(&a));
    until("both are registered", || a.listing().hosts.len() == 2);
    let bench = Bench { ranks: 3, bytes: 40_000, time_ms: 50, strategy: None };
    match b.ask(Question::Bench(bench)) {
        Answer::Measured(measured) => {
            assert_eq!((measured.ranks, measured.hosts, measured.bytes), (3, 2, 40_000));
            assert!(measured.operations > 0 && measured.p50_us > 0.0 && measured.p50_us <= measured.p99_us);
        }
        other => panic!("{other:?}"),
    }
}
