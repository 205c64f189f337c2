//! Admission, memory and ends, without processes.
use super::super::tenants::Tenants;
use super::*;
use crate::call::VERSION;
use crate::daemon::views::SessionState;

fn ledger(memory: Option<u64>, listed: &[(&str, Tenant)], only_listed: bool) -> Ledger {
    let given = Given { slots: 1, memory, longest_run: Duration::from_secs(5), most_sessions: 3 };
    let listed = listed.iter().map(|(name, tenant)| ((*name).to_owned(), *tenant));
    Ledger::new(given, Tenants::new(listed, only_listed).unwrap())
}

fn admit(ledger: &mut Ledger, tenant: &str) -> (u64, Result<Limits, String>) {
    let session = ledger.begin(1, "peer".to_owned(), Duration::ZERO);
    let hello = Hello { version: VERSION, tenant: tenant.to_owned(), client: "client".to_owned() };
    ledger.hear(session, FromChild::Admit(hello), Duration::ZERO);
    let admitted = ledger.outgoing().into_iter().find_map(|(_, message)| match message {
        ToChild::Admitted(admitted) => Some(admitted),
        _ => None,
    });
    (session, admitted.unwrap())
}

/// Asks for memory; whether it was granted, and the limit.
fn more(ledger: &mut Ledger, session: u64, held: u64, wanted: u64) -> (bool, u64) {
    ledger.hear(session, FromChild::More { held, wanted }, Duration::ZERO);
    match ledger.outgoing().pop() {
        Some((to, ToChild::Room { granted, limit })) if to == session => (granted >= held + wanted, limit),
        other => panic!("{other:?}"),
    }
}

/// Messages to processes other than questions for figures.
fn told(ledger: &mut Ledger) -> Vec<(u64, ToChild)> {
    let mut told = ledger.outgoing();
    told.retain(|(_, message)| *message != ToChild::Report);
    told
}

#[test]
fn the_sessions_of_a_tenant_share_its_memory() {
    let tenant = |memory| Tenant { share: 0.5, memory: Some(memory) };
    let mut ledger = ledger(Some(150), &[("a", tenant(100)), ("b", tenant(100))], true);
    let (first, limits) = admit(&mut ledger, "a");
    assert_eq!(limits.unwrap().memory, Some(100));
    let (second, other) = (admit(&mut ledger, "a").0, admit(&mut ledger, "b").0);
    assert_eq!(more(&mut ledger, first, 0, 60), (true, 100));
    assert_eq!(more(&mut ledger, second, 0, 50), (false, 40));
    assert_eq!(more(&mut ledger, second, 0, 40), (true, 40));
    // The device has 50 left, and its tenant 100.
    assert_eq!(more(&mut ledger, other, 0, 60), (false, 50));
    ledger.hear(first, FromChild::Less { held: 10 }, Duration::ZERO);
    assert_eq!(more(&mut ledger, other, 0, 60), (true, 100));
    ledger.gone(first, Duration::ZERO);
    assert_eq!(more(&mut ledger, second, 40, 50), (true, 90));
}

#[test]
fn limits_change_at_once() {
    let mut ledger = ledger(None, &[("a", Tenant { share: 0.5, memory: None })], false);
    let (session, _) = admit(&mut ledger, "a");
    ledger.limit("a", Some(0.2), Some(Some(100)), false).unwrap();
    assert_eq!(ledger.outgoing(), [(session, ToChild::AskAgain)]);
    ledger.hear(session, FromChild::Less { held: 120 }, Duration::ZERO);
    // It holds more than it may: that stays, and nothing comes to it.
    assert_eq!(more(&mut ledger, session, 120, 1), (false, 100));
    assert_eq!(more(&mut ledger, session, 20, 80), (true, 100));
    ledger.limit("a", None, Some(None), false).unwrap();
    ledger.outgoing();
    assert_eq!(more(&mut ledger, session, 20, 1 << 40), (true, u64::MAX));
    assert!(ledger.limit("new", Some(0.1), None, false).unwrap_err().contains("--new"));
    let listing = ledger.listing(Duration::ZERO);
    let shares: Vec<(&str, f64)> =
        listing.tenants.iter().map(|tenant| (tenant.tenant.as_str(), tenant.share)).collect();
    assert_eq!(shares, [("a", 0.2), ("default", 0.8)]);
}

#[test]
fn strangers_are_refused_and_too_many_too() {
    let mut ledger = ledger(None, &[("a", Tenant { share: 0.5, memory: None })], true);
    let (_, refused) = admit(&mut ledger, "b");
    assert!(refused.unwrap_err().contains("--tenant b=SHARE"));
    assert!(ledger.refuses().is_none());
    let _ = admit(&mut ledger, "a");
    assert!(ledger.refuses().unwrap().contains("3 sessions"), "a place is kept for the one that comes");
    ledger.placed();
    assert!(ledger.refuses().is_none());
    let _ = admit(&mut ledger, "a");
    ledger.placed();
    assert!(ledger.refuses().unwrap().contains("3 sessions"));
}

#[test]
fn a_drained_device_tells_each_session_and_is_over_after_the_last() {
    let mut ledger = ledger(None, &[], false);
    let (first, second) = (admit(&mut ledger, "x").0, admit(&mut ledger, "y").0);
    ledger.drain_one(first, Duration::ZERO).unwrap();
    assert!(matches!(&ledger.outgoing()[..], [(to, ToChild::End(_))] if *to == first));
    ledger.gone(first, Duration::ZERO);
    assert!(ledger.drain_one(first, Duration::ZERO).is_err() && !ledger.is_over());
    ledger.drain(Duration::ZERO);
    assert!(matches!(&ledger.outgoing()[..], [(to, ToChild::Drained(_))] if *to == second));
    // Its run does not end.
    ledger.tick(Duration::from_secs(5));
    assert!(matches!(&ledger.ending()[..], [(session, _)] if *session == second));
    assert!(admit(&mut ledger, "z").1.unwrap_err().contains("drained"));
    assert!(ledger.refuses().is_some() && !ledger.is_over());
    ledger.gone(second, Duration::ZERO);
    ledger.gone(3, Duration::ZERO);
    assert!(ledger.is_over());
}

#[test]
fn who_does_not_greet_or_holds_its_turn_is_ended() {
    let mut ledger = ledger(None, &[], false);
    let silent = ledger.begin(1, String::new(), Duration::ZERO);
    assert_eq!(ledger.wakes_at(Duration::ZERO), Some(STARTING));
    ledger.hear(silent, FromChild::Ready, Duration::ZERO);
    assert_eq!(ledger.wakes_at(Duration::ZERO), Some(GREETING));
    ledger.tick(GREETING);
    assert!(matches!(&ledger.ending()[..], [(session, _)] if *session == silent));
    ledger.gone(silent, GREETING);
    let (holds, waits) = (admit(&mut ledger, "x").0, admit(&mut ledger, "y").0);
    let seconds = Duration::from_secs;
    ledger.hear(holds, FromChild::Want, seconds(20));
    ledger.tick(seconds(60));
    assert!(ledger.ending().is_empty(), "nobody waits");
    ledger.hear(waits, FromChild::Want, seconds(60));
    assert_eq!(told(&mut ledger), [(holds, ToChild::Standing), (holds, ToChild::Recall)]);
    assert_eq!(ledger.wakes_at(seconds(60)), Some(seconds(62)), "it asks for figures before");
    ledger.tick(seconds(64));
    assert!(ledger.ending().is_empty());
    assert_eq!(ledger.wakes_at(seconds(64)), Some(seconds(65)));
    ledger.tick(seconds(65));
    assert!(matches!(&ledger.ending()[..], [(session, _)] if *session == holds));
    ledger.gone(holds, seconds(66));
    assert!(matches!(&told(&mut ledger)[..], [(to, ToChild::Turn | ToChild::Standing)] if *to == waits));
}

#[test]
fn a_process_that_stands_still_is_ended_and_one_that_computes_is_not() {
    let mut ledger = ledger(None, &[], false);
    let (stands, computes) = (admit(&mut ledger, "x").0, admit(&mut ledger, "y").0);
    let (mut now, mut asked) = (Duration::ZERO, 0);
    let reason = loop {
        ledger.tick(now);
        let questions = ledger.outgoing();
        if let [(session, reason)] = &ledger.ending()[..] {
            assert_eq!(*session, stands);
            break reason.clone();
        }
        assert_eq!(questions, [(stands, ToChild::Report), (computes, ToChild::Report)]);
        asked += 1;
        ledger.hear(computes, FromChild::Figures(Figures::default()), now);
        // The daemon itself stands still for a minute, and asks again first.
        now = ledger.wakes_at(now).unwrap() + Duration::from_secs(if asked == 1 { 60 } else { 0 });
    };
    assert_eq!((asked, reason), (UNANSWERED, Ending::Because("its process does not answer".to_owned())));
    ledger.gone(stands, now);
    ledger.tick(now + ASKS);
    assert_eq!(ledger.outgoing(), [(computes, ToChild::Report)]);
}

#[test]
fn a_process_may_load_libraries_before_its_client_greets() {
    let mut ledger = ledger(None, &[], false);
    let alone = ledger.begin(1, String::new(), Duration::ZERO);
    let group = ledger.begin_group(2, "x", Duration::ZERO).unwrap();
    let first = ledger.begin_in(group, String::new(), Duration::ZERO);
    // A second session of another tenant is asked for figures meanwhile.
    let other = ledger.begin(3, String::new(), Duration::ZERO);
    let hello = |tenant: &str| Hello { version: VERSION, tenant: tenant.to_owned(), client: String::new() };
    ledger.hear(other, FromChild::Admit(hello("y")), Duration::ZERO);
    let mut now = Duration::ZERO;
    while now + ASKS < STARTING {
        now += ASKS;
        ledger.tick(now);
        ledger.hear(other, FromChild::Figures(Figures::default()), now);
        assert!(ledger.ending().is_empty(), "at {now:?}");
    }
    // The first client of the group, and the other one, have their time from now on.
    ledger.hear(group, FromChild::Ready, now);
    ledger.is_ready(first, now);
    ledger.outgoing();
    ledger.hear(first, FromChild::Admit(hello("x")), now + GREETING);
    assert!(
        ledger
            .outgoing()
            .iter()
            .any(|(to, message)| { *to == first && matches!(message, ToChild::Admitted(Ok(_))) })
    );
    ledger.tick(STARTING);
    assert!(
        matches!(&ledger.ending()[..], [(ended, Ending::Because(reason))] if *ended == alone && reason.contains("could not begin"))
    );
}

#[test]
fn a_process_that_was_killed_and_does_not_end_keeps_no_turn() {
    for (is_group, memory) in [(false, 60), (true, 60)] {
        let mut ledger = ledger(Some(100), &[], false);
        let (holds, session) = if is_group {
            group(&mut ledger, "x")
        } else {
            let session = admit(&mut ledger, "x").0;
            (session, session)
        };
        let waits = admit(&mut ledger, "y").0;
        assert_eq!(more(&mut ledger, holds, 0, memory), (true, 100));
        ledger.hear(holds, FromChild::Want, Duration::ZERO);
        ledger.hear(waits, FromChild::Want, Duration::ZERO);
        assert_eq!(told(&mut ledger), [(holds, ToChild::Standing), (holds, ToChild::Recall)]);
        ledger.tick(Duration::from_secs(5));
        assert!(ledger.ending().iter().any(|(ended, _)| *ended == holds), "it does not end its turn");
        assert!(told(&mut ledger).is_empty());
        ledger.drain(Duration::from_secs(5));
        ledger.outgoing();
        ledger.is_stuck(holds, Duration::from_secs(10));
        assert!(matches!(&told(&mut ledger)[..], [(to, ToChild::Turn | ToChild::Standing)] if *to == waits));
        assert_eq!(more(&mut ledger, waits, 0, 50), (false, 40), "its memory is not free");
        // Nobody waits for it when the device ends.
        ledger.gone(waits, Duration::from_secs(10));
        if is_group {
            ledger.gone(session, Duration::from_secs(10));
        }
        assert!(ledger.is_over());
        ledger.gone(holds, Duration::from_secs(20));
        assert!(ledger.is_over());
    }
}

#[test]
fn a_group_without_sessions_that_does_not_end_is_ended() {
    let mut ledger = ledger(None, &[], false);
    let (stands, last) = group(&mut ledger, "x");
    let waits = admit(&mut ledger, "y").0;
    ledger.hear(stands, FromChild::Want, Duration::ZERO);
    ledger.hear(waits, FromChild::Want, Duration::ZERO);
    ledger.gone(last, Duration::ZERO);
    assert_eq!(ledger.ending(), [(stands, Ending::Unused)]);
    // It was stopped, say: nothing that it is told reaches it.
    let mut now = Duration::ZERO;
    let reason = loop {
        now = ledger.wakes_at(now).unwrap();
        assert!(now <= LEAVING, "it keeps its turn");
        ledger.tick(now);
        ledger.hear(waits, FromChild::Figures(Figures::default()), now);
        match &ledger.ending()[..] {
            [] => {}
            [(group, Ending::Because(reason))] if *group == stands => break reason.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert!(now == LEAVING && reason.contains("no session"), "{reason}");
    ledger.tick(now + LEAVING);
    assert!(ledger.ending().is_empty(), "once");
    ledger.outgoing();
    ledger.gone(stands, now);
    assert!(matches!(&told(&mut ledger)[..], [(to, ToChild::Turn | ToChild::Standing)] if *to == waits));
}

#[test]
fn memory_of_a_process_that_ends_is_waited_for() {
    let mut ledger = ledger(None, &[("a", Tenant { share: 0.5, memory: Some(100) })], false);
    let (before, last) = group(&mut ledger, "a");
    assert_eq!(more(&mut ledger, before, 0, 80), (true, 100));
    ledger.gone(last, Duration::ZERO);
    assert_eq!(ledger.ending(), [(before, Ending::Unused)]);
    // The next client comes while the process of those before it ends.
    let (group, _) = group(&mut ledger, "a");
    ledger.hear(group, FromChild::More { held: 0, wanted: 80 }, Duration::ZERO);
    assert!(ledger.outgoing().is_empty());
    // What does not fit in any case is refused at once.
    ledger.hear(group, FromChild::More { held: 0, wanted: 101 }, Duration::ZERO);
    assert_eq!(ledger.outgoing(), [(group, ToChild::Room { granted: 0, limit: 20 })]);
    ledger.gone(before, Duration::ZERO);
    assert_eq!(ledger.outgoing(), [(group, ToChild::Room { granted: 80, limit: 100 })]);
}

#[test]
fn a_session_that_was_ended_before_its_client_greeted_is_refused() {
    let mut ledger = ledger(None, &[], false);
    let session = ledger.begin(1, String::new(), Duration::ZERO);
    ledger.drain_one(session, Duration::ZERO).unwrap();
    ledger.outgoing();
    let hello = Hello { version: VERSION, tenant: "a".to_owned(), client: String::new() };
    ledger.hear(session, FromChild::Admit(hello), Duration::ZERO);
    match &ledger.outgoing()[..] {
        [(to, ToChild::Admitted(Err(reason)))] if *to == session => assert_eq!(reason, ENDED),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_of_clients_fit_into_lists() {
    let mut ledger = ledger(None, &[], false);
    let session = ledger.begin(1, "peer".to_owned(), Duration::ZERO);
    let client = format!("a\n\u{1b}[31m{}", "n".repeat(1 << 20));
    let hello = Hello { version: VERSION, tenant: "a".to_owned(), client };
    ledger.hear(session, FromChild::Admit(hello), Duration::ZERO);
    let listing = ledger.listing(Duration::ZERO);
    assert_eq!(listing.sessions[0].client, format!("a[31m{}", "n".repeat(195)));
}

/// A group of a tenant, and a session of it that was admitted.
fn group(ledger: &mut Ledger, tenant: &str) -> (u64, u64) {
    let group = ledger.begin_group(7, tenant, Duration::ZERO).unwrap();
    (group, admit_in(ledger, group, tenant).0)
}

fn admit_in(ledger: &mut Ledger, group: u64, tenant: &str) -> (u64, Result<Limits, String>) {
    let session = ledger.begin_in(group, "peer".to_owned(), Duration::ZERO);
    let hello = Hello { version: VERSION, tenant: tenant.to_owned(), client: "client".to_owned() };
    ledger.hear(session, FromChild::Admit(hello), Duration::ZERO);
    let admitted = ledger.outgoing().into_iter().find_map(|(to, message)| match message {
        ToChild::Admitted(admitted) if to == session => Some(admitted),
        _ => None,
    });
    (session, admitted.unwrap())
}

#[test]
fn a_group_begins_with_its_first_session_and_ends_with_its_last() {
    let mut ledger = ledger(None, &[("a", Tenant { share: 0.5, memory: None })], false);
    assert_eq!(ledger.group_of("a"), None);
    let (of_a, first) = group(&mut ledger, "a");
    let (second, admitted) = admit_in(&mut ledger, of_a, "a");
    assert!(admitted.is_ok());
    assert_eq!((first, second, ledger.group_of("a")), (1, 2, Some(of_a)));
    // Whoever is not listed is the default tenant.
    let (of_others, other) = group(&mut ledger, "x");
    assert_eq!((ledger.group_of("y"), other), (Some(of_others), 3));
    assert!(ledger.refuses().unwrap().contains("3 sessions"), "groups are none");
    assert!(admit_in(&mut ledger, of_a, "y").1.unwrap_err().contains("another tenant"));
    ledger.gone(4, Duration::ZERO);
    ledger.gone(first, Duration::ZERO);
    assert!(ledger.ending().is_empty());
    ledger.gone(second, Duration::ZERO);
    assert_eq!(ledger.ending(), [(of_a, Ending::Unused)]);
    assert!(!ledger.ask_all().contains_key(&of_a), "it hears nothing more");
    assert!(ledger.outgoing().iter().all(|(to, _)| *to != of_a));
    assert_eq!(ledger.group_of("a"), None, "the next session begins another one");
    ledger.drain(Duration::ZERO);
    assert!(matches!(&ledger.outgoing()[..], [(to, ToChild::Drained(_))] if *to == other));
    ledger.gone(of_a, Duration::ZERO);
    ledger.gone(other, Duration::ZERO);
    assert!(!ledger.is_over());
    ledger.gone(of_others, Duration::ZERO);
    assert!(ledger.is_over());
}

#[test]
fn turns_and_models_are_those_of_the_group_and_figures_those_of_its_sessions() {
    let mut ledger = ledger(Some(100), &[("a", Tenant { share: 0.5, memory: Some(60) })], false);
    let ((of_a, first), other) = (group(&mut ledger, "a"), admit(&mut ledger, "x").0);
    assert_eq!(more(&mut ledger, of_a, 0, 40), (true, 60));
    assert_eq!(more(&mut ledger, first, 0, 30), (false, 20), "its models are the tenant's");
    assert_eq!(more(&mut ledger, first, 0, 20), (true, 20));
    assert_eq!(more(&mut ledger, other, 0, 50), (false, 40));
    ledger.hear(of_a, FromChild::Want, Duration::ZERO);
    assert_eq!(ledger.outgoing(), [(of_a, ToChild::Standing)]);
    let figures =
        Figures { models: 1, memory: 5, runs: 9, computed_us: 7, is_waiting: true, ..Figures::default() };
    ledger.hear(
        of_a,
        FromChild::Figures(Figures { memory: 40, runs: 4, apart: 2, ..figures }),
        Duration::ZERO,
    );
    ledger.hear(first, FromChild::Figures(figures), Duration::ZERO);
    let listing = ledger.listing(Duration::ZERO);
    assert_eq!((listing.sessions.len(), listing.runs, listing.tenants[0].memory), (2, 9, 45));
    assert_eq!((listing.batches, listing.tenants[0].apart), (4, 2));
    let seen = &listing.sessions[0];
    assert_eq!((seen.process, seen.state, seen.memory), (7, SessionState::Running, 5));
    ledger.gone(of_a, Duration::ZERO);
    let listing = ledger.listing(Duration::ZERO);
    assert_eq!((listing.sessions[0].state, listing.batches), (SessionState::Waiting, 4));
}

#[test]
fn a_group_whose_run_does_not_end_is_ended() {
    let mut ledger = ledger(None, &[], false);
    let (stuck, session) = group(&mut ledger, "x");
    ledger.drain_one(session, Duration::ZERO).unwrap();
    assert!(ledger.drain_one(stuck, Duration::ZERO).is_err(), "it is no session");
    ledger.tick(Duration::from_secs(5));
    assert!(matches!(&ledger.ending()[..], [(group, Ending::Because(_))] if *group == stuck));
    ledger.tick(Duration::from_secs(6));
    assert!(ledger.ending().is_empty(), "once");
}

#[test]
fn a_process_of_several_sessions_that_stands_still_is_ended_once() {
    let mut ledger = ledger(None, &[], false);
    let (stands, _) = group(&mut ledger, "x");
    let mut now = Duration::ZERO;
    let ended = loop {
        ledger.tick(now);
        let ended = ledger.ending();
        if !ended.is_empty() {
            break ended;
        }
        now = ledger.wakes_at(now).unwrap();
    };
    assert_eq!(ended, [(stands, Ending::Because("its process does not answer".to_owned()))]);
}
