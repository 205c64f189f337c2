//! Turns on a manual clock.
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What a session does for ever: computes, and wants again after a pause.
#[derive(Debug, Clone, Copy)]
struct Load {
    tenant: &'static str,
    run_us: u64,
    pause_us: u64,
    /// It says that its turn is over when the run is in the queue of the device, as an emulated device does.
    queues: bool,
    /// It wants nothing before.
    begins_us: u64,
    ends_us: u64,
}

impl Load {
    fn of(tenant: &'static str, run_us: u64) -> Self {
        Self { tenant, run_us, pause_us: 0, queues: false, begins_us: 0, ends_us: u64::MAX }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Doing {
    /// Wants at this time.
    Pauses(u64),
    Waits(u64),
    /// Computes until this time.
    Runs(u64),
}

/// What happened.
#[derive(Debug, Default)]
struct Seen {
    /// Microseconds that each tenant had.
    computed: BTreeMap<&'static str, u64>,
    longest_wait: BTreeMap<&'static str, u64>,
    asked: u64,
    runs: u64,
    at_once: usize,
}

impl Seen {
    fn share(&self, tenant: &str) -> f64 {
        let all: u64 = self.computed.values().sum();
        self.computed.get(tenant).copied().unwrap_or(0) as f64 / all as f64
    }
}

/// Plays loads for a time.
fn play(slots: usize, shares: &[(&'static str, f64)], loads: &[Load], until_us: u64) -> Seen {
    let mut turns = Turns::new(slots);
    shares.iter().for_each(|(tenant, share)| turns.share(tenant, *share));
    let mut doing: Vec<Doing> = loads.iter().map(|load| Doing::Pauses(load.begins_us)).collect();
    let (mut standing, mut recalled) = (vec![false; loads.len()], vec![false; loads.len()]);
    loads.iter().enumerate().for_each(|(id, load)| turns.join(id as u64, load.tenant));
    let (mut now, mut seen) = (0, Seen::default());
    let time = Duration::from_micros;
    while now < until_us {
        for id in 0..loads.len() {
            let load = loads[id];
            match doing[id] {
                Doing::Runs(ends) if ends <= now => {
                    doing[id] = Doing::Pauses(now + load.pause_us);
                    if (!standing[id] || recalled[id]) && !load.queues {
                        (standing[id], recalled[id]) = (false, false);
                        turns.over(id as u64, time(now), time(now));
                    }
                }
                _ => {}
            }
            if standing[id] && recalled[id] && !matches!(doing[id], Doing::Runs(_)) {
                (standing[id], recalled[id]) = (false, false);
                turns.over(id as u64, time(now), time(now));
            }
            if matches!(doing[id], Doing::Pauses(at) if at <= now && at < load.ends_us) {
                if standing[id] {
                    doing[id] = begin(&mut seen, load, now);
                } else {
                    doing[id] = Doing::Waits(now);
                    seen.asked += 1;
                    turns.want(id as u64, time(now));
                }
            }
        }
        let mut orders = turns.next(time(now));
        while let Some(order) = orders.pop() {
            match order {
                Order::Turn(id) | Order::Standing(id) => {
                    let (id, load) = (id as usize, loads[id as usize]);
                    let Doing::Waits(since) = doing[id] else {
                        panic!("{id} got a turn that it does not want")
                    };
                    let longest = seen.longest_wait.entry(load.tenant).or_default();
                    *longest = (*longest).max(now - since);
                    doing[id] = begin(&mut seen, load, now);
                    standing[id] = order == Order::Standing(id as u64);
                    if load.queues && !standing[id] {
                        turns.over(id as u64, time(now), time(now + load.run_us));
                    }
                }
                Order::Recall(id) => {
                    let id = id as usize;
                    assert!(standing[id]);
                    recalled[id] = true;
                    if !matches!(doing[id], Doing::Runs(_)) || loads[id].queues {
                        let busy = if let Doing::Runs(ends) = doing[id] { ends } else { now };
                        (standing[id], recalled[id]) = (false, false);
                        turns.over(id as u64, time(now), time(busy));
                    }
                }
            }
            // What was given back can be given again.
            orders.extend(turns.next(time(now)));
        }
        let computing =
            doing.iter().filter(|doing| matches!(doing, Doing::Runs(ends) if *ends > now)).count();
        seen.at_once = seen.at_once.max(computing);
        // The next moment at which something happens.
        let next = doing.iter().zip(loads).filter_map(|(doing, load)| match doing {
            Doing::Pauses(at) if *at < load.ends_us => Some(*at),
            Doing::Runs(ends) => Some(*ends),
            _ => None,
        });
        let wakes = turns.wakes_at(time(now)).map(|wakes| wakes.as_micros() as u64);
        let next = next.chain(wakes).filter(|at| *at > now).min();
        now = next.unwrap_or(until_us);
    }
    seen
}

fn begin(seen: &mut Seen, load: Load, now: u64) -> Doing {
    *seen.computed.entry(load.tenant).or_default() += load.run_us;
    seen.runs += 1;
    Doing::Runs(now + load.run_us)
}

const SHARES: [(&str, f64); 3] = [("a", 0.5), ("b", 0.3), ("c", 0.2)];

#[track_caller]
fn assert_shares(seen: &Seen, within: f64) {
    for (tenant, share) in SHARES {
        let found = seen.share(tenant);
        assert!((found - share).abs() <= within, "{tenant} has {found}, not {share}: {seen:?}");
    }
}

#[test]
fn one_session_asks_once() {
    let seen = play(1, &SHARES, &[Load::of("a", 1000)], 10_000_000);
    assert_eq!((seen.asked, seen.runs), (1, 10_000));
}

#[test]
fn a_tenant_alone_has_all_and_neither_pays_nor_saves() {
    let late = Load { begins_us: 5_000_000, ..Load::of("b", 1000) };
    let alone = play(1, &SHARES, &[Load::of("a", 1000), late], 5_000_000);
    assert_eq!(alone.computed["a"], 5_000_000);
    // From then on as if both had begun there.
    let both = play(1, &SHARES, &[Load::of("a", 1000), late], 13_000_000);
    let of_a = both.computed["a"] - alone.computed["a"];
    assert!(of_a.abs_diff(5_000_000) < 20_000, "{of_a}");
    assert!(both.longest_wait["b"] <= 3_000, "{both:?}");
}

#[test]
fn a_tenant_that_was_idle_while_others_had_turns_has_saved_nothing() {
    let late = Load { begins_us: 5_000_000, ..Load::of("c", 1000) };
    let loads = [Load::of("a", 1000), Load::of("b", 1000), late];
    let (before, after) = (play(1, &SHARES, &loads, 5_000_000), play(1, &SHARES, &loads, 10_000_000));
    let of_c = after.computed["c"] as f64 / 5e6;
    assert!(!before.computed.contains_key("c") && (of_c - 0.2).abs() < 0.03, "{of_c}");
    assert!(after.longest_wait["a"] <= 5_000, "{after:?}");
}

#[test]
fn two_sessions_of_one_turn_each_need_no_half() {
    let shares = [("a", 0.8), ("b", 0.2)];
    let prompt = |tenant| Load { pause_us: 50, ..Load::of(tenant, 2000) };
    let seen = play(1, &shares, &[prompt("a"), prompt("b")], 10_000_000);
    assert!((seen.share("a") - 0.8).abs() < 0.03, "{seen:?}");
}

#[test]
fn two_sessions_of_long_runs_need_no_half_though_each_takes_a_while_to_come_again() {
    let shares = [("a", 0.8), ("b", 0.2)];
    let slow = |tenant| Load { pause_us: 15_000, ..Load::of(tenant, 200_000) };
    let seen = play(1, &shares, &[slow("a"), slow("b")], 200_000_000);
    assert!((seen.share("a") - 0.8).abs() < 0.03, "{seen:?}");
}

#[test]
fn a_session_that_floods_or_runs_long_has_its_share_only() {
    // Many sessions of one tenant, and runs that take a hundred times as long.
    let mut loads = vec![Load::of("a", 1000), Load::of("b", 1000)];
    loads.extend((0..20).map(|_| Load::of("c", 1000)));
    assert_shares(&play(1, &SHARES, &loads, 20_000_000), 0.03);
    let loads = [Load::of("a", 1000), Load::of("b", 1000), Load::of("c", 100_000)];
    assert_shares(&play(1, &SHARES, &loads, 120_000_000), 0.03);
}

#[test]
fn a_slot_is_not_given_twice() {
    for slots in 1..4 {
        let loads = [("a", true), ("a", false), ("b", true), ("b", false), ("c", true)];
        let loads = loads.map(|(tenant, queues)| Load { queues, ..Load::of(tenant, 700) });
        let seen = play(slots, &SHARES, &loads, 5_000_000);
        assert_eq!(seen.at_once, slots);
        let all: u64 = seen.computed.values().sum();
        assert!(all as f64 >= 0.95 * slots as f64 * 5e6, "{seen:?}");
    }
}

#[test]
fn what_a_session_had_is_free_when_it_is_gone() {
    let mut turns = Turns::new(1);
    let now = Duration::from_millis;
    (1..=3).for_each(|id| turns.join(id, "a"));
    turns.want(1, now(0));
    assert_eq!(turns.next(now(0)), [Order::Standing(1)]);
    turns.want(2, now(1));
    assert_eq!(turns.next(now(1)), [Order::Recall(1)]);
    assert_eq!(turns.holds_since(1), Some(now(1)));
    turns.leave(1, now(2));
    turns.want(3, now(2));
    assert_eq!(turns.next(now(2)), [Order::Turn(2)]);
    turns.leave(2, now(3));
    assert_eq!(turns.next(now(3)), [Order::Standing(3)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, ..ProptestConfig::default() })]

    #[test]
    fn shares_hold_for_all_lengths_of_runs(
        lengths in prop::array::uniform3(200u64..5_000),
        pauses in prop::array::uniform3(0u64..300),
        queues in any::<[bool; 3]>(),
        slots in 1usize..3,
    ) {
        // Each tenant wants more than the device has.
        let mut loads = Vec::new();
        for (at, (tenant, _)) in SHARES.iter().enumerate() {
            let load = Load { pause_us: pauses[at], queues: queues[at], ..Load::of(tenant, lengths[at]) };
            loads.extend([load; 4]);
        }
        let seen = play(slots, &SHARES, &loads, 8_000_000);
        assert_shares(&seen, 0.03);
        prop_assert!(seen.at_once <= slots);
    }

    #[test]
    fn nobody_starves_and_the_device_is_not_idle(
        loads in prop::collection::vec((0usize..3, 100u64..20_000, 0u64..30_000, any::<bool>(), 0u64..2_000_000), 1..8),
        slots in 1usize..3,
    ) {
        let loads: Vec<Load> = loads.into_iter().map(|(tenant, run_us, pause_us, queues, begins_us)| Load {
            tenant: SHARES[tenant].0, run_us, pause_us, queues, begins_us, ends_us: u64::MAX,
        }).collect();
        let seen = play(slots, &SHARES, &loads, 2_500_000);
        prop_assert!(seen.at_once <= slots);
        // The longest run of each session, as often as the smallest share is in all.
        let longest: u64 = loads.iter().map(|load| load.run_us + (load.run_us / 8).max(500)).sum();
        for (tenant, wait) in &seen.longest_wait {
            prop_assert!(*wait <= 6 * longest, "{tenant} waited {wait} us, runs of one round take {longest} us");
        }
        for load in &loads {
            prop_assert!(seen.computed.contains_key(load.tenant));
        }
    }
}
