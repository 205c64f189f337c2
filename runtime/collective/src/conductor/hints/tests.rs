//! Hints at the conductor, by a manual clock.
use super::super::{Conductor, Link, Messages};
use crate::hints::{Counted, Export, Facts, LinkView, Origin, OwnHints, POLICY, Part, View, Way};
use crate::peers::{FromConductor, Key, ToConductor};
use crate::protocol::{Answer, Figures, Question};
use crate::topology::{Host, Priority};
use std::time::Duration;
use tidemill_hints::message::{Aggregate, Entry};
use tidemill_link::remote::Address;

const USER: u32 = 7;

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Two racks of two hosts: a and b in the east, c and d in the west.
const HOSTS: [(Link, &str, &str); 4] =
    [(1, "a", "east"), (2, "b", "east"), (3, "c", "west"), (4, "d", "west")];

struct Site {
    conductor: Conductor,
    now: Duration,
    number: u64,
    /// Bytes per second for each 1 of a rate.
    unit: f64,
}

impl Site {
    fn new(export: Export) -> Self {
        Self::of(export, 1.0)
    }

    fn of(export: Export, unit: f64) -> Self {
        let mut conductor = Conductor::new(|number| format!("{number:x}"));
        conductor.set(ms(0), export);
        let mut site = Self { conductor, now: ms(0), number: 0, unit };
        for (link, name, rack) in HOSTS {
            site.come(link, name, rack, Some([100.0; 2]));
        }
        site
    }

    fn come(&mut self, link: Link, name: &str, rack: &str, rate: Option<[f64; 2]>) -> Messages {
        let host = Host { name: name.into(), rack: rack.into(), ..Host::default() };
        let address = Some(Address::tcp(format!("10.0.0.{link}:1")));
        let out = self.conductor.hear(link, ToConductor::Register { host, address, running: Vec::new() });
        assert!(out.is_empty(), "{out:?}");
        let counted = Counted::Sockets { interface: None };
        let rack_rate = rate.map(|_| [150.0 * self.unit; 2]);
        let rate = rate.map(|rate| rate.map(|rate| rate * self.unit));
        self.conductor.hear(link, ToConductor::Hints(Facts { rate, by_interface: false, rack_rate, counted }))
    }

    fn to(&mut self, now: Duration) {
        self.now = now;
        let export = self.conductor.hints.export;
        self.conductor.set(now, export);
    }

    /// A period: leaders report entries, then it is over.
    fn period(&mut self, racks: &[(Link, u64, Vec<Entry>)]) -> Messages {
        self.to(self.now + ms(100));
        self.number += 1;
        for (leader, rack, entries) in racks {
            let mut entries = entries.clone();
            for entry in &mut entries {
                (entry.used, entry.crossing_used) = (entry.used * self.unit, entry.crossing_used * self.unit);
            }
            let aggregate = Aggregate { rack: *rack, number: self.number, age: ms(60), entries };
            assert!(self.conductor.hear(*leader, ToConductor::Loads(aggregate)).is_empty());
        }
        self.conductor.tick()
    }

    /// A group of these hosts, a rank on each.
    fn group(&mut self, name: &str, links: &[Link]) -> Key {
        let key = Key { user: USER, name: name.into() };
        for (rank, link) in (0..).zip(links) {
            let (size, priority) = (links.len() as u32, Priority::Normal);
            self.conductor.hear(*link, ToConductor::Join { key: key.clone(), rank, size, priority });
        }
        assert!(self.conductor.groups[&key].formed.is_some());
        key
    }

    fn ask(&mut self, user: Option<u32>, question: Question) -> Result<Answer, String> {
        let asks = *self.conductor.hosts.keys().next().unwrap();
        let out = self.conductor.hear(asks, ToConductor::Ask { id: 9, user, question });
        match &out[..] {
            [(_, FromConductor::Answer { id: 9, answer: Answer::Refused(reason) })] => Err(reason.clone()),
            [(_, FromConductor::Answer { id: 9, answer })] => Ok(answer.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn view(&mut self, group: Option<&str>) -> View {
        match self.ask(None, Question::Hints { group: group.map(str::to_owned), flows: 1 }) {
            Ok(Answer::Hints(view)) => *view,
            other => panic!("{other:?}"),
        }
    }

    fn own(&mut self, group: &str, rank: u32) -> Result<OwnHints, String> {
        match self.ask(Some(USER), Question::OwnHints { group: group.into(), rank })? {
            Answer::OwnHints(hints) => Ok(hints),
            other => panic!("{other:?}"),
        }
    }
}

fn entries(machine: u64, up: (f64, f64), crossing: (f64, f64)) -> Vec<Entry> {
    let [(sharers, used), (crossing_sharers, crossing_used)] = [up, crossing];
    let up = Entry { link: 2 * machine, sharers, used, crossing_sharers, crossing_used };
    vec![up, Entry { link: 2 * machine + 1, ..Entry::default() }]
}

/// Nothing passes.
fn idle() -> Vec<Entry> {
    [entries(0, (0.0, 0.0), (0.0, 0.0)), entries(1, (0.0, 0.0), (0.0, 0.0))].concat()
}

fn parts(messages: &Messages) -> Vec<(Link, Part)> {
    let part = |(link, message): &(Link, FromConductor)| match message {
        FromConductor::Hints(part) => Some((*link, (**part).clone())),
        _ => None,
    };
    messages.iter().filter_map(part).collect()
}

fn link<'a>(view: &'a View, host: Option<&str>, rack: &str, way: Way) -> &'a LinkView {
    let is_meant = |link: &&LinkView| link.host.as_deref() == host && link.rack == rack && link.way == way;
    view.links.iter().find(is_meant).expect("its state is known")
}

#[test]
fn the_first_host_of_a_rack_leads_and_the_next_one_follows_it() {
    let mut site = Site::new(Export::Operator);
    let told = parts(&site.come(5, "aa", "east", None));
    assert_eq!(told.iter().map(|(link, _)| *link).collect::<Vec<_>>(), [1, 2, 5], "all of the rack");
    let part = &told[0].1;
    assert_eq!((part.leader.as_deref(), part.rack), (Some("a"), 0));
    assert_eq!(part.address, Some(Address::tcp("10.0.0.1:1")));
    assert_eq!(
        part.machines.iter().map(|(name, number)| (name.as_str(), *number)).collect::<Vec<_>>(),
        [("a", 0), ("aa", 2), ("b", 1)]
    );
    assert_eq!(part.near.len(), 3);
    let told = parts(&site.conductor.lost(1));
    assert_eq!(told.len(), 2);
    assert!(
        told.iter().all(|(_, part)| part.leader.as_deref() == Some("aa") && !part.machines.contains_key("a"))
    );
    // It comes back under its number.
    let told = parts(&site.come(9, "a", "east", None));
    assert!(told.iter().all(|(_, part)| part.leader.as_deref() == Some("a") && part.machines["a"] == 0));
    // One that goes to another rack leaves this one.
    assert!(parts(&site.come(9, "a", "west", None)).iter().all(|(_, part)| part.rack == 1));
    assert_eq!(site.conductor.hints.racks[0].elected().map(|machine| machine.host.as_str()), Some("aa"));
}

#[test]
fn a_host_that_cannot_be_reached_does_not_lead() {
    let mut site = Site::new(Export::Operator);
    let host = Host { name: "0".into(), rack: "east".into(), ..Host::default() };
    site.conductor.hear(6, ToConductor::Register { host, address: None, running: Vec::new() });
    let counted = Counted::Wires { reason: "not allowed".into() };
    let facts = Facts { rate: None, by_interface: false, rack_rate: None, counted };
    let told = parts(&site.conductor.hear(6, ToConductor::Hints(facts)));
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|(_, part)| part.leader.as_deref() == Some("a")));
}

#[test]
fn the_table_has_what_leaders_report_and_where_totals_come_from() {
    let mut site = Site::of(Export::Operator, 1e6);
    site.come(5, "e", "south", None);
    let east = [entries(0, (2.0, 70.0), (1.0, 30.0)), entries(1, (1.0, 20.0), (1.0, 20.0))].concat();
    for _ in 0..12 {
        site.period(&[(1, 0, east.clone()), (5, 2, entries(0, (1.0, 44.0), (1.0, 11.0)))]);
    }
    site.to(site.now + ms(20));
    let view = site.view(None);
    let seen = |link: &LinkView| {
        let mega = |rate: f64| (rate / 1e6).round();
        (
            mega(link.load.total),
            link.total_from,
            mega(link.load.residual),
            link.load.sharers,
            mega(link.estimate),
        )
    };
    assert_eq!(seen(link(&view, Some("a"), "east", Way::Up)), (100.0, Origin::Stated, 30.0, 2.0, 33.0));
    assert_eq!(seen(link(&view, None, "east", Way::Up)), (150.0, Origin::Stated, 100.0, 2.0, 100.0));
    assert_eq!(seen(link(&view, Some("e"), "south", Way::Up)), (44.0, Origin::Learned, 0.0, 1.0, 22.0));
    assert_eq!(link(&view, None, "south", Way::Up).total_from, Origin::Learned);
    assert_eq!(link(&view, Some("e"), "south", Way::Down).total_from, Origin::Assumed);
    let racks: Vec<_> = view.racks.iter().map(|rack| (rack.name.as_str(), rack.age_ms)).collect();
    assert_eq!(racks, [("east", Some(80)), ("west", None), ("south", Some(80))]);
    assert!(view.between_changes_ms.is_some());
    let reports: Vec<bool> = view.hosts.iter().map(|host| host.reports).collect();
    assert_eq!(reports, [true, true, false, false, true]);
    let refused = site.ask(Some(USER), Question::Hints { group: None, flows: 1 });
    assert!(refused.unwrap_err().contains("only root"));
}

#[test]
fn figures_that_are_none_and_those_of_others_are_not_believed() {
    let mut site = Site::new(Export::Operator);
    let wrong = vec![Entry { used: -5.0, ..Entry::default() }];
    site.period(&[(1, 0, wrong), (2, 1, idle())]);
    assert!(site.view(None).links.is_empty(), "b does not lead the west");
    let beyond = vec![Entry { link: 40, ..Entry::default() }];
    site.period(&[(1, 0, beyond)]);
    assert!(site.view(None).links.is_empty());
    site.period(&[(1, 0, idle())]);
    assert_eq!(site.view(None).links.len(), 6);
}

#[test]
fn another_leader_is_believed_at_once() {
    let mut site = Site::new(Export::Operator);
    for _ in 0..30 {
        site.period(&[(1, 0, idle()), (3, 1, idle())]);
    }
    site.conductor.lost(1);
    site.number = 0;
    let busy = entries(1, (3.0, 60.0), (0.0, 0.0));
    site.period(&[(2, 0, busy)]);
    let view = site.view(None);
    assert_eq!(link(&view, Some("b"), "east", Way::Up).load.residual, 40.0);
    assert_eq!(view.racks[0].leader.as_deref(), Some("b"));
}

#[test]
fn decisions_follow_the_hints_of_the_group() {
    let mut site = Site::new(Export::Operator);
    let key = site.group("training", &[1, 2, 3]);
    let decision = |site: &mut Site| site.view(Some("training")).groups[0].decision.clone();
    site.period(&[(1, 0, idle())]);
    assert_eq!(decision(&mut site), "defaults: nothing is heard of the leader of rack \"west\"");
    site.period(&[(1, 0, idle()), (3, 1, idle())]);
    assert!(decision(&mut site).starts_with("topology only: "), "{}", decision(&mut site));
    assert_eq!(
        site.conductor.hints.loads(&key).map(|loads| loads.rates),
        Some([vec![100.0; 6], vec![150.0; 4]].concat())
    );
    for _ in 0..30 {
        let busy = [entries(0, (4.0, 90.0), (4.0, 90.0)), entries(1, (0.0, 0.0), (0.0, 0.0))].concat();
        site.period(&[(1, 0, busy), (3, 1, idle())]);
    }
    assert!(decision(&mut site).starts_with("topology and loads: "), "{}", decision(&mut site));
    let loads = site.conductor.hints.loads(&key).expect("they are known");
    let tree: Vec<(&str, &str)> =
        loads.tree.iter().map(|(host, rack)| (host.as_str(), rack.as_str())).collect();
    assert_eq!(tree, [("a", "east"), ("b", "east"), ("c", "west")]);
    // Up and down of a, b and c, then of both racks.
    assert_eq!(loads.rates, [20.0, 100.0, 100.0, 100.0, 100.0, 100.0, 60.0, 150.0, 150.0, 150.0]);
    // The leader of the west goes silent, and no other host is there.
    for _ in 0..12 {
        site.period(&[(1, 0, idle())]);
    }
    assert_eq!(decision(&mut site), "defaults: nothing is heard of the leader of rack \"west\"");
    let loads = site.conductor.hints.loads(&key).expect("it says why");
    assert_eq!((loads.rates, loads.decision.to_string()), (Vec::new(), decision(&mut site)));
    site.conductor.lost(3);
    site.period(&[(1, 0, idle())]);
    assert_eq!(decision(&mut site), "defaults: host c does not count its traffic");
    assert!(site.ask(None, Question::Hints { group: Some("other".into()), flows: 1 }).is_err());
}

#[test]
fn the_own_traffic_of_a_group_is_taken_out() {
    let mut site = Site::new(Export::Operator);
    let key = site.group("training", &[1, 3]);
    // A ring of two sends the buffer once in each direction: 40 bytes per second, all the time.
    let east = entries(0, (1.5, 60.0), (1.5, 60.0));
    for tick in 1..=40_u64 {
        if tick.is_multiple_of(10) {
            let figures = Figures {
                operations: tick,
                bytes: 4 * tick,
                busy_us: 100_000 * tick,
                epoch: 1,
                ..Figures::default()
            };
            site.conductor.hear(1, ToConductor::Figures { key: key.clone(), figures, trace: Vec::new() });
        }
        site.period(&[(1, 0, [east.clone(), idle()[2..].to_vec()].concat()), (3, 1, idle())]);
    }
    let loads = site.conductor.hints.loads(&key).expect("they are known");
    assert!((loads.rates[0] - 80.0).abs() < 1.0, "100 less the 20 of others: {loads:?}");
    let view = site.view(Some("training"));
    assert_eq!(link(&view, Some("a"), "east", Way::Up).load.residual, 40.0, "the table has everything");
}

#[test]
fn programs_get_numbers_of_their_own_links_where_the_operator_wants_that() {
    let mut kept = Site::new(Export::Operator);
    kept.group("training", &[1, 3]);
    kept.period(&[(1, 0, idle()), (3, 1, idle())]);
    assert!(kept.own("training", 0).unwrap_err().contains("--export-hints tenant"));

    let answer = |east: Vec<Entry>, south: Vec<Entry>| {
        let mut site = Site::new(Export::Tenant);
        site.come(5, "s1", "south", Some([100.0; 2]));
        site.come(6, "s2", "south", Some([100.0; 2]));
        site.group("training", &[3, 1]);
        site.group("others", &[5, 6]);
        for _ in 0..5 {
            site.period(&[(1, 0, east.clone()), (3, 1, idle()), (5, 2, south.clone())]);
        }
        let own = site.own("7/training", 1).expect("it may");
        let text = serde_json::to_string(&own).expect("it is JSON");
        (own, text)
    };
    let busy = [entries(0, (1.0, 33.0), (1.0, 33.0)), entries(1, (0.0, 0.0), (0.0, 0.0))].concat();
    let (own, before) = answer(busy.clone(), idle());
    assert_eq!((&own.racks[..], own.machines[&0], own.machines[&1]), (&[0, 1][..], 0, 1));
    assert_eq!(own.links[2].residual, 67.0, "machine 1, up");
    let hints = own.hints().expect("it fits");
    assert_eq!((hints.tree.machines(), hints.loads.len()), (2, 8));
    for name in ["east", "west", "\"a\"", "\"c\"", "10.0.0"] {
        assert!(!before.contains(name), "{name} in {before}");
    }
    // Others move in a rack that the group does not use: not a byte differs.
    let (_, after) =
        answer(busy, [entries(0, (9.0, 95.0), (3.0, 70.0)), entries(1, (2.0, 10.0), (2.0, 10.0))].concat());
    assert_eq!(before, after);
    let (_, other) = answer(idle(), idle());
    assert_ne!(before, other);
}

#[test]
fn programs_that_ask_too_often_or_for_others_are_refused() {
    let mut site = Site::new(Export::Tenant);
    site.group("training", &[1, 3]);
    site.period(&[(1, 0, idle()), (3, 1, idle())]);
    assert!(site.own("training", 0).is_ok());
    site.to(site.now + ms(49));
    let refused = site.own("training", 0).unwrap_err();
    assert!(refused.contains("49ms ago") && refused.contains("at least 50ms"), "{refused}");
    assert!(site.own("training", 1).is_ok(), "each rank has its own time");
    site.to(site.now + ms(1));
    assert!(site.own("training", 0).is_ok());
    assert!(site.own("training", 2).unwrap_err().contains("no rank 2"));
    let other = site.ask(Some(USER + 1), Question::OwnHints { group: "7/training".into(), rank: 0 });
    assert!(other.unwrap_err().contains("no group"));
    // A machine that is silent is a number.
    site.conductor.lost(3);
    site.to(site.now + ms(50));
    assert_eq!(site.own("training", 0), Err("machine 1 of the group does not count its traffic".into()));
}

/// Lets a group be planned from hints.
fn plan_from_hints(site: &mut Site, key: &Key) {
    let question = Question::Strategy { group: key.to_string(), strategy: POLICY.into() };
    let out = site.conductor.hear(1, ToConductor::Ask { id: 9, user: None, question });
    let done = |(_, message): &(Link, FromConductor)| {
        matches!(message, FromConductor::Answer { answer: Answer::Done(_), .. })
    };
    assert!(out.iter().any(done), "{out:?}");
}

fn orders(messages: &Messages) -> usize {
    messages.iter().filter(|(_, message)| matches!(message, FromConductor::Order { .. })).count()
}

/// The uplink of b is as good as full.
fn full() -> Vec<Entry> {
    [entries(0, (0.0, 0.0), (0.0, 0.0)), entries(1, (9.0, 99.0), (0.0, 0.0))].concat()
}

#[test]
fn a_group_is_planned_anew_where_that_is_worth_it_and_no_more_often() {
    let mut site = Site::of(Export::Operator, 1e7);
    let key = site.group("training", &[1, 2, 3, 4]);
    plan_from_hints(&mut site, &key);
    let epoch = |site: &Site| site.conductor.groups[&key].strategy.as_ref().map(|strategy| strategy.epoch);
    for _ in 0..30 {
        site.period(&[(1, 0, idle()), (3, 1, idle())]);
    }
    let (settled, note) = (epoch(&site), site.view(Some("training")).groups[0].note.clone());
    assert!(note.starts_with("kept"), "{note}");
    // A rate that hardly differs is no reason.
    let hardly = [entries(0, (1.0, 8.0), (1.0, 8.0)), entries(1, (0.0, 0.0), (0.0, 0.0))].concat();
    for _ in 0..10 {
        assert_eq!(orders(&site.period(&[(1, 0, hardly.clone()), (3, 1, idle())])), 0);
    }
    let mut changed = Vec::new();
    for tick in 0..60 {
        // The link is full for 3 s, free for 3 s.
        let east = if tick < 30 { full() } else { idle() };
        if orders(&site.period(&[(1, 0, east), (3, 1, idle())])) > 0 {
            changed.push(tick);
        }
    }
    assert!(!changed.is_empty() && changed[0] < 30, "it goes around the full link: {changed:?}");
    assert!(changed.windows(2).all(|two| two[1] - two[0] >= 5), "a change pays in 500 ms: {changed:?}");
    let view = site.view(Some("training"));
    assert_eq!((view.groups[0].policy.as_str(), view.groups[0].replans), ("hints", changed.len() as u64));
    assert!(epoch(&site) > settled);
}

#[test]
fn a_source_that_dies_leads_back_to_the_defaults() {
    let mut site = Site::of(Export::Operator, 1e7);
    let key = site.group("training", &[1, 2, 3, 4]);
    plan_from_hints(&mut site, &key);
    for _ in 0..40 {
        site.period(&[(1, 0, full()), (3, 1, idle())]);
    }
    let strategy = |site: &Site| site.conductor.groups[&key].strategy.clone();
    let by_hints = strategy(&site);
    assert!(site.view(Some("training")).groups[0].replans > 0);
    let mut ordered = 0;
    for _ in 0..20 {
        ordered += orders(&site.period(&[(1, 0, full())]));
    }
    assert_eq!(ordered, 4, "one order for each host");
    let group = site.view(Some("training")).groups[0].clone();
    // They are too old a moment before the leader counts as silent.
    assert_eq!(group.note, "made anew without hints (defaults: the last hints are 1060 ms old)");
    assert_eq!(group.decision, "defaults: nothing is heard of the leader of rack \"west\"");
    let by_defaults = strategy(&site);
    assert_ne!(by_hints.map(|of| of.all_reduce), by_defaults.map(|of| of.all_reduce));
}

#[test]
fn the_reason_is_that_of_the_plan_in_force() {
    let mut site = Site::of(Export::Operator, 1e7);
    let key = site.group("training", &[1, 2, 3, 4]);
    plan_from_hints(&mut site, &key);
    let reason = |site: &Site| site.conductor.groups[&key].explained.reasons[0].clone();
    assert!(reason(&site).starts_with("as ffa: "), "{}", reason(&site));
    for _ in 0..30 {
        site.period(&[(1, 0, idle()), (3, 1, idle())]);
    }
    // The same rings, for another reason.
    let note = site.view(Some("training")).groups[0].note.clone();
    assert!(note.starts_with("kept"), "{note}");
    assert!(reason(&site).contains("topology "), "{} after {note}", reason(&site));
    let mut replans = 0;
    for _ in 0..30 {
        site.period(&[(1, 0, full()), (3, 1, idle())]);
        let group = site.view(Some("training")).groups[0].clone();
        if group.replans > replans {
            replans = group.replans;
            // The decision of `net hints` is the one that the plan was made from.
            assert!(reason(&site).starts_with(&group.decision), "{} for {}", reason(&site), group.decision);
        }
    }
    assert!(replans > 0);
    for _ in 0..20 {
        site.period(&[(1, 0, full())]);
    }
    assert!(reason(&site).starts_with("as ffa: the last hints are"), "{}", reason(&site));
}

#[test]
fn a_change_counts_as_long_as_it_takes() {
    let mut site = Site::of(Export::Operator, 1e7);
    let key = site.group("training", &[1, 3]);
    for _ in 0..3 {
        site.period(&[(1, 0, idle()), (3, 1, idle())]);
    }
    plan_from_hints(&mut site, &key);
    let epoch = site.conductor.groups[&key].strategy.as_ref().unwrap().epoch;
    for (link, after) in [(1, 100), (3, 240)] {
        assert_eq!(site.conductor.hints.switching, None, "not all hosts have it");
        site.to(ms(300 + after));
        let figures = Figures { epoch, ..Figures::default() };
        site.conductor.hear(link, ToConductor::Figures { key: key.clone(), figures, trace: Vec::new() });
    }
    assert_eq!(site.conductor.hints.switching, Some(ms(240)));
    site.period(&[(1, 0, idle()), (3, 1, idle())]);
    // 150 ms of age, 240 ms for the change, and ten times that for its use.
    let decision = site.view(Some("training")).groups[0].decision.clone();
    assert!(decision.contains("hints are up to 2790 ms old"), "{decision}");
}
