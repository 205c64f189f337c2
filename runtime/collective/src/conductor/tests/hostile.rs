//! Services that say what is not so.
use super::*;
use crate::policies::ts::Span;
use crate::protocol::{MOST_GROUPS, MOST_RANKS};
use crate::strategy::MAX_EPOCH;

/// A group of two ranks, on hosts 1 and 2, and how it was made.
fn running_pair() -> (Conductor, Formed) {
    let mut conductor = with_hosts(3);
    join(&mut conductor, 1, 0, 2);
    let formed = formed(&join(&mut conductor, 2, 1, 2), &[1, 2]);
    (conductor, formed)
}

fn refusal(messages: &Messages) -> &str {
    match &messages[..] {
        [(_, FromConductor::Refused { reason, .. } | FromConductor::Turned { reason })] => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_that_cannot_be_are_refused() {
    let mut conductor = with_hosts(1);
    for (rank, size) in [(0, u32::MAX), (0, MOST_RANKS + 1), (2, 2), (u32::MAX, u32::MAX), (0, 0)] {
        let reason = join(&mut conductor, 1, rank, size);
        assert!(refusal(&reason).contains("1024 ranks"), "{rank} of {size}: {reason:?}");
    }
    let long = Key { user: 7, name: "x".repeat(1 << 20) };
    let join = ToConductor::Join { key: long, rank: 0, size: 1, priority: Priority::Normal };
    assert!(refusal(&conductor.hear(1, join)).contains("name"));
    assert!(conductor.groups.is_empty());
}

#[test]
fn groups_and_ranks_have_limits() {
    let mut conductor = with_hosts(1);
    let mut join = |user, number: usize| {
        let key = Key { user, name: format!("g{number}") };
        conductor.hear(1, ToConductor::Join { key, rank: 0, size: 2, priority: Priority::Normal })
    };
    for number in 0..MOST_GROUPS {
        assert!(matches!(join(7, number)[..], [(1, FromConductor::Missing { .. })]));
    }
    assert!(refusal(&join(7, MOST_GROUPS)).contains("256 groups"));
    let more = (0..3000).map(|number| join(8 + number as u32 / 200, number)).find(|messages| {
        matches!(&messages[..], [(_, FromConductor::Refused { reason, .. })] if reason.contains("2048 ranks"))
    });
    assert!(more.is_some());
}

#[test]
fn a_service_speaks_for_its_own_ranks_only() {
    let (mut conductor, formed) = running_pair();
    for link in [2, 3] {
        assert!(conductor.hear(link, ToConductor::Leave { key: key(), rank: 0 }).is_empty());
        assert!(refusal(&shrink(&mut conductor, link, 0)).contains("join again"));
    }
    let figures = Figures { epoch: 9, ..Figures::default() };
    conductor.hear(3, ToConductor::Figures { key: key(), figures, trace: Vec::new() });
    let group = &conductor.groups[&key()];
    assert!(group.broken.is_none() && group.figures.is_empty() && group.ready.is_empty());
    // One that has not registered says nothing at all.
    assert!(join(&mut conductor, 9, 0, 1).is_empty() && shrink(&mut conductor, 9, 0).is_empty());
    assert_eq!(broken(&mut conductor, 1, &formed.token, 1).len(), 2);
}

#[test]
fn nobody_takes_over_a_group_that_runs() {
    let (mut conductor, formed) = running_pair();
    conductor.lost(3);
    let claimed = |change: &dyn Fn(&mut Formed)| {
        let mut formed = formed.clone();
        formed.hosts[0].host.name = "h3".to_owned();
        change(&mut formed);
        Running { key: key(), size: 2, priority: Priority::Normal, ranks: vec![0], formed: Some(formed) }
    };
    let claims = [
        claimed(&|formed| formed.token = "0".to_owned()),
        claimed(&|formed| formed.strategy.epoch = u64::MAX),
        claimed(&|formed| formed.strategy.channels[0].ring = vec![0; 1 << 20]),
        claimed(&|formed| formed.strategy.members = vec![0, 5000]),
        claimed(&|formed| formed.hosts.clear()),
        // Even with the secret it does not get the rank of another host.
        claimed(&|formed| formed.strategy.epoch = 1),
    ];
    register(&mut conductor, 3, claims.to_vec());
    let group = &conductor.groups[&key()];
    let of: Vec<Option<Link>> = group.ranks.values().map(|(link, _)| *link).collect();
    assert_eq!(of, [Some(1), Some(2)]);
    assert_eq!(group.strategy, Some(formed.strategy));
}

#[test]
fn numbers_of_strategies_do_not_overflow() {
    let mut before = with_hosts(1);
    let mut last = formed(&join(&mut before, 1, 0, 1), &[1]);
    last.strategy.epoch = MAX_EPOCH;
    let mut conductor = Conductor::new(token);
    let running =
        Running { key: key(), size: 1, priority: Priority::Normal, ranks: vec![0], formed: Some(last) };
    register(&mut conductor, 1, vec![running]);
    let question = Question::Strategy { group: "g".to_owned(), strategy: "rank-order".to_owned() };
    let answers = conductor.hear(1, ToConductor::Ask { id: 1, user: None, question });
    assert!(matches!(&answers[..], [_, (1, FromConductor::Answer { .. })]), "{answers:?}");
}

#[test]
fn hosts_that_cannot_be_are_turned_away() {
    let mut conductor = with_hosts(1);
    let path = topology::Path { name: "p".to_owned(), rate: -1.0, ..topology::Path::default() };
    for (host, word) in [
        (Host::default(), "1 to 256"),
        (Host { name: "x".repeat(300), ..Host::default() }, "1 to 256"),
        (Host { name: "x".to_owned(), paths: vec![path.clone(); 65], ..Host::default() }, "64 paths"),
        (Host { name: "x".to_owned(), paths: vec![path], ..Host::default() }, "no rate"),
        (Host { name: "h1".to_owned(), ..Host::default() }, "another host"),
    ] {
        let turned = conductor.hear(2, ToConductor::Register { host, address: None, running: Vec::new() });
        assert!(refusal(&turned).contains(word), "{turned:?}");
    }
    let renamed = Host { name: "other".to_owned(), ..Host::default() };
    let turned =
        conductor.hear(1, ToConductor::Register { host: renamed, address: None, running: Vec::new() });
    assert!(refusal(&turned).contains("another host"), "its groups know it by its name");
}

#[test]
fn traces_that_cannot_be_are_left_out_and_words_are_cut() {
    let (mut conductor, formed) = running_pair();
    let span = |start_us, end_us| Span { start_us, end_us };
    let mut trace = vec![span(5, 4), span(0, u64::MAX), span(u64::MAX, u64::MAX)];
    trace.extend((0..10_000).map(|number| span(number * 10_000, number * 10_000 + 1000)));
    conductor.hear(1, ToConductor::Figures { key: key(), figures: Figures::default(), trace });
    let kept = &conductor.groups[&key()].traces[&1].spans;
    assert_eq!((kept.len(), kept[511]), (512, span(99_990_000, 99_991_000)));
    let question = Question::Strategy { group: "g".to_owned(), strategy: "ts".to_owned() };
    assert_eq!(conductor.hear(1, ToConductor::Ask { id: 1, user: None, question }).len(), 3);

    let failure = Failure { text: "ä".repeat(1 << 20), ..failure(1) };
    let told = conductor.hear(1, ToConductor::Broken { key: key(), token: formed.token, failure, last: 0 });
    let [(_, FromConductor::Broken { failure, .. }), _] = &told[..] else { panic!("{told:?}") };
    assert!(failure.text.len() <= 1024);
}

#[test]
fn benchmarks_have_a_limit_and_only_their_first_host_ends_them() {
    let mut conductor = with_hosts(2);
    let bench = Bench { ranks: 2, bytes: 8, time_ms: 1, strategy: None };
    let ask = |conductor: &mut Conductor| {
        let question = Question::Bench(bench.clone());
        conductor.hear(2, ToConductor::Ask { id: 5, user: None, question })
    };
    for _ in 0..claims::MOST_BENCHES {
        assert_eq!(ask(&mut conductor).len(), 2);
    }
    assert!(matches!(
        &ask(&mut conductor)[..],
        [(2, FromConductor::Answer { answer: Answer::Refused(_), .. })]
    ));
    let name = conductor.benches.keys().next().unwrap().clone();
    let measured = |group: &str| ToConductor::Measured { group: group.to_owned(), outcome: Err("no".into()) };
    assert!(conductor.hear(2, measured(&name)).is_empty(), "rank 0 is on host 1");
    assert_eq!(conductor.hear(1, measured(&name)).len(), 1);
    assert_eq!(ask(&mut conductor).len(), 2);
}

#[test]
fn a_service_that_was_started_anew_has_lost_its_ranks() {
    let (mut conductor, _) = running_pair();
    conductor.lost(2);
    let host = Host { name: "h2".to_owned(), ..Host::default() };
    let told = conductor.hear(
        4,
        ToConductor::Register { host, address: Some(Address::tcp("10.0.0.2:1")), running: Vec::new() },
    );
    assert!(matches!(&told[..], [(1, FromConductor::Broken { .. })]), "{told:?}");
    let group = &conductor.groups[&key()];
    assert_eq!(group.broken.as_ref().and_then(|failure| failure.rank), Some(1));
    // The other one waits for it, and it is back with its number.
    let whole = ToConductor::Shrink { key: key(), rank: 0, whole: true };
    assert_eq!(conductor.hear(1, whole), [(1, FromConductor::Missing { key: key(), ranks: vec![1] })]);
    let again = formed(&join(&mut conductor, 4, 1, 2), &[1, 4]);
    assert_eq!((again.strategy.members, again.strategy.epoch), (vec![0, 1], 2));
}
