//! Plans of groups from hints: when another one is made, and whether it is worth the change.
use super::super::explained::Explained;
use super::super::{Conductor, Group, Messages};
use super::Hints;
use crate::element::{Element, Reduction};
use crate::hints::POLICY;
use crate::operation::{Numbered, Operation};
use crate::peers::{FromConductor, Key};
use crate::policies::{Chosen, Policy};
use crate::protocol::Figures;
use crate::schedule::programs;
use crate::strategy::{MAX_PIECE, Strategy};
use crate::topology::Loads;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidemill_hints::estimate::Guarantee;
use tidemill_hints::leader::Refusal;
use tidemill_hints::message;
use tidemill_hints::staleness::{COLLECT, Choice, Decision, Delays, SHARE, iterations};
use tidemill_hints::tenant::Tenant;
use tidemill_hints::tree::{Tree, time};

/// The part by which a rate must differ before it is looked for another plan, and a plan must be faster than the one before.
const HYSTERESIS: f64 = 0.1;
/// Time in which a group changes to another strategy, before one was measured: its hosts agree, and connect by other wires.
const SWITCH: Duration = Duration::from_millis(50);
/// Time after which figures that do not change say that the group does nothing.
const QUIET: Duration = Duration::from_millis(2500);
/// Elements of the operation from which it is counted what goes over which link.
const LENGTH: u64 = 1 << 20;

/// A group whose links are looked at.
pub(super) struct Followed {
    tenant: Tenant,
    pub(super) hosts: Vec<(String, String)>,
    pub(super) decision: Decision,
    /// The rates from which it would be planned now; none: without hints.
    rates: Option<Vec<f64>>,
    /// The rates from which it was planned last, and when.
    planned: Option<(Option<Vec<f64>>, Duration)>,
    pub(super) note: String,
    pub(super) replans: u64,
    activity: Activity,
    share: Option<(u64, Share)>,
}

/// The pace of the operations of a group.
#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    figures: Figures,
    at: Duration,
    /// Bytes of buffers per second.
    rate: f64,
    /// The part of the time in which an operation is carried out.
    busy: f64,
    /// Time from one operation to the next one.
    iteration: Duration,
}

impl Activity {
    fn observe(&mut self, figures: Figures, now: Duration) {
        let passed = now.saturating_sub(self.at);
        if figures == self.figures {
            if passed > QUIET {
                (self.rate, self.busy) = (0.0, 0.0);
            }
            return;
        }
        let seconds = passed.as_secs_f64();
        if self.figures != Figures::default() && seconds > 0.0 && figures.operations > self.figures.operations
        {
            let more = |now: u64, before: u64| now.saturating_sub(before) as f64;
            let operations = more(figures.operations, self.figures.operations);
            self.rate = more(figures.bytes, self.figures.bytes) / seconds;
            self.busy = (more(figures.busy_us, self.figures.busy_us) / 1e6 / seconds).min(1.0);
            self.iteration = Duration::from_secs_f64(seconds / operations);
        }
        (self.figures, self.at) = (figures, now);
    }
}

/// The part that a strategy moves over each link of a group.
struct Share {
    /// Bytes for each byte of the buffer, in an all-reduce.
    bytes: Vec<f64>,
    /// Flows.
    flows: Vec<f64>,
}

impl Share {
    fn of(strategy: &Strategy, tree: &Tree, machines: &BTreeMap<u32, usize>) -> Self {
        // Sizes of pieces do not matter here.
        let strategy = Strategy { piece: MAX_PIECE, small: 0, ..strategy.clone() };
        let operation = Operation::AllReduce { reduction: Reduction::Sum };
        let numbered = Numbered::new(1, operation, Element::F32, LENGTH);
        let (mut transfers, mut flows) = (Vec::new(), BTreeSet::new());
        for (rank, machine) in machines {
            for program in programs(&strategy, &numbered, *rank) {
                for send in &program.sends {
                    let Some(to) = machines.get(&send.to).filter(|to| *to != machine) else { continue };
                    let bytes = (send.bytes.end - send.bytes.start) as f64;
                    transfers.push((*machine, *to, bytes / (LENGTH * 4) as f64));
                    flows.insert((*rank, send.to, program.lane));
                }
            }
        }
        let flows =
            flows.iter().filter_map(|(from, to, _)| Some((*machines.get(from)?, *machines.get(to)?, 1.0)));
        Self { bytes: tree.loads(transfers), flows: tree.loads(flows) }
    }
}

impl Hints {
    /// Returns the rates from which the policy plans a group, and whether it does; none: nobody has looked.
    pub(in crate::conductor) fn loads(&self, key: &Key) -> Option<Loads> {
        let followed = self.followed.get(key)?;
        Some(Loads {
            tree: followed.hosts.clone(),
            rates: followed.rates.clone().unwrap_or_default(),
            decision: followed.decision.clone(),
        })
    }
}

impl Followed {
    fn new(key: &Key) -> Self {
        Self {
            tenant: Tenant::new(&key.to_string()),
            hosts: Vec::new(),
            decision: Decision::defaults("no hints have come yet"),
            rates: None,
            planned: None,
            note: String::new(),
            replans: 0,
            activity: Activity::default(),
            share: None,
        }
    }

    pub(super) fn between_changes(&self) -> Option<Duration> {
        self.tenant.between_changes()
    }

    /// Takes the own traffic of the group out of its hints: a plan is about to replace it.
    fn without_own(
        &mut self,
        hints: &mut message::Hints,
        strategy: &Strategy,
        machines: &BTreeMap<u32, usize>,
    ) {
        if self.share.as_ref().is_none_or(|(epoch, _)| *epoch != strategy.epoch) {
            self.share = Some((strategy.epoch, Share::of(strategy, &hints.tree, machines)));
        }
        let Some((_, share)) = &self.share else { return };
        let Activity { rate, busy, .. } = self.activity;
        for ((load, bytes), flows) in hints.loads.iter_mut().zip(&share.bytes).zip(&share.flows) {
            *load = load.without(flows * busy, bytes * rate);
        }
    }

    /// Whether the rates differ from those of the last plan.
    fn has_changed(&self) -> bool {
        let differ = |one: &f64, other: &f64| (one - other).abs() > HYSTERESIS * one.max(*other);
        match (&self.planned, &self.rates) {
            (None, _) | (Some((None, _)), Some(_)) | (Some((Some(_), _)), None) => true,
            (Some((None, _)), None) => false,
            (Some((Some(before), _)), Some(now)) => {
                before.len() != now.len() || before.iter().zip(now).any(|(before, now)| differ(before, now))
            }
        }
    }
}

/// The ranks of a strategy with their hosts, and the hosts in the order of their first ranks.
pub(super) fn machines(group: &Group, strategy: &Strategy) -> (Vec<String>, BTreeMap<u32, usize>) {
    let (mut hosts, mut machines) = (Vec::<String>::new(), BTreeMap::new());
    for rank in &strategy.members {
        let Some((_, host)) = group.ranks.get(rank) else { continue };
        let machine = hosts.iter().position(|known| known == host).unwrap_or_else(|| {
            hosts.push(host.clone());
            hosts.len() - 1
        });
        machines.insert(*rank, machine);
    }
    (hosts, machines)
}

impl Conductor {
    /// A period is over: looks at the links of all groups, and gives those another strategy that plan from hints, where that is
    /// worth it.
    pub(crate) fn tick(&mut self) -> Messages {
        self.hints.look(self.now);
        let runs = |group: &Group| group.formed.is_some() && group.broken.is_none();
        let keys: Vec<Key> =
            self.groups.iter().filter(|(_, group)| runs(group)).map(|(key, _)| key.clone()).collect();
        self.hints.followed.retain(|key, _| keys.contains(key));
        keys.iter().flat_map(|key| self.follow(key)).collect()
    }

    /// Notes how long the last call of [`Self::tick`] took.
    pub(crate) fn took(&mut self, time: Duration) {
        if !std::mem::take(&mut self.hints.has_planned) {
            return;
        }
        let known = self.hints.planning;
        self.hints.planning = if known.is_zero() { time } else { (known * 7 + time) / 8 };
    }

    fn follow(&mut self, key: &Key) -> Messages {
        let now = self.now;
        let Some((group, strategy)) =
            self.groups.get(key).and_then(|group| Some((group, group.strategy.clone()?)))
        else {
            return Messages::new();
        };
        let uses_hints = group.policy.as_deref() == Some(POLICY);
        let (hosts, machines) = machines(group, &strategy);
        if hosts.len() < 2 {
            self.hints.followed.remove(key);
            return Messages::new();
        }
        let figures = group.figures();
        let answer = self.hints.ask(&format!("group {key}"), &hosts, now);
        let rack_of = |name: &String| {
            let of = self.hosts.values().find(|of| of.host.name == *name);
            of.map(|of| of.host.rack.clone()).unwrap_or_default()
        };
        let tree: Vec<(String, String)> = hosts.iter().map(|name| (name.clone(), rack_of(name))).collect();
        let compute = self.hints.planning.saturating_add(self.hints.switching.unwrap_or(SWITCH));
        let followed = self.hints.followed.entry(key.clone()).or_insert_with(|| Followed::new(key));
        if followed.hosts != tree {
            (followed.hosts, followed.share, followed.planned) = (tree, None, None);
        }
        followed.activity.observe(figures, now);
        match answer {
            Ok(mut hints) => {
                followed.without_own(&mut hints, &strategy, &machines);
                followed.tenant.answered(hints, now);
            }
            Err(reason) => followed.tenant.failed(reason.to_operator(&followed.hosts)),
        }
        let iteration = followed.activity.iteration;
        let used = match iteration.is_zero() {
            true => compute.div_f64(SHARE),
            false => iteration.saturating_mul(iterations(compute, iteration, SHARE)),
        };
        let age = followed.tenant.hints(now).map(|(_, age)| age);
        let delays = Delays { collect: COLLECT.max(age.unwrap_or_default()), compute, used };
        followed.decision = followed.tenant.decide(delays, now);
        let hints = followed.tenant.hints(now).map(|(hints, _)| hints);
        followed.rates = hints.and_then(|hints| match followed.decision.choice {
            Choice::Loads => Some(hints.rates(1.0, Guarantee::None)),
            Choice::Topology => Some(hints.totals()),
            Choice::Defaults => None,
        });
        if !uses_hints {
            (followed.planned, followed.note) = (None, String::new());
            return Messages::new();
        }
        // Hints that have ended are no reason to wait.
        let is_due = followed.rates.is_none()
            || followed.planned.as_ref().is_none_or(|(_, at)| now.saturating_sub(*at) >= used);
        if !is_due || !followed.has_changed() {
            return Messages::new();
        }
        self.replan(key, &strategy, &machines)
    }

    /// The strategy of a group stays, for this reason.
    fn explain_again(&mut self, key: &Key, explained: Explained) -> Messages {
        if let Some(group) = self.groups.get_mut(key) {
            group.explained = explained;
        }
        Messages::new()
    }

    fn replan(&mut self, key: &Key, before: &Strategy, machines: &BTreeMap<u32, usize>) -> Messages {
        let next = self.plan(key, POLICY, before.epoch + 1, before.members.clone());
        self.hints.has_planned = true;
        let now = self.now;
        let Some(followed) = self.hints.followed.get_mut(key) else { return Messages::new() };
        followed.planned = Some((followed.rates.clone(), now));
        let (next, explained) = match next {
            Ok(planned) => planned,
            Err(reason) => {
                followed.note = format!("kept: no other one can be made: {reason}");
                return Messages::new();
            }
        };
        let is_same = Strategy { epoch: next.epoch, ..before.clone() } == next;
        let faster = followed.rates.as_ref().map(|rates| {
            let racks: Vec<&String> = followed.hosts.iter().map(|(_, rack)| rack).collect();
            let tree = Tree::of(&racks);
            let seconds = |strategy: &Strategy| time(&Share::of(strategy, &tree, machines).bytes, rates);
            1.0 - seconds(&next) / seconds(before)
        });
        let decision = &followed.decision;
        match faster {
            _ if is_same => {
                followed.note = format!("kept, it is still the best one ({decision})");
                return self.explain_again(key, explained);
            }
            Some(part) if part.is_nan() || part < HYSTERESIS => {
                let percent = (part.max(0.0) * 100.0).floor();
                let note = format!("kept, another one would be only {percent} % faster ({decision})");
                followed.note.clone_from(&note);
                let kept = Chosen { strategy: before.clone(), why: note };
                let with = Some((key, &before.members[..]));
                let name = key.to_string();
                let explained = self.in_cluster(&Policy::Hints, with, |of| self.explain(&name, of, &kept));
                return self.explain_again(key, explained);
            }
            Some(part) => {
                let percent = (part * 100.0).floor();
                followed.note = format!("made anew, {percent} % faster than the one before ({decision})");
            }
            None => followed.note = format!("made anew without hints ({decision})"),
        }
        followed.replans += 1;
        let Some(group) = self.groups.get_mut(key) else { return Messages::new() };
        group.ordered(next.clone(), now);
        group.explained = explained;
        let tell = |link| (link, FromConductor::Order { key: key.clone(), strategy: next.clone() });
        group.links().into_iter().map(tell).collect()
    }
}

/// Why there are no hints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoHints {
    /// The service of this machine of the group does not count.
    Uncounted(usize),
    /// The state of links is not known, or it was asked too soon.
    Refused(Refusal),
}

impl NoHints {
    /// Says it to the program: by numbers.
    pub(super) fn to_program(&self) -> String {
        match self {
            Self::Uncounted(machine) => format!("machine {machine} of the group does not count its traffic"),
            Self::Refused(refusal) => refusal.to_string(),
        }
    }

    /// Says it to the operator: by names.
    fn to_operator(&self, hosts: &[(String, String)]) -> String {
        let host = |machine: usize| hosts.get(machine).map_or("", |(host, _)| host);
        match self {
            Self::Uncounted(machine) => format!("host {} does not count its traffic", host(*machine)),
            Self::Refused(Refusal::NoReport { machine }) => {
                format!("host {} does not report to the leader of its rack", host(*machine))
            }
            Self::Refused(Refusal::Silent { rack, .. }) => {
                let mut racks: Vec<&str> = Vec::new();
                for (_, rack) in hosts {
                    if !racks.contains(&rack.as_str()) {
                        racks.push(rack);
                    }
                }
                format!("nothing is heard of the leader of rack {:?}", racks.get(*rack).unwrap_or(&""))
            }
            Self::Refused(refusal) => refusal.to_string(),
        }
    }
}

impl Hints {
    /// Asks for the links between hosts.
    pub(super) fn ask(
        &mut self,
        who: &str,
        hosts: &[String],
        now: Duration,
    ) -> Result<message::Hints, NoHints> {
        let place = |(number, host): (usize, &String)| self.place(host).ok_or(NoHints::Uncounted(number));
        let places = hosts.iter().enumerate().map(place).collect::<Result<Vec<_>, _>>()?;
        self.observer.hints(who, &places, now).map_err(NoHints::Refused)
    }
}
