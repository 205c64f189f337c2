use super::*;
use crate::api::{FlowRate, LinkMeasurement, PeerTraffic, RateSource, TrafficReport};
use crate::controller::measured_links::{RunTraffic, Sent};
use crate::controller::{Controller, ControllerOptions};
use crate::facts::WorkerFacts;
use history::Chosen;

const FILE: &str = "version: 1\nname: two\ntiers:\n\
    - {id: edge, workers: [{type: small, price: 0.02 $/h, names: [north]}]}\n\
    - {id: cloud, workers: [{type: large, price: 0.5 $/h, names: [big]}]}\n\
    links: [{from: edge, to: cloud, price: 0.1 $/GiB, bandwidth: 10Mbps, direction: both}]\n";

const MEGABIT: f64 = 1e6;

fn place(tier: &str) -> Place {
    (Some(tier.to_owned()), None)
}

fn file() -> Infrastructure {
    Infrastructure::parse(FILE, "two.yaml").unwrap()
}

/// Traffic of a machine with the world, in so many flows, megabits per second each way.
fn report(flows: f64, sent: f64, received: f64) -> TrafficReport {
    let rate = |megabits: f64| FlowRate { flows, bytes_per_second: (megabits * MEGABIT / 8.0) as u64 };
    let peers = vec![PeerTraffic { peer: None, is_near: false, sent: rate(sent), received: rate(received) }];
    TrafficReport { milliseconds: 500, peers, ..TrafficReport::default() }
}

/// A cluster of two workers whose time passes by hand.
struct Cluster {
    hints: LinkHints,
    places: BTreeMap<String, Place>,
    traffic: Traffic,
    now: Duration,
}

impl Cluster {
    fn new() -> Self {
        let places = [("north", "edge"), ("big", "cloud")];
        let places: BTreeMap<_, _> =
            places.into_iter().map(|(name, tier)| (name.to_owned(), place(tier))).collect();
        let mut hints = LinkHints::new();
        hints.files.insert("digest".into(), Some(Arc::new(Nominal::of(&file()))));
        Self { hints, places, traffic: Traffic::default(), now: Duration::ZERO }
    }

    /// Streams of runs from north to big.
    fn runs_send(&mut self, all: &[(&str, f64, bool)]) {
        let all = all.iter().map(|(run, megabits, is_waited_for)| RunTraffic {
            run: (*run).to_owned(),
            from: "north".into(),
            to: "big".into(),
            sent: Sent { bits_per_second: megabits * MEGABIT, is_waited_for: *is_waited_for },
        });
        self.traffic = Traffic::new(all.collect(), self.places.clone());
    }

    fn passes(&mut self, seconds: u32, report: Option<&TrafficReport>, silent: Duration) {
        let ways = [("north".to_owned(), "big".to_owned()), ("big".to_owned(), "north".to_owned())].into();
        for _ in 0..2 * seconds {
            self.now += Duration::from_millis(500);
            let machine = |name: &str, report: Option<TrafficReport>| Machine {
                name: name.to_owned(),
                place: self.places[name].clone(),
                addresses: BTreeSet::new(),
                report,
                silent,
            };
            let machines = Machines::of(vec![machine("north", report.cloned()), machine("big", None)]);
            let used = Duration::from_secs(30);
            self.hints.look(&machines, &ways, &self.places, &self.traffic, used, self.now);
        }
    }

    fn chosen(&self, from: &str, to: &str, run: Option<&str>) -> Chosen {
        let (one, other) = (&self.places[from], &self.places[to]);
        let of = |of: &str| run != Some(of);
        let (others, own) =
            (self.traffic.streams(one, other, of), self.traffic.streams(one, other, |name| !of(name)));
        let history = &self.hints.links[&(one.clone(), other.clone())];
        let hint = history.hint(10.0 * MEGABIT, &own, &others, Duration::from_secs(30), self.now);
        choose(Some(10.0 * MEGABIT), &hint, Some((9.0 * MEGABIT, RateSource::Probe)))
    }
}

fn near(chosen: &Chosen, megabits: f64) {
    let found = chosen.bits_per_second.unwrap_or_default() / MEGABIT;
    assert!((found / megabits - 1.0).abs() < 0.1, "{found} instead of {megabits}: {chosen:?}");
    assert_eq!(chosen.by, Some(RateSource::Hint), "{chosen:?}");
}

#[test]
fn a_link_of_which_others_take_three_quarters_has_a_quarter_left() {
    let mut cluster = Cluster::new();
    cluster.runs_send(&[("night", 1.0, false)]);
    cluster.passes(60, Some(&report(0.0, 0.0, 0.0)), Duration::ZERO);
    near(&cluster.chosen("north", "big", Some("night")), 10.0);
    assert!(cluster.hints.shown.contains(&("north".into(), "big".into())), "no probe is needed");
    cluster.passes(60, Some(&report(3.0, 7.5, 0.5)), Duration::ZERO);
    near(&cluster.chosen("north", "big", Some("night")), 2.5);
    near(&cluster.chosen("big", "north", Some("night")), 9.5);
    // A run that is planned beside it leaves its 1 Mbit/s, and shares fairly.
    near(&cluster.chosen("north", "big", None), 2.0);
    // The agent ends: the probe is used, and probes are sent again.
    cluster.passes(2, Some(&report(3.0, 7.5, 0.5)), Duration::from_secs(9));
    let found = cluster.chosen("north", "big", Some("night"));
    assert_eq!((found.bits_per_second, found.by), (Some(9.0 * MEGABIT), Some(RateSource::Probe)));
    assert_eq!(found.why, "worker north last reported its traffic 9 s ago");
    assert!(cluster.hints.shown.is_empty());
}

#[test]
fn probes_are_sent_again_where_streams_get_less() {
    let mut cluster = Cluster::new();
    cluster.passes(60, Some(&report(0.0, 0.0, 0.0)), Duration::ZERO);
    assert_eq!(cluster.hints.shown.len(), 2);
    cluster.runs_send(&[("night", 3.0, true)]);
    cluster.passes(5, Some(&report(0.0, 0.0, 0.0)), Duration::ZERO);
    assert_eq!(cluster.hints.shown, [("big".to_owned(), "north".to_owned())].into());
    let found = cluster.chosen("north", "big", Some("night"));
    assert_eq!(found.by, Some(RateSource::Probe));
    assert_eq!(found.why, "streams of runs get 3Mbps instead of the 10Mbps that follow from traffic");
}

/// The controller plans with it, and shows it beside the others.
#[test]
fn a_plan_is_made_with_the_rate_that_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&ControllerOptions::of_test(folder.path())).unwrap();
    let shared = &controller.shared;
    let join = |document: &mut crate::facts::Document| {
        for (name, tier) in [("north", "edge"), ("big", "cloud")] {
            let facts = document.workers.or_insert(name, WorkerFacts::default());
            facts.tier = Some(tier.to_owned());
        }
    };
    shared.facts.change(join).unwrap();
    let way = LinkMeasurement {
        to: "big".into(),
        round_trip_seconds: 0.02,
        bits_per_second: Some(9.0 * MEGABIT),
        only_delay: false,
        probing: 0.001,
    };
    crate::controller::workers::hears(shared, "north", "edge", vec![way], Some(report(3.0, 7.5, 0.0)));
    crate::controller::workers::hears(shared, "big", "cloud", Vec::new(), None);
    shared.look_at_hints();
    let link = || {
        let (found, notes) = shared.infrastructure(Some(&file()), None).unwrap();
        let link = found.link("edge", "cloud").unwrap().bandwidth.clone();
        (link.unwrap().value.0, notes.iter().any(|note| note.contains("by hint")))
    };
    assert_eq!(link(), (9_000_000, false), "it was not looked at long enough");
    locked(&shared.workers).values_mut().for_each(|worker| worker.traffic = None);
    // The thread that looks at reports has nothing more to say, but may be in the middle of the last ones.
    let until = |look: &dyn Fn() -> bool| {
        (0..200).any(|_| {
            let mut hints = locked(&shared.hints);
            let history = hints.links.entry((place("edge"), place("cloud"))).or_default();
            *history = LinkHistory::default();
            let load = load::OtherLoad { flows: 3.0, yields: 7.5 * MEGABIT, stays: 0.0 };
            (0..120).for_each(|tick| history.sees(Ok(load), Duration::from_millis(500 * tick)));
            drop(hints);
            std::thread::sleep(Duration::from_millis(5));
            look()
        })
    };
    assert!(until(&|| link() == (2_500_000, true)), "{:?}", link());
    let view = || shared.way_views().remove(0);
    let is_probed = || {
        let view = view();
        let why = view.planned_because.contains("no file of machines");
        why && view.nominal_bits_per_second.is_none() && view.planned_by == Some(RateSource::Probe)
    };
    assert!(until(&is_probed), "no run has a file of machines: {:?}", view());
    let is_by_hint = || {
        locked(&shared.hints).files.insert("digest".into(), Some(Arc::new(Nominal::of(&file()))));
        let view = view();
        let hint = view.hint.map(|hint| (hint.bits_per_second, hint.other_flows));
        let is_it = hint == Some((2.5 * MEGABIT, 3.0)) && view.planned_by == Some(RateSource::Hint);
        is_it && view.nominal_bits_per_second == Some(10.0 * MEGABIT)
    };
    assert!(until(&is_by_hint), "{:?}", view());
    controller.end();
}
