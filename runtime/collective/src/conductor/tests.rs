use super::*;
use crate::peers::Running;
use crate::protocol::{Bench, Question};

mod giving_way;
mod hostile;

fn token(number: u64) -> Token {
    format!("{number:x}")
}

fn key() -> Key {
    Key { user: 7, name: "g".to_owned() }
}

fn register(conductor: &mut Conductor, link: Link, running: Vec<Running>) -> Messages {
    let host = Host { name: format!("h{link}"), ..Host::default() };
    let address = Some(Address::tcp(format!("10.0.0.{link}:1")));
    conductor.hear(link, ToConductor::Register { host, address, running })
}

fn join(conductor: &mut Conductor, link: Link, rank: u32, size: u32) -> Messages {
    conductor.hear(link, ToConductor::Join { key: key(), rank, size, priority: Priority::Normal })
}

fn shrink(conductor: &mut Conductor, link: Link, rank: u32) -> Messages {
    conductor.hear(link, ToConductor::Shrink { key: key(), rank, whole: false })
}

fn with_hosts(count: Link) -> Conductor {
    let mut conductor = Conductor::new(token);
    for link in 1..=count {
        assert!(register(&mut conductor, link, Vec::new()).is_empty());
    }
    conductor
}

/// The formation that was sent to these connections, and nothing else.
fn formed(messages: &Messages, links: &[Link]) -> Formed {
    let all: Vec<(Link, Formed)> = messages
        .iter()
        .map(|(link, message)| match message {
            FromConductor::Formed(formed) => (*link, (**formed).clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(all.iter().map(|(link, _)| *link).collect::<Vec<_>>(), links);
    assert!(all.iter().all(|(_, formed)| *formed == all[0].1), "all get the same");
    all[0].1.clone()
}

fn failure(rank: u32) -> Failure {
    Failure { kind: FailureKind::Lost, rank: Some(rank), host: String::new(), text: "gone".to_owned() }
}

fn broken(conductor: &mut Conductor, link: Link, token: &str, rank: u32) -> Messages {
    let (token, failure) = (token.to_owned(), failure(rank));
    conductor.hear(link, ToConductor::Broken { key: key(), token, failure, last: 3 })
}

#[test]
fn a_group_forms_when_all_ranks_are_there() {
    let mut conductor = with_hosts(2);
    let missing = join(&mut conductor, 2, 1, 3);
    assert_eq!(missing, [(2, FromConductor::Missing { key: key(), ranks: vec![0, 2] })]);
    assert_eq!(join(&mut conductor, 1, 0, 3).len(), 2);
    let formed = formed(&join(&mut conductor, 1, 2, 3), &[1, 2]);
    assert_eq!(formed.strategy.members, [0, 1, 2]);
    assert_eq!(formed.strategy.epoch, 1);
    let places: Vec<_> =
        formed.hosts.iter().map(|place| (place.host.name.as_str(), &place.ranks[..])).collect();
    assert_eq!(places, [("h1", &[0, 2][..]), ("h2", &[1][..])]);
}

#[test]
fn survivors_form_it_anew_with_a_higher_epoch_and_another_secret() {
    let mut conductor = with_hosts(3);
    join(&mut conductor, 1, 0, 3);
    join(&mut conductor, 2, 1, 3);
    let first = formed(&join(&mut conductor, 3, 2, 3), &[1, 2, 3]);
    assert_eq!(broken(&mut conductor, 1, &first.token, 2).len(), 3, "all learn it");
    assert!(broken(&mut conductor, 1, "another", 2).is_empty(), "of a formation that is no more");
    conductor.lost(3);
    let waits = shrink(&mut conductor, 1, 0);
    assert!(
        waits.iter().all(|(_, message)| *message == FromConductor::Missing { key: key(), ranks: vec![1] })
    );
    let second = formed(&shrink(&mut conductor, 2, 1), &[1, 2]);
    assert_eq!((second.strategy.members, second.strategy.epoch), (vec![0, 1], 2));
    assert_ne!(second.token, first.token);
}

#[test]
fn a_new_program_takes_the_place_of_a_lost_rank() {
    let mut conductor = with_hosts(2);
    join(&mut conductor, 1, 0, 2);
    let first = formed(&join(&mut conductor, 2, 1, 2), &[1, 2]);
    broken(&mut conductor, 1, &first.token, 1);
    conductor.hear(2, ToConductor::Leave { key: key(), rank: 1 });
    join(&mut conductor, 1, 1, 2);
    let second = formed(&shrink(&mut conductor, 1, 0), &[1]);
    assert_eq!(second.strategy.members, [0, 1]);
}

#[test]
fn programs_that_join_wait_for_all_ranks_where_none_continues() {
    let mut conductor = with_hosts(3);
    for rank in 0..3 {
        join(&mut conductor, u64::from(rank) + 1, rank, 3);
    }
    // The program of rank 2 dies; the others close the group, and join again.
    for rank in [2, 1, 0] {
        conductor.hear(u64::from(rank) + 1, ToConductor::Leave { key: key(), rank });
        if rank == 1 {
            let waits = join(&mut conductor, 2, 1, 3);
            let missing =
                |(_, message): &(Link, FromConductor)| matches!(message, FromConductor::Missing { .. });
            assert!(waits.iter().all(missing), "{waits:?}");
        }
    }
    let waits = join(&mut conductor, 1, 0, 3);
    let missing = FromConductor::Missing { key: key(), ranks: vec![2] };
    assert!(!waits.is_empty() && waits.iter().all(|(_, message)| *message == missing), "{waits:?}");
    let all = formed(&join(&mut conductor, 3, 2, 3), &[1, 2, 3]);
    assert_eq!(all.strategy.members, [0, 1, 2]);
}

#[test]
fn groups_survive_their_conductor() {
    let mut before = with_hosts(2);
    join(&mut before, 1, 0, 2);
    let first = formed(&join(&mut before, 2, 1, 2), &[1, 2]);
    let mut conductor = Conductor::new(token);
    for (link, rank) in [(1, 0), (2, 1)] {
        let formed = Some(first.clone());
        let running = Running { key: key(), size: 2, priority: Priority::Normal, ranks: vec![rank], formed };
        assert!(register(&mut conductor, link, vec![running]).is_empty());
    }
    let order = conductor.hear(
        1,
        ToConductor::Ask {
            id: 1,
            user: None,
            question: Question::Strategy { group: "g".into(), strategy: "ring:1,0".into() },
        },
    );
    let epochs: Vec<u64> = order
        .iter()
        .filter_map(|(_, message)| match message {
            FromConductor::Order { strategy, .. } => Some(strategy.epoch),
            _ => None,
        })
        .collect();
    assert_eq!(epochs, [2, 2]);
}

#[test]
fn a_lost_connection_breaks_no_group_that_runs_and_takes_ranks_out_of_one_that_forms() {
    let mut conductor = with_hosts(2);
    join(&mut conductor, 1, 0, 2);
    conductor.lost(1);
    assert!(conductor.groups.is_empty());
    register(&mut conductor, 1, Vec::new());
    join(&mut conductor, 1, 0, 2);
    formed(&join(&mut conductor, 2, 1, 2), &[1, 2]);
    assert!(conductor.lost(2).is_empty());
    assert!(conductor.groups[&key()].broken.is_none());
}

#[test]
fn tenants_see_their_own_groups_and_no_hosts_and_choose_nothing() {
    let mut conductor = with_hosts(1);
    join(&mut conductor, 1, 0, 1);
    let mut ask = |user, question| match conductor.hear(1, ToConductor::Ask { id: 9, user, question }).pop() {
        Some((1, FromConductor::Answer { id: 9, answer })) => answer,
        other => panic!("{other:?}"),
    };
    let mut listed = |user| match ask(user, Question::List) {
        Answer::Listing(listing) => (listing.hosts.len(), listing.groups.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!([listed(None), listed(Some(7)), listed(Some(8))], [(1, 1), (0, 1), (0, 0)]);
    let choose = || Question::Strategy { group: "g".into(), strategy: "rank-order".into() };
    assert!(matches!(ask(Some(7), choose()), Answer::Refused(_)));
    assert!(matches!(ask(None, choose()), Answer::Done(_)));
}

#[test]
fn a_choice_is_explained_to_the_operator_and_not_to_tenants() {
    let mut conductor = with_hosts(3);
    for rank in 0..3 {
        join(&mut conductor, u64::from(rank) + 1, rank, 3);
    }
    let mut view = |user, question| {
        let answer = conductor.hear(1, ToConductor::Ask { id: 9, user, question }).pop();
        match answer {
            Some((1, FromConductor::Answer { answer: Answer::Done(view), .. })) => *view,
            Some((1, FromConductor::Answer { answer: Answer::Listing(mut listing), .. })) => {
                listing.groups.remove(0)
            }
            other => panic!("{other:?}"),
        }
    };
    let first = view(None, Question::List);
    assert!(first.reasons[0].starts_with("rings as of locality"), "{:?}", first.reasons);
    assert!(first.reasons.iter().any(|reason| reason.contains("an all-reduce of 64 MiB takes about")));
    let operations: Vec<_> = first.predicted.iter().map(|one| (one.operation.as_str(), one.bytes)).collect();
    assert_eq!(operations[..2], [("all-reduce", 64 << 20), ("broadcast", 64 << 20)]);
    assert!(first.predicted.iter().all(|one| one.us > 0.0));
    let choose = |strategy: &str| Question::Strategy { group: "g".into(), strategy: strategy.into() };
    assert_eq!(view(None, choose("hints")).reasons[0], "as ffa: nobody has hints of loads");
    let tree = view(None, choose("tree:0-1,0-2"));
    assert!(tree.reasons.contains(&"all-reduces go by 1 tree".to_owned()), "{:?}", tree.reasons);
    assert_ne!(tree.predicted, first.predicted);
    let tenants = view(Some(7), Question::List);
    assert_eq!((tenants.reasons.len(), &tenants.predicted), (0, &tree.predicted));
}

#[test]
fn a_strategy_that_names_ranks_is_left_when_a_rank_is_lost() {
    for named in ["ring:2,0,1", "tree:0-1,0-2"] {
        let mut conductor = with_hosts(3);
        join(&mut conductor, 1, 0, 3);
        join(&mut conductor, 2, 1, 3);
        let first = formed(&join(&mut conductor, 3, 2, 3), &[1, 2, 3]);
        let question = Question::Strategy { group: "g".into(), strategy: named.into() };
        conductor.hear(1, ToConductor::Ask { id: 1, user: None, question });
        assert_eq!(conductor.groups[&key()].policy.as_deref(), Some(named));
        broken(&mut conductor, 1, &first.token, 2);
        conductor.lost(3);
        shrink(&mut conductor, 1, 0);
        let second = formed(&shrink(&mut conductor, 2, 1), &[1, 2]);
        assert_eq!(second.strategy.check(), Ok(()));
        assert_eq!(conductor.groups[&key()].policy, None, "{named}");
    }
}

#[test]
fn hosts_that_cannot_reach_each_other_are_told_how() {
    let mut conductor = with_hosts(1);
    let host = Host { name: "closed".to_owned(), ..Host::default() };
    conductor.hear(2, ToConductor::Register { host: host.clone(), address: None, running: Vec::new() });
    join(&mut conductor, 1, 0, 2);
    let refused = join(&mut conductor, 2, 1, 2);
    assert_eq!(refused.len(), 2);
    for (_, message) in refused {
        let FromConductor::Refused { reason, .. } = message else { panic!("{message:?}") };
        assert!(reason.contains("closed") && reason.contains("--listen"), "{reason}");
    }
    let twice = conductor.hear(3, ToConductor::Register { host, address: None, running: Vec::new() });
    assert!(matches!(&twice[..], [(3, FromConductor::Turned { .. })]));
}
