use super::*;

const MEGABIT: f64 = 1e6;

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn others(flows: f64, yields: f64, stays: f64) -> OtherLoad {
    OtherLoad { flows, yields: yields * MEGABIT, stays: stays * MEGABIT }
}

fn streams(pairs: usize, megabits: f64, is_waited_for: bool) -> Streams {
    Streams { pairs, sent: Sent { bits_per_second: megabits * MEGABIT, is_waited_for } }
}

/// A link of which one load follows another, twice a second, from 0 on. Each has its seconds.
fn link(loads: &[(OtherLoad, u64)]) -> (LinkHistory, Duration) {
    let (mut history, mut now) = (LinkHistory::default(), Duration::ZERO);
    for (load, seconds) in loads {
        for _ in 0..2 * seconds {
            history.sees(Ok(*load), now);
            now += ms(500);
        }
    }
    (history, now - ms(500))
}

/// On a link of so many Mbit/s, for a plan that is used for half a minute.
fn hint(
    history: &LinkHistory,
    megabits: f64,
    own: usize,
    runs: &Streams,
    now: Duration,
) -> Result<Hint, String> {
    history.hint(megabits * MEGABIT, &streams(own, 0.0, false), runs, Duration::from_secs(30), now)
}

fn megabits(found: &Hint) -> f64 {
    (found.bits_per_second / MEGABIT * 1e3).round() / 1e3
}

#[test]
fn three_flows_beside_seven_get_three_tenths() {
    let (history, now) = link(&[(others(7.0, 100e3, 0.0), 60)]);
    let found = hint(&history, 100e3, 3, &Streams::default(), now).unwrap();
    assert_eq!(megabits(&found), 30e3, "30 Gbit/s of 100");
    // By tenant the seven are three, and the three are one.
    let (history, now) = link(&[(others(3.0, 100e3, 0.0), 60)]);
    assert_eq!(megabits(&hint(&history, 100e3, 1, &Streams::default(), now).unwrap()), 25e3);
}

#[test]
fn what_others_leave_is_the_rate_where_it_is_more_than_a_share() {
    let (history, now) = link(&[(others(3.0, 7.5, 0.0), 60)]);
    let found = hint(&history, 10.0, 1, &Streams::default(), now).unwrap();
    assert_eq!(megabits(&found), 2.5, "three flows take 75 %");
    // As much that is not TCP leaves no more than the rest, however few its flows are.
    let (history, now) = link(&[(others(0.0, 0.0, 7.5), 60)]);
    assert_eq!(megabits(&hint(&history, 10.0, 1, &Streams::default(), now).unwrap()), 2.5);
    // One flow gives way up to one half.
    let (history, now) = link(&[(others(1.0, 7.5, 0.0), 60)]);
    assert_eq!(megabits(&hint(&history, 10.0, 1, &Streams::default(), now).unwrap()), 5.0);
    // Streams of other runs are others, too.
    let (history, now) = link(&[(others(0.0, 0.0, 0.0), 60)]);
    assert_eq!(megabits(&hint(&history, 10.0, 1, &streams(1, 4.0, false), now).unwrap()), 6.0);
}

#[test]
fn hints_are_used_while_the_load_stays_longer_than_a_plan() {
    let (quiet, busy) = (others(0.0, 0.0, 0.0), others(3.0, 7.5, 0.0));
    let verdict = |loads: &[(OtherLoad, u64)]| {
        let (history, now) = link(loads);
        hint(&history, 10.0, 1, &Streams::default(), now).unwrap().verdict
    };
    let early = verdict(&[(quiet, 10)]).unwrap_err();
    assert!(early.contains("not less than the 8000 ms between changes"), "{early}");
    let late = verdict(&[(quiet, 60)]).unwrap();
    assert!(late.starts_with("hints are up to 33"), "{late}");
    assert!(verdict(&[(quiet, 60), (busy, 20)]).is_err(), "it has just changed");
    assert!(verdict(&[(quiet, 60), (busy, 60)]).is_ok());
    let restless: Vec<(OtherLoad, u64)> = (0..20).flat_map(|_| [(quiet, 4), (busy, 4)]).collect();
    assert!(verdict(&restless).is_err(), "it changes each 4 s");
}

#[test]
fn the_last_seconds_count() {
    let (history, now) = link(&[(others(0.0, 0.0, 0.0), 60), (others(3.0, 7.5, 0.0), 5)]);
    let found = hint(&history, 10.0, 1, &Streams::default(), now).unwrap();
    assert_eq!((megabits(&found), found.load.sharers), (2.5, 3.0));
    assert_eq!(found.age, ms(250) + ms(2_250));
    let found = hint(&history, 10.0, 1, &Streams::default(), now + ms(1_500)).unwrap();
    assert_eq!(found.age, ms(4_000));
}

/// The agents stop to count: the probe is used, with the reason, then the nominal rate where there is no probe.
#[test]
fn the_probe_is_used_once_hints_stop() {
    let (mut history, mut now) = link(&[(others(3.0, 7.5, 0.0), 60)]);
    let probe = Some((4.0 * MEGABIT, RateSource::Probe));
    let chosen = |history: &LinkHistory, now, probe| {
        choose(Some(10.0 * MEGABIT), &hint(history, 10.0, 1, &Streams::default(), now), probe)
    };
    let found = chosen(&history, now, probe);
    assert_eq!((found.bits_per_second, found.by), (Some(2.5 * MEGABIT), Some(RateSource::Hint)));
    assert!(found.why.starts_with("others use 7.5Mbps in 3.0 flows, hints are up to"), "{}", found.why);
    now += ms(3_000);
    history.sees(Err("worker edge last reported its traffic 3 s ago".into()), now);
    let found = chosen(&history, now, probe);
    assert_eq!((found.bits_per_second, found.by), (Some(4.0 * MEGABIT), Some(RateSource::Probe)));
    assert_eq!(found.why, "worker edge last reported its traffic 3 s ago");
    let found = chosen(&history, now, None);
    assert_eq!((found.bits_per_second, found.by), (Some(10.0 * MEGABIT), Some(RateSource::Nominal)));
    assert!(found.why.ends_with("3 s ago, and it is not probed yet"), "{}", found.why);
    let found = choose(None, &Err("unknown".into()), None);
    assert_eq!((found.bits_per_second, found.by), (None, None));
    // They come back, and the link was quiet all the time.
    history.sees(Ok(others(3.0, 7.5, 0.0)), now + ms(500));
    assert_eq!(chosen(&history, now + ms(500), probe).by, Some(RateSource::Hint));
}

#[test]
fn hints_that_streams_contradict_are_not_used() {
    let (mut history, mut now) = link(&[(others(0.0, 0.0, 0.0), 60)]);
    let mut looks = |history: &mut LinkHistory, count: u32, streams: Streams| {
        for _ in 0..count {
            now += ms(500);
            history.sees(Ok(others(0.0, 0.0, 0.0)), now);
            let found = hint(history, 10.0, 1, &Streams::default(), now).unwrap();
            history.compares(Some(&found), &streams, now);
        }
        hint(history, 10.0, 1, &Streams::default(), now).unwrap().verdict
    };
    // A machine without an agent uses the link: streams wait, and get 4 of 10 Mbit/s.
    assert!(looks(&mut history, 20, streams(1, 4.0, false)).is_ok(), "they send no more, but do not wait");
    assert!(looks(&mut history, LOOKS - 1, streams(1, 4.0, true)).is_ok());
    let why = looks(&mut history, 1, streams(1, 4.0, true)).unwrap_err();
    assert_eq!(why, "streams of runs get 4Mbps instead of the 10Mbps that follow from traffic");
    assert!(
        looks(&mut history, 100, streams(1, 4.0, false)).is_err(),
        "it stays so until something else is seen"
    );
    assert!(
        looks(&mut history, 1, streams(1, 9.0, true)).is_ok(),
        "as fast as they can, and as much as was said"
    );
    let why = looks(&mut history, LOOKS, streams(1, 14.0, false)).unwrap_err();
    assert!(why.starts_with("streams of runs get 14Mbps"), "{why}");
    assert!(looks(&mut history, 605, Streams::default()).is_ok(), "tried again after 5min");
}

#[test]
fn rates_have_three_digits() {
    let all = [0.0, 12.0, 2_500_000.0, 1_234_567.0, 98_765_432_100.0].map(rate);
    assert_eq!(all[2..], ["2.5Mbps", "1.23Mbps", "98.8Gbps"]);
}
