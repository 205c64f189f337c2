//! Admission, memory and ends, without processes.
use super::super::tenants::Tenants;
use super::*;
use crate::call::VERSION;

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
    let _ = (admit(&mut ledger, "a"), admit(&mut ledger, "a"));
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
    assert!(matches!(&ledger.outgoing()[..], [(to, ToChild::End(_))] if *to == second));
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
    assert_eq!((asked, reason.as_str()), (UNANSWERED, "its process does not answer"));
    ledger.gone(stands, now);
    ledger.tick(now + ASKS);
    assert_eq!(ledger.outgoing(), [(computes, ToChild::Report)]);
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
