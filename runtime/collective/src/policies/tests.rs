use super::*;
use crate::cost::{Background, Facts, Link, bytes, places};
use crate::operation::Operation;
use crate::strategy::Strategy;
use crate::topology::{Host, Loads, Path, Priority};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;
use proptest::test_runner::TestCaseError;

/// Hosts and groups of a test. Hosts have 100 Gbit/s and paths 50 Gbit/s.
#[derive(Debug, Clone)]
pub(crate) struct Lab {
    pub(crate) hosts: Vec<Host>,
    pub(crate) groups: Vec<Group>,
    pub(crate) background: Vec<Background>,
    pub(crate) traces: Vec<(String, Vec<ts::Span>)>,
    pub(crate) loads: Option<Loads>,
    pub(crate) facts: Facts,
}

impl Lab {
    pub(crate) fn racks(racks: usize, per_rack: usize) -> Self {
        let host = |number: usize| Host {
            name: format!("host{number}"),
            rack: format!("rack{}", number / per_rack),
            ..Host::default()
        };
        Self {
            hosts: (0..racks * per_rack).map(host).collect(),
            groups: Vec::new(),
            background: Vec::new(),
            traces: Vec::new(),
            loads: None,
            facts: Facts { host_rate: 12.5e9, memory_rate: 1e12, ..Facts::default() },
        }
    }

    pub(crate) fn spines(mut self, count: usize) -> Self {
        let spine = |number: usize| Path { name: format!("spine{number}"), rate: 6.25e9, ..Path::default() };
        self.hosts.iter_mut().for_each(|host| host.paths = (0..count).map(spine).collect());
        self
    }

    /// Adds a group whose ranks go around all hosts.
    pub(crate) fn group(mut self, name: &str, ranks: usize) -> Self {
        let host = |rank: usize| self.hosts[rank % self.hosts.len()].name.clone();
        let ranks = (0..ranks).map(|rank| (rank as u32, host(rank))).collect();
        self.groups.push(Group { name: name.into(), ranks, priority: Priority::Normal });
        self
    }

    pub(crate) fn network(&self) -> Network<'_> {
        Network {
            hosts: &self.hosts,
            background: &self.background,
            loads: None,
            totals: None,
            facts: self.facts,
        }
    }

    pub(crate) fn cluster(&self) -> Cluster<'_> {
        let (network, loads) = (self.network(), self.loads.as_ref());
        Cluster { network, groups: &self.groups, traces: &self.traces, loads }
    }

    pub(crate) fn any() -> impl Generator<Value = Self> {
        let priority = prop_oneof![Just(Priority::Bulk), Just(Priority::Normal), Just(Priority::High)];
        let ranks = proptest::collection::btree_map(0u32..40, any::<proptest::sample::Index>(), 1..12);
        let groups = proptest::collection::vec((ranks, priority), 1..6);
        (1usize..5, 1usize..4, 0usize..4, groups).prop_map(|(racks, per_rack, spines, groups)| {
            let mut lab = Self::racks(racks, per_rack).spines(spines);
            for (number, (ranks, priority)) in groups.into_iter().enumerate() {
                let place =
                    |(rank, at): (u32, proptest::sample::Index)| (rank, at.get(&lab.hosts).name.clone());
                let ranks = ranks.into_iter().map(place).collect();
                lab.groups.push(Group { name: format!("group{number}"), ranks, priority });
            }
            lab
        })
    }
}

/// Counts edges between racks.
pub(crate) fn crossings(lab: &Lab, group: &Group, ring: &[u32]) -> usize {
    let places = places(&lab.network(), group);
    let rack = |at: usize| &places[&ring[at % ring.len()]].rack;
    (0..ring.len()).filter(|at| rack(*at) != rack(at + 1)).count()
}

/// Checks that each ring has each member once, and only paths that its hosts have.
pub(crate) fn check(lab: &Lab, made: &BTreeMap<String, Strategy>) -> Result<(), TestCaseError> {
    prop_assert_eq!(made.len(), lab.groups.len());
    for group in &lab.groups {
        let strategy = &made[&group.name];
        let places = places(&lab.network(), group);
        prop_assert_eq!(&strategy.members, &places.keys().copied().collect::<Vec<_>>());
        prop_assert!((1..=16).contains(&strategy.channels.len()));
        prop_assert!((4 << 10..=1 << 20).contains(&strategy.piece) && strategy.small <= 1 << 20);
        for channel in &strategy.channels {
            let mut sorted = channel.ring.clone();
            sorted.sort_unstable();
            prop_assert_eq!(&sorted, &strategy.members);
            prop_assert_eq!(channel.paths.len(), channel.ring.len());
            for (at, path) in channel.paths.iter().enumerate() {
                let from = places[&channel.ring[at]];
                let to = places[&channel.ring[(at + 1) % channel.ring.len()]];
                let is_known = |name: &String| from.paths.iter().any(|path| path.name == *name);
                prop_assert!(path.as_ref().is_none_or(|name| from.rack != to.rack && is_known(name)));
            }
        }
        if let Some(windows) = &strategy.windows {
            let mut last = 0;
            for (from, to) in &windows.open_us {
                prop_assert!(last <= *from && from < to && *to <= windows.period_us);
                last = *to;
            }
            prop_assert!(last > 0);
        }
    }
    Ok(())
}

/// The rate of each group if flows divide links between racks evenly: each ring is as fast as its slowest flow, and the parts of a
/// buffer are even.
pub(crate) fn rates(lab: &Lab, made: &BTreeMap<String, Strategy>) -> BTreeMap<String, f64> {
    let network = lab.network();
    let ways = |group: &Group, channel: &Channel| -> Vec<Vec<Link<'_>>> {
        let group_places = places(&network, group);
        let way = |at: usize| {
            let host = |at: usize| group_places[&channel.ring[at % channel.ring.len()]];
            let name = channel.paths[at].as_deref();
            let path = host(at).paths.iter().map(|path| path.name.as_str()).find(|path| Some(*path) == name);
            network.rack_links(host(at), host(at + 1), path)
        };
        (0..channel.ring.len()).map(way).collect()
    };
    let mut flows: BTreeMap<Link<'_>, f64> = BTreeMap::new();
    for group in &lab.groups {
        let all = made[&group.name].channels.iter().flat_map(|channel| ways(group, channel));
        all.flatten().for_each(|link| *flows.entry(link).or_default() += 1.0);
    }
    let rate = |group: &Group| {
        let channels = &made[&group.name].channels;
        let links = channels.iter().flat_map(|channel| ways(group, channel)).flatten();
        let slowest = links.map(|link| network.left(link) / flows[&link]).fold(f64::MAX, f64::min);
        slowest * channels.len() as f64
    };
    lab.groups.iter().map(|group| (group.name.clone(), rate(group))).collect()
}

#[test]
fn policies_are_read_as_they_are_written() {
    for text in [
        "rank-order",
        "locality",
        "locality:reversed",
        "ffa",
        "pfa",
        "pfa:lte,fibre",
        "ts",
        "ring:0,2,1",
        "hints",
        "tree:0-1,0-2/1-0,1-2",
    ] {
        assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
    }
    for wrong in ["", "ring", "tree", "hints:1", "ffa:spine0", "locality:sideways", "rank-order:1"] {
        let error = wrong.parse::<Policy>().unwrap_err();
        assert_eq!(error, PolicyError::Unknown(wrong.into()));
        assert!(error.to_string().contains("`ring:RANK,...`"), "{error}");
    }
    for wrong in ["0-x", "0", "0-1-2", "", "0-1//0-1"] {
        let error = format!("tree:{wrong}").parse::<Policy>().unwrap_err();
        assert!(matches!(&error, PolicyError::Edge(_)), "{error}");
    }
    assert_eq!("ring:0,x".parse::<Policy>().unwrap_err(), PolicyError::Rank("x".into()));
    for (name, _) in POLICIES {
        let name = name
            .split_once('[')
            .map_or(name, |(name, _)| name)
            .replace("RANK-RANK,...", "0-1")
            .replace("RANK,...", "0");
        assert!(name.parse::<Policy>().is_ok(), "{name}");
    }
}

#[test]
fn unknown_hosts_and_doubled_ranks_are_named() {
    let mut lab = Lab::racks(1, 2).group("one", 2);
    lab.groups[0].ranks[1].1 = "elsewhere".into();
    let error = Policy::default().strategies(&lab.cluster()).unwrap_err();
    assert!(
        error.to_string().starts_with("rank 1 of group one is on host elsewhere, which is not registered"),
        "{error}"
    );
    lab.groups[0].ranks[1] = lab.groups[0].ranks[0].clone();
    assert_eq!(Policy::default().strategies(&lab.cluster()), Err(PolicyError::Members("one".into())));
}

#[test]
fn two_groups_that_share_nothing_have_no_link_in_common() {
    let lab = Lab::racks(2, 2).spines(2).group("one", 4).group("other", 4);
    let made = ffa::strategies(&lab.cluster());
    let network = lab.network();
    let links = |at: usize| {
        let group = &lab.groups[at];
        let all = bytes(&network, group, &made[&group.name], Operation::AllGather, 1e9);
        all.into_keys().collect::<BTreeSet<_>>()
    };
    let common = links(0).intersection(&links(1)).copied().collect::<Vec<_>>();
    assert!(common.iter().all(|link| matches!(link, Link::HostIn(_) | Link::HostOut(_))), "{common:?}");
}

proptest! {
    #[test]
    fn every_policy_makes_valid_strategies(lab in Lab::any()) {
        for text in ["rank-order", "locality", "locality:reversed", "ffa", "pfa", "ts", "hints"] {
            let policy: Policy = text.parse().unwrap();
            check(&lab, &policy.strategies(&lab.cluster()).unwrap())?;
        }
    }
}
