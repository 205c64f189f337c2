//! Groups that go by trees, and change between them and rings while they compute.
use crate::place::{Place, until, with_ranks};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::protocol::{Answer, GroupState, GroupView, Question};

/// Orders a strategy, and waits until all hosts follow it and operations have ended by it.
fn change(place: &Place, rounds: &AtomicU64, strategy: &str) -> GroupView {
    let answer = place.ask(Question::Strategy { group: "busy".into(), strategy: strategy.into() });
    let Answer::Done(view) = answer else { panic!("{answer:?}") };
    let epoch = view.strategy.as_ref().unwrap().epoch;
    until("it has changed", || place.group("busy").unwrap().figures.epoch == epoch);
    let before = rounds.load(Ordering::Acquire);
    until("it goes on", || rounds.load(Ordering::Acquire) > before + 20);
    *view
}

#[test]
fn a_group_changes_from_rings_to_trees_and_back_while_it_computes() {
    let a = Place::new("a", None);
    let (b, c) = (Place::new("b", Some(&a)), Place::new("c", Some(&a)));
    until("all are registered", || a.listing().hosts.len() == 3);
    let (rounds, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("it runs", || a.group("busy").is_some_and(|group| group.state == GroupState::Running));
            for strategy in [
                "ring:2,0,4,1,3",
                "tree:0-1,1-2,2-3,3-4",
                "tree:4-0,4-1,4-2,4-3/0-3,3-1,0-2,2-4",
                "ring:4,3,2,1,0",
                "tree:2-0,2-1,0-3,0-4/1-4,1-3,4-2,4-0/3-0,0-1,1-2,2-4",
                "hints",
            ] {
                let view = change(&a, &rounds, strategy);
                let trees = strategy.starts_with("tree").then(|| strategy.split('/').count());
                let all_reduce = view.strategy.unwrap().all_reduce;
                // By hints it is one or the other.
                if strategy != "hints" {
                    assert_eq!(all_reduce.map(|trees| trees.trees.len()), trees);
                }
            }
            let view = a.group("busy").unwrap();
            assert!(!view.reasons.is_empty());
            assert_eq!(view.predicted.len(), 5, "{:?}", view.predicted);
            is_over.store(true, Ordering::Release);
        });
        with_ranks(&[&a, &b, &c], "busy", 5, |group| {
            let rank = i64::from(group.rank());
            for round in 1_i64.. {
                // Small ones go by the mesh, whatever the strategy is.
                let length = 1 + (round as usize * 7919) % 90_000;
                let buffer = group.buffer(Element::I64, length + 1).unwrap();
                let values: Vec<i64> = (0..length as i64).map(|index| index * round + rank).collect();
                buffer.write(0, &values).unwrap();
                // Rank 0 tells in the last element that it is over.
                let last = i64::from(rank == 0 && is_over.load(Ordering::Acquire));
                buffer.write(length, &[last]).unwrap();
                group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
                let result = buffer.to_vec::<i64>().unwrap();
                let expected = (0..length as i64).map(|index| 5 * index * round + 10);
                assert!(result[..length].iter().copied().eq(expected), "round {round} of rank {rank}");
                let is_last = result[length] > 0;
                // From each rank in turn: now it has what only that rank wrote.
                let root = round % 5;
                if rank == root {
                    buffer.write(0, &values).unwrap();
                }
                group.broadcast(&buffer, root as u32).unwrap().wait().unwrap();
                let result = buffer.to_vec::<i64>().unwrap();
                let expected = (0..length as i64).map(|index| index * round + root);
                assert!(result[..length].iter().copied().eq(expected), "broadcast {round} at rank {rank}");
                rounds.fetch_add(1, Ordering::Release);
                if is_last {
                    break;
                }
            }
        });
    });
}
