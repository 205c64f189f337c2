//! Leaders of a small network, by a manual clock.
use super::*;

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Four racks of three machines with 100 each, and 150 between racks.
fn network() -> Network {
    let rack = Rack { machines: vec![[100.0; 2]; 3], uplink: [150.0; 2] };
    Network { racks: vec![rack; 4] }
}

/// A flow from a machine to another one, each by rack and number.
type Flow = ((u64, u64), (u64, u64), f64);

/// The report of a machine's host about these flows.
fn reported(flows: &[Flow], rack: u64, machine: u64) -> Vec<Entry> {
    let entry = |direction: u64| {
        let ours = flows.iter().filter(|(from, to, _)| [from, to][direction as usize] == &(rack, machine));
        let add = |mut entry: Entry, (from, to, rate): &Flow| {
            (entry.sharers, entry.used) = (entry.sharers + 1.0, entry.used + rate);
            if from.0 != to.0 {
                entry.crossing_sharers += 1.0;
                entry.crossing_used += rate;
            }
            entry
        };
        ours.fold(Entry { link: 2 * machine + direction, ..Entry::default() }, add)
    };
    vec![entry(0), entry(1)]
}

/// All leaders, after each host has reported and each leader has told the others.
fn exchanged(flows: &[Flow], now: Duration) -> Vec<Leader> {
    let mut leaders: Vec<Leader> = (0..4).map(|rack| Leader::new(rack, network())).collect();
    period(&mut leaders, flows, now);
    leaders
}

fn period(leaders: &mut [Leader], flows: &[Flow], now: Duration) {
    for leader in &mut *leaders {
        for machine in 0..3 {
            leader.report(machine, reported(flows, leader.rack, machine), now).expect("it is time");
        }
    }
    let said: Vec<Aggregate> = leaders.iter_mut().map(|leader| leader.aggregate(now)).collect();
    for leader in leaders {
        for aggregate in &said {
            let read = Aggregate::read(&aggregate.bytes()).expect("it is a message");
            assert_eq!(leader.hear(read, now), Ok(aggregate.rack != leader.rack));
        }
    }
}

const TENANT: [(u64, u64); 3] = [(2, 0), (0, 1), (2, 2)];

#[test]
fn a_tenant_gets_the_links_between_its_machines() {
    let flows =
        [((2, 0), (0, 0), 30.0), ((2, 1), (3, 0), 50.0), ((2, 0), (2, 1), 5.0), ((1, 0), (0, 1), 20.0)];
    let mut leaders = exchanged(&flows, ms(1_000));
    let hints = leaders[2].hints("job", &TENANT, ms(1_060)).expect("all is known");
    let load = |link| hints.loads[hints.tree.id(link)];
    let (up, down) = (Direction::Up, Direction::Down);
    assert_eq!(load(Link::Machine(0, up)), Load { total: 100.0, residual: 65.0, sharers: 2.0 });
    assert_eq!(load(Link::Rack(0, up)), Load { total: 150.0, residual: 70.0, sharers: 2.0 });
    assert_eq!(load(Link::Rack(0, down)), Load::idle(150.0));
    assert_eq!(load(Link::Machine(1, down)), Load { total: 100.0, residual: 80.0, sharers: 1.0 });
    assert_eq!(load(Link::Rack(1, down)), Load { total: 150.0, residual: 100.0, sharers: 2.0 });
    assert_eq!(load(Link::Machine(2, up)), Load::idle(100.0));
    assert_eq!(hints.age, ms(60), "since the reports");
}

#[test]
fn nothing_shows_what_others_do_elsewhere() {
    let own: Flow = ((2, 0), (0, 1), 10.0);
    let answers = [
        vec![own],
        // Others move between racks 1 and 3, and within them.
        vec![own, ((1, 0), (3, 0), 70.0), ((3, 1), (3, 2), 20.0)],
        vec![own, ((3, 0), (1, 2), 40.0), ((1, 0), (1, 1), 90.0), ((3, 0), (1, 2), 40.0)],
    ]
    .map(|flows| {
        let hints = exchanged(&flows, ms(1_000))[0].hints("job", &TENANT, ms(1_050)).expect("all is known");
        (hints.topology(), hints.links(), hints.age)
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    // The same machines in other racks look the same.
    let moved: Vec<(u64, u64)> = TENANT.iter().map(|(rack, machine)| (rack + 1, *machine)).collect();
    let flows = [((3, 0), (1, 1), 10.0)];
    let hints = exchanged(&flows, ms(1_000))[0].hints("job", &moved, ms(1_050)).expect("all is known");
    assert_eq!((hints.topology(), hints.links(), hints.age), answers[0]);
    // A change where the tenant is does show.
    let flows = [own, ((2, 1), (3, 0), 1.0)];
    let hints = exchanged(&flows, ms(1_000))[0].hints("job", &TENANT, ms(1_050)).expect("all is known");
    assert_ne!(hints.links(), answers[0].1);
}

#[test]
fn whoever_comes_too_often_is_refused_with_the_reason() {
    let mut leaders = exchanged(&[], ms(1_000));
    let leader = &mut leaders[0];
    let refused = leader.report(1, Vec::new(), ms(1_049)).expect_err("49 ms");
    assert_eq!(
        refused.to_string(),
        "host 1 was here 49ms ago; at least 50ms must pass, as figures change each 100ms"
    );
    assert_eq!(leader.report(1, reported(&[], 0, 1), ms(1_050)), Ok(()));
    assert!(leader.hints("one", &TENANT, ms(1_100)).is_ok());
    assert!(leader.hints("other", &TENANT, ms(1_101)).is_ok(), "each tenant has its own time");
    let refused = leader.hints("one", &TENANT, ms(1_149));
    assert_eq!(refused, Err(Refusal::TooSoon { who: "tenant one".to_owned(), after: ms(49) }));
    assert!(leader.hints("one", &TENANT, ms(1_150)).is_ok(), "a refusal does not begin a new time");
}

#[test]
fn racks_and_machines_that_are_silent_are_named() {
    let mut leaders = exchanged(&[], ms(1_000));
    let mut alone = Leader::new(0, network());
    let refused = alone.hints("job", &TENANT, ms(1_000));
    assert_eq!(refused, Err(Refusal::Silent { rack: 0, silent: Duration::MAX }));
    // The leader of rack 2 stops after the first period.
    for tick in 1..=11 {
        let now = ms(1_000 + 100 * tick);
        for machine in 0..3 {
            leaders[0].report(machine, reported(&[], 0, machine), now).expect("it is time");
        }
        let answer = leaders[0].hints("job", &TENANT, now);
        if tick <= 10 {
            assert_eq!(answer.map(|hints| hints.age), Ok(ms(100 * tick)));
        } else {
            assert_eq!(answer, Err(Refusal::Silent { rack: 0, silent: ms(1_100) }));
        }
    }
    // Only machines of the tenant must report.
    let now = ms(3_000);
    let mut leader = Leader::new(0, network());
    leader.report(1, reported(&[], 0, 1), now).expect("it is the first time");
    assert!(leader.hints("job", &[(0, 1)], now).is_ok());
    let refused = leader.hints("other", &[(0, 1), (0, 2)], now);
    assert_eq!(refused, Err(Refusal::NoReport { machine: 1 }));
}

#[test]
fn a_leader_that_begins_anew_is_believed_later() {
    let mut leaders = exchanged(&[], ms(1_000));
    for tick in 1..20 {
        period(&mut leaders, &[], ms(1_000 + 100 * tick));
    }
    let anew = Aggregate { rack: 2, number: 1, ..Aggregate::default() };
    assert_eq!(leaders[0].hear(anew.clone(), ms(3_000)), Ok(false));
    assert_eq!(leaders[0].hear(anew.clone(), ms(3_901)), Ok(true));
    assert_eq!(leaders[0].hear(anew, ms(3_950)), Ok(false), "twice the same");
}

#[test]
fn numbers_that_name_nothing_are_rejected() {
    let mut leader = Leader::new(0, network());
    let entry = Entry { link: 6, ..Entry::default() };
    assert_eq!(leader.report(0, vec![entry], ms(0)), Err(Refusal::Unknown("link 6 in rack 0".to_owned())));
    let aggregate = Aggregate { rack: 4, ..Aggregate::default() };
    assert_eq!(leader.hear(aggregate, ms(0)), Err(Refusal::Unknown("rack 4".to_owned())));
    let aggregate = Aggregate { rack: 1, entries: vec![entry], ..Aggregate::default() };
    assert_eq!(leader.hear(aggregate, ms(0)), Err(Refusal::Unknown("link 6 in rack 1".to_owned())));
    let refused = leader.hints("job", &[(0, 7)], ms(0));
    assert_eq!(refused, Err(Refusal::Unknown("machine 0 of the tenant".to_owned())));
}

#[test]
fn another_leader_of_a_rack_is_believed_at_once_where_that_is_known() {
    let mut leaders = exchanged(&[], ms(1_000));
    period(&mut leaders, &[], ms(1_100));
    let anew = Aggregate { rack: 2, number: 1, ..Aggregate::default() };
    assert_eq!(leaders[0].hear(anew.clone(), ms(1_150)), Ok(false));
    leaders[0].succeeded(2);
    assert_eq!(leaders[0].hear(anew, ms(1_150)), Ok(true));
}

#[test]
fn states_of_racks_have_their_age_and_end() {
    let flows = [((2, 0), (0, 0), 30.0)];
    let mut leaders = exchanged(&flows, ms(1_000));
    let state = leaders[0].state(2, ms(1_400)).expect("it was heard");
    assert_eq!((state.age, state.entries[0].used), (ms(400), 30.0));
    assert_eq!(leaders[0].state(2, ms(2_001)), None);
    // A rack that has come since has a number behind the others.
    let network = Network { racks: vec![network().racks[0].clone(); 5] };
    leaders[0].set_network(network);
    let from_new = Aggregate { rack: 4, number: 1, ..Aggregate::default() };
    assert_eq!(leaders[0].hear(from_new, ms(1_400)), Ok(true));
    assert!(leaders[0].state(4, ms(1_450)).is_some());
}
