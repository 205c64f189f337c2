//! Two groups that compute and send by turns over one link, by a manual clock.
use super::*;
use crate::policies::ts::Span;

/// Microseconds of a step of the clock.
const STEP_US: u64 = 100;

/// A program that computes and sends, again and again. Times are of a link that it has alone.
struct Program {
    name: &'static str,
    links: [Link; 2],
    compute_us: u64,
    send_us: u64,
    /// Until when it computes; none: it sends.
    computes_until: Option<u64>,
    begun_us: u64,
    left_us: f64,
    spans: Vec<Span>,
}

impl Program {
    fn new(name: &'static str, links: [Link; 2], compute_us: u64, send_us: u64) -> Self {
        let (computes_until, spans) = (Some(compute_us), Vec::new());
        Self { name, links, compute_us, send_us, computes_until, begun_us: 0, left_us: 0.0, spans }
    }

    fn key(&self) -> Key {
        Key { user: 7, name: self.name.to_owned() }
    }

    /// The time that operations took, from this one on.
    fn took(&self, since_us: u64) -> Vec<u64> {
        let after = self.spans.iter().filter(|span| span.start_us >= since_us);
        after.map(|span| span.end_us - span.start_us).collect()
    }
}

/// Lets programs run for a time, from the time on that the clock shows. The link is divided evenly among those that send.
fn run(conductor: &mut Conductor, programs: &mut [Program; 2], clock: &mut u64, seconds: u64) {
    let end = *clock + seconds * 1_000_000;
    while *clock < end {
        let now = *clock;
        let strategies =
            programs.each_ref().map(|one| conductor.groups[&one.key()].strategy.clone().unwrap());
        let mut sends = [false, false];
        for (at, one) in programs.iter_mut().enumerate() {
            if one.computes_until.is_some_and(|until| now >= until) {
                (one.computes_until, one.begun_us, one.left_us) = (None, now, one.send_us as f64);
            }
            let windows = strategies[at].windows.as_ref();
            sends[at] =
                one.computes_until.is_none() && windows.is_none_or(|windows| windows.closed_for(now) == 0);
        }
        // One that yields shares its hosts with the other.
        let busy = programs.each_ref().map(|one| (one.key().to_string(), one.computes_until.is_none()));
        for (at, strategy) in strategies.iter().enumerate() {
            let is_first = |(name, is_busy): &(String, bool)| *is_busy && strategy.yields.contains(name);
            sends[at] &= !busy.iter().any(is_first);
        }
        let part = 1.0 / sends.iter().filter(|sends| **sends).count().max(1) as f64;
        *clock += STEP_US;
        for (at, one) in programs.iter_mut().enumerate().filter(|(at, _)| sends[*at]) {
            one.left_us -= STEP_US as f64 * part;
            if one.left_us <= 0.0 {
                one.spans.push(Span { start_us: one.begun_us, end_us: *clock });
                // Nothing takes exactly as long each time.
                let more = (one.spans.len() as u64 * 7919 + at as u64) % 400;
                one.computes_until = Some(*clock + one.compute_us + more);
            }
        }
        if clock.is_multiple_of(1_000_000) {
            conductor.set(Duration::from_micros(*clock), Export::default());
            for one in programs.iter() {
                let epoch = conductor.groups[&one.key()].strategy.as_ref().map_or(0, |of| of.epoch);
                let figures = Figures { operations: one.spans.len() as u64, epoch, ..Figures::default() };
                for link in one.links {
                    let trace = one.spans[one.spans.len().saturating_sub(512)..].to_vec();
                    conductor.hear(link, ToConductor::Figures { key: one.key(), figures, trace });
                }
            }
        }
    }
}

/// Two racks with one link between them; the first group goes first.
fn site(first: [Link; 2], other: [Link; 2]) -> (Conductor, [Program; 2]) {
    let mut conductor = Conductor::new(token);
    for link in 1..=4 {
        let rack = format!("rack{}", link % 2);
        let host = Host { name: format!("h{link}"), rack, ..Host::default() };
        let address = Some(Address::tcp(format!("10.0.0.{link}:1")));
        conductor.hear(link, ToConductor::Register { host, address, running: Vec::new() });
    }
    let programs =
        [Program::new("first", first, 180_000, 120_000), Program::new("other", other, 5_000, 20_000)];
    for (one, priority) in programs.iter().zip([Priority::High, Priority::Bulk]) {
        for (rank, link) in (0..).zip(one.links) {
            conductor.hear(link, ToConductor::Join { key: one.key(), rank, size: 2, priority });
        }
        assert!(conductor.groups[&one.key()].formed.is_some());
    }
    (conductor, programs)
}

fn order(conductor: &mut Conductor, programs: &[Program; 2], name: &str) {
    for one in programs {
        let question = Question::Strategy { group: one.key().to_string(), strategy: name.into() };
        let out = conductor.hear(1, ToConductor::Ask { id: 1, user: None, question });
        let is_done = |(_, message): &(Link, FromConductor)| {
            matches!(message, FromConductor::Answer { answer: Answer::Done(_), .. })
        };
        assert!(out.iter().any(is_done), "{out:?}");
    }
}

fn mean(values: &[u64]) -> f64 {
    values.iter().sum::<u64>() as f64 / values.len() as f64
}

/// Compares times with `pfa` and with `ts`.
fn compare((mut conductor, mut programs): (Conductor, [Program; 2])) -> Conductor {
    let mut clock = 0;
    order(&mut conductor, &programs, "pfa");
    run(&mut conductor, &mut programs, &mut clock, 10);
    let beside = mean(&programs[0].took(0));
    assert!(beside > 1.5 * 120_000.0, "without windows they share the link: {beside}");
    order(&mut conductor, &programs, "ts");
    run(&mut conductor, &mut programs, &mut clock, 10);
    let settled = clock;
    run(&mut conductor, &mut programs, &mut clock, 20);
    let first = mean(&programs[0].took(settled));
    assert!(first < 1.03 * 120_000.0, "the group that goes first does not wait: {first}");
    // The first one computes in 180 ms of 300 ms. Alone, the other one would do an operation each 25 ms.
    let done = programs[1].took(settled).len() as f64;
    let gaps = 20e6 * 0.6 / 25_200.0;
    assert!(done > 0.85 * gaps && done < 1.15 * gaps, "{done} operations in gaps for {gaps}");
    conductor
}

#[test]
fn a_group_on_other_hosts_fills_the_gaps_by_windows() {
    // Both cross from one rack to the other, at hosts of their own.
    let conductor = compare(site([1, 2], [3, 4]));
    let other = &conductor.groups[&Key { user: 7, name: "other".to_owned() }];
    let strategy = other.strategy.as_ref().unwrap();
    let windows = strategy.windows.as_ref().expect("windows open");
    assert!(windows.period_us.abs_diff(300_200) < 2_000 && strategy.yields.is_empty(), "{strategy:?}");
    assert!(
        other.explained.reasons[0].contains("sends in the gaps of 7/first, each 300"),
        "{other:?}",
        other = other.explained
    );
}

#[test]
fn a_group_on_the_same_hosts_fills_the_gaps_by_yielding() {
    let conductor = compare(site([1, 2], [1, 2]));
    let strategy = conductor.groups[&Key { user: 7, name: "other".to_owned() }].strategy.clone().unwrap();
    assert_eq!((strategy.windows, strategy.yields), (None, vec!["7/first".to_owned()]));
}

#[test]
fn a_group_that_stops_holds_nobody_back() {
    let (mut conductor, mut programs) = site([1, 2], [3, 4]);
    let mut clock = 0;
    order(&mut conductor, &programs, "ts");
    run(&mut conductor, &mut programs, &mut clock, 10);
    let windows = |conductor: &Conductor| {
        conductor.groups[&Key { user: 7, name: "other".to_owned() }].strategy.clone().unwrap().windows
    };
    assert!(windows(&conductor).is_some());
    for second in 11..15 {
        conductor.set(Duration::from_secs(second), Export::default());
        let key = programs[1].key();
        let epoch = conductor.groups[&key].strategy.as_ref().map_or(0, |of| of.epoch);
        let figures = Figures { operations: second, epoch, ..Figures::default() };
        for link in [3, 4] {
            let (key, trace) = (key.clone(), programs[1].spans.clone());
            conductor.hear(link, ToConductor::Figures { key, figures, trace });
        }
    }
    assert_eq!(windows(&conductor), None);
}

#[test]
fn figures_of_the_last_minute_are_beside_those_of_the_life() {
    let (mut conductor, programs) = site([1, 2], [3, 4]);
    let key = programs[0].key();
    let view = |conductor: &Conductor| conductor.groups[&key].view(&key, conductor.now);
    for second in 0..200 {
        conductor.set(Duration::from_secs(second), Export::default());
        // It is twice as quick after 100 s.
        let operations = if second < 100 { second } else { 2 * second - 100 };
        let figures =
            Figures { operations, bytes: 8 * operations, busy_us: 5 * second, ..Figures::default() };
        conductor.hear(1, ToConductor::Figures { key: programs[0].key(), figures, trace: Vec::new() });
        if second == 10 {
            let minute = view(&conductor).minute;
            assert_eq!((minute.over_us, minute.operations), (10_000_000, 10), "it is no minute old");
        }
    }
    let seen = view(&conductor);
    let seconds = seen.minute.over_us / 1_000_000;
    assert!((60..=65).contains(&seconds), "{seconds}");
    let minute = (seen.minute.operations, seen.minute.bytes, seen.minute.busy_us);
    assert_eq!(minute, (2 * seconds, 16 * seconds, 5 * seconds));
    assert_eq!(seen.figures.operations, 298);
    // It does nothing any more: the minute is empty, its life is not.
    conductor.set(Duration::from_secs(300), Export::default());
    assert_eq!(view(&conductor).minute.operations, 0);
}
