//! Groups whose members change, with deaths and orders in between, by chance.
use super::*;
use tidemill_random::Random;

/// One thing that may happen next.
type Choice<Group> = Box<dyn FnOnce(&mut Group)>;

struct Group {
    random: Random,
    barriers: Vec<Barrier>,
    /// From each host to each other one.
    messages: BTreeMap<(usize, usize), VecDeque<Message>>,
    orders: Vec<VecDeque<Order>>,
    switching: BTreeSet<usize>,
    /// Launched under the current strategy and not finished.
    running: Vec<BTreeSet<u64>>,
    /// Host, number and epoch of all that was launched.
    launched: BTreeSet<(u32, u64, u64)>,
    dead: BTreeSet<usize>,
    /// Who knows of which dead host.
    known: BTreeSet<(usize, usize)>,
    /// The last operation before each order, as its members found it.
    last: BTreeMap<u64, u64>,
    switches: usize,
}

impl Group {
    fn new(seed: u64) -> Self {
        let mut random = Random::of_seed(seed);
        let count = 2 + random.below(4);
        let all: Vec<u32> = (0..count as u32).collect();
        Self {
            random,
            barriers: all.iter().map(|me| Barrier::new(*me, order(1, &all))).collect(),
            messages: BTreeMap::new(),
            orders: vec![VecDeque::new(); count],
            switching: BTreeSet::new(),
            running: vec![BTreeSet::new(); count],
            launched: BTreeSet::new(),
            dead: BTreeSet::new(),
            known: BTreeSet::new(),
            last: BTreeMap::from([(1, 0)]),
            switches: 0,
        }
    }

    fn living(&self) -> Vec<usize> {
        (0..self.barriers.len()).filter(|host| !self.dead.contains(host)).collect()
    }

    /// Orders a strategy of living hosts; some hosts hear of it only from others.
    fn order(&mut self, epoch: u64, members: &[usize], to_all: bool) {
        let members: Vec<u32> = members.iter().map(|host| *host as u32).collect();
        for to in 0..self.barriers.len() {
            if to_all || self.random.chance(0.6) {
                self.orders[to].push_back(order(epoch, &members));
            }
        }
    }

    fn act(&mut self, me: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Tell(message) => {
                    for to in (0..self.barriers.len()).filter(|to| *to != me) {
                        self.messages.entry((me, to)).or_default().push_back((*message).clone());
                    }
                }
                Action::Switch(order) => {
                    self.switching.insert(me);
                    self.running[me].clear();
                    self.switches += 1;
                    let epoch = order.strategy.epoch;
                    let last = self.barriers[me].last();
                    if order.hosts.contains(&(me as u32)) {
                        let agreed = *self.last.entry(epoch).or_insert(last);
                        assert_eq!(
                            agreed, last,
                            "members disagree on the last operation before order {epoch}"
                        );
                    }
                }
                Action::Abandon { reason, .. } => {
                    assert!(matches!(reason, Reason::Lost(_)));
                    self.switching.remove(&me);
                }
            }
        }
    }

    /// An operation ends where all members have launched it under this strategy.
    fn may_finish(&self, me: usize, number: u64) -> bool {
        let Order { strategy, hosts } = self.barriers[me].current();
        hosts.iter().all(|host| self.launched.contains(&(*host, number, strategy.epoch)))
    }

    /// Does one thing, if there is one. Programs stop after their operations.
    fn step(&mut self, operations: u64) -> bool {
        let mut choices: Vec<Choice<Self>> = Vec::new();
        for me in self.living() {
            let barrier = &self.barriers[me];
            if !self.orders[me].is_empty() {
                choices.push(Box::new(move |group| {
                    let order = group.orders[me].pop_front().expect("one is there");
                    let actions = group.barriers[me].order(order);
                    group.act(me, actions);
                }));
            }
            for from in 0..self.barriers.len() {
                if self.messages.get(&(from, me)).is_some_and(|messages| !messages.is_empty()) {
                    choices.push(Box::new(move |group| {
                        let queue = group.messages.get_mut(&(from, me)).expect("one is there");
                        let message = queue.pop_front().expect("one is there");
                        let actions = group.barriers[me].receive(message);
                        group.act(me, actions);
                    }));
                }
            }
            for dead in self.dead.iter().copied().filter(|dead| !self.known.contains(&(me, *dead))) {
                choices.push(Box::new(move |group| {
                    group.known.insert((me, dead));
                    let actions = group.barriers[me].lost(dead as u32);
                    group.act(me, actions);
                }));
            }
            let next = barrier.last() + 1;
            if next <= operations && barrier.may_launch(next) {
                choices.push(Box::new(move |group| {
                    group.barriers[me].launched(next);
                    let epoch = group.barriers[me].current().strategy.epoch;
                    group.launched.insert((me as u32, next, epoch));
                    group.running[me].insert(next);
                }));
            }
            if self.switching.contains(&me) {
                choices.push(Box::new(move |group| {
                    group.switching.remove(&me);
                    let actions = group.barriers[me].switched();
                    group.act(me, actions);
                }));
            }
            // Host 0 needs nobody, as the root of a broadcast.
            let ended =
                self.running[me].first().copied().filter(|first| me == 0 || self.may_finish(me, *first));
            if let Some(number) = ended {
                choices.push(Box::new(move |group| {
                    group.running[me].remove(&number);
                    let actions = group.barriers[me].finished(number);
                    group.act(me, actions);
                }));
            }
        }
        if choices.is_empty() {
            return false;
        }
        let chosen = self.random.below(choices.len());
        choices.swap_remove(chosen)(self);
        true
    }
}

#[test]
fn members_agree_whatever_happens_and_the_last_order_arrives() {
    let (mut switches, mut deaths) = (0, 0);
    for seed in 0..1_000 {
        let mut group = Group::new(seed);
        let mut epoch = 1;
        let mut operations = 0;
        for _ in 0..group.random.below(5) {
            operations += group.random.below(4) as u64;
            let living = group.living();
            if group.random.chance(0.3) && living.len() > 1 {
                group.dead.insert(living[group.random.below(living.len())]);
            }
            if group.random.chance(0.8) {
                epoch += 1;
                let mut members = group.living();
                if group.random.chance(0.5) {
                    members.swap_remove(group.random.below(members.len()));
                }
                // A provider that does not know of a death yet orders it too.
                if group.random.chance(0.2) {
                    members.extend(group.dead.first());
                }
                members.sort_unstable();
                group.order(epoch, &members, false);
            }
            for _ in 0..group.random.below(40) {
                group.step(operations);
            }
        }
        epoch += 1;
        let living = group.living();
        group.order(epoch, &living, true);
        let goal = group.barriers.iter().map(Barrier::last).max().unwrap_or(0) + operations + 3;
        let mut steps = 0;
        while group.step(goal) {
            steps += 1;
            assert!(steps < 100_000, "seed {seed} does not end");
        }
        for me in living {
            let barrier = &group.barriers[me];
            assert_eq!(barrier.current().strategy.epoch, epoch, "seed {seed}, host {me}: {barrier:?}");
            assert_eq!((barrier.last(), barrier.is_broken()), (goal, false), "seed {seed}, host {me}");
        }
        switches += group.switches;
        deaths += group.dead.len();
    }
    assert!(switches > 2_000 && deaths > 100, "{switches} switches, {deaths} deaths");
}
