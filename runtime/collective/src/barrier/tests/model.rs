//! A model of a group whose deliveries, launches and ends come in any order: all states are visited.
use super::*;
use std::hash::DefaultHasher;

/// A setting that is explored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Setting {
    pub(super) hosts: u32,
    /// Operations that each host launches as soon as it may; none waits for the one before.
    pub(super) operations: u64,
    /// Orders of the provider.
    pub(super) orders: u64,
    pub(super) faults: Faults,
    /// Where something can happen that commutes with all else that can and that nobody sees, only that is followed.
    pub(super) reduced: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Faults {
    #[default]
    None,
    /// The provider dies between any two deliveries.
    Provider,
    /// One host dies; the provider then orders the group to do without it.
    OneHost,
}

/// A barrier that is explored.
pub(super) trait Machine: Clone {
    fn begin(me: u32, first: Order) -> Self;
    fn order(&mut self, order: Order) -> Vec<Action>;
    fn receive(&mut self, message: Message) -> Vec<Action>;
    fn may_launch(&self, number: u64) -> bool;
    fn launched(&mut self, number: u64);
    fn finished(&mut self, number: u64) -> Vec<Action>;
    fn switched(&mut self) -> Vec<Action>;
    fn lost(&mut self, host: u32) -> Vec<Action>;
    fn epoch(&self) -> u64;
    fn last(&self) -> u64;
    /// It only waits for others to speak.
    fn is_collecting(&self) -> bool;
    fn identify(&self, hasher: &mut DefaultHasher);
}

impl Machine for Barrier {
    fn begin(me: u32, first: Order) -> Self {
        Self::new(me, first)
    }
    fn order(&mut self, order: Order) -> Vec<Action> {
        Self::order(self, order)
    }
    fn receive(&mut self, message: Message) -> Vec<Action> {
        Self::receive(self, message)
    }
    fn may_launch(&self, number: u64) -> bool {
        Self::may_launch(self, number)
    }
    fn launched(&mut self, number: u64) {
        Self::launched(self, number);
    }
    fn finished(&mut self, number: u64) -> Vec<Action> {
        Self::finished(self, number)
    }
    fn switched(&mut self) -> Vec<Action> {
        Self::switched(self)
    }
    fn lost(&mut self, host: u32) -> Vec<Action> {
        Self::lost(self, host)
    }
    fn epoch(&self) -> u64 {
        self.current.strategy.epoch
    }
    fn last(&self) -> u64 {
        self.launched
    }
    fn is_collecting(&self) -> bool {
        matches!(self.phase, Phase::Collecting { .. })
    }
    fn identify(&self, hasher: &mut DefaultHasher) {
        (Machine::epoch(self), self.phase, self.launched, &self.running, self.broken, &self.lost, self.told)
            .hash(hasher);
        self.orders.keys().for_each(|epoch| epoch.hash(hasher));
        self.heard.hash(hasher);
    }
}

/// A host that switches when it is told to and its own operations have ended.
#[derive(Clone)]
pub(super) struct Naive {
    epoch: u64,
    launched: u64,
    running: BTreeSet<u64>,
    next: Option<u64>,
    is_switching: bool,
}

impl Naive {
    fn advance(&mut self) -> Vec<Action> {
        if !self.running.is_empty() || self.is_switching {
            return Vec::new();
        }
        let Some(next) = self.next.take() else { return Vec::new() };
        (self.epoch, self.is_switching) = (next, true);
        vec![Action::Switch(Box::new(super::order(next, &[])))]
    }
}

impl Machine for Naive {
    fn begin(_: u32, first: Order) -> Self {
        let epoch = first.strategy.epoch;
        Self { epoch, launched: 0, running: BTreeSet::new(), next: None, is_switching: false }
    }
    fn order(&mut self, order: Order) -> Vec<Action> {
        self.next = Some(order.strategy.epoch);
        self.advance()
    }
    fn receive(&mut self, _: Message) -> Vec<Action> {
        Vec::new()
    }
    fn may_launch(&self, number: u64) -> bool {
        number == self.launched + 1 && !self.is_switching && self.next.is_none()
    }
    fn launched(&mut self, number: u64) {
        self.launched = number;
        self.running.insert(number);
    }
    fn finished(&mut self, number: u64) -> Vec<Action> {
        self.running.remove(&number);
        self.advance()
    }
    fn switched(&mut self) -> Vec<Action> {
        self.is_switching = false;
        self.advance()
    }
    fn lost(&mut self, _: u32) -> Vec<Action> {
        Vec::new()
    }
    fn epoch(&self) -> u64 {
        self.epoch
    }
    fn last(&self) -> u64 {
        self.launched
    }
    fn is_collecting(&self) -> bool {
        false
    }
    fn identify(&self, hasher: &mut DefaultHasher) {
        (self.epoch, self.launched, &self.running, self.next, self.is_switching).hash(hasher);
    }
}

/// The order without the host that died.
const SHRINK: u64 = 9;

#[derive(Debug, Clone, Copy)]
enum Step {
    Dies(usize),
    Order(usize),
    Deliver { from: usize, to: usize },
    Lost(usize),
    Launch(usize),
    Finish(usize, u64),
    Switched(usize),
}

#[derive(Clone)]
struct Host<M> {
    machine: M,
    /// Orders that the provider will send.
    orders: VecDeque<u64>,
    /// From each host.
    messages: Vec<VecDeque<(u64, Position)>>,
    /// The epoch under which each operation was launched.
    under: Vec<Option<u64>>,
    finished: Vec<bool>,
    is_switching: bool,
    knows_of_the_dead: bool,
}

#[derive(Clone)]
struct World<M> {
    /// With what identifies the state of each.
    hosts: Vec<(Arc<Host<M>>, u64)>,
    dead: Option<usize>,
    highest: u64,
    past: Option<Arc<Past>>,
}

struct Past {
    step: Step,
    before: Option<Arc<Past>>,
}

/// Visits all states. Returns their number, or what is wrong and how it came to it.
pub(super) fn explore<M: Machine>(setting: &Setting) -> Result<usize, String> {
    let all: Vec<u32> = (0..setting.hosts).collect();
    let count = setting.operations as usize;
    let hosts = all.iter().map(|me| Host {
        machine: M::begin(*me, super::order(1, &all)),
        orders: (2..2 + setting.orders).collect(),
        messages: vec![VecDeque::new(); all.len()],
        under: vec![None; count],
        finished: vec![false; count],
        is_switching: false,
        knows_of_the_dead: false,
    });
    let hosts = hosts.map(|host| (Arc::new(host), 0)).collect();
    let first = World { hosts, dead: None, highest: 1, past: None };
    let mut seen = HashSet::from([first.identity()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        let steps = world.steps(setting);
        // Where only orders are left, the provider may die.
        let is_end = match setting.faults {
            Faults::Provider => steps.iter().all(|step| matches!(step, Step::Order(_))),
            Faults::None | Faults::OneHost => steps.is_empty(),
        };
        if is_end {
            world.check_end(setting).map_err(|fault| world.explained(&fault))?;
        }
        for step in steps {
            let mut next = world.clone();
            next.past = Some(Arc::new(Past { step, before: world.past.clone() }));
            next.take(step).map_err(|fault| next.explained(&fault))?;
            if seen.insert(next.identity()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

impl<M: Machine> World<M> {
    fn identity(&self) -> u128 {
        let hash = |salt: u64| {
            let mut hasher = DefaultHasher::new();
            (salt, self.dead, self.highest).hash(&mut hasher);
            self.hosts.iter().for_each(|(_, identity)| identity.hash(&mut hasher));
            hasher.finish()
        };
        (u128::from(hash(1)) << 64) | u128::from(hash(2))
    }

    fn host(&self, me: usize) -> &Host<M> {
        &self.hosts[me].0
    }

    /// Changes a host.
    fn change<R>(&mut self, me: usize, change: impl FnOnce(&mut Host<M>) -> R) -> R {
        let (host, identity) = &mut self.hosts[me];
        let host = Arc::make_mut(host);
        let result = change(host);
        let mut hasher = DefaultHasher::new();
        host.machine.identify(&mut hasher);
        (&host.orders, &host.messages, &host.under, &host.finished).hash(&mut hasher);
        (host.is_switching, host.knows_of_the_dead).hash(&mut hasher);
        *identity = hasher.finish();
        result
    }

    fn living(&self) -> impl Iterator<Item = usize> + use<M> {
        let dead = self.dead;
        (0..self.hosts.len()).filter(move |host| Some(*host) != dead)
    }

    /// Returns the order with this number.
    fn order(&self, epoch: u64) -> Order {
        let all = 0..self.hosts.len();
        let members: Vec<u32> =
            all.filter(|host| epoch != SHRINK || Some(*host) != self.dead).map(|host| host as u32).collect();
        super::order(epoch, &members)
    }

    fn steps(&self, setting: &Setting) -> Vec<Step> {
        if setting.reduced
            && let Some(step) = self.unseen_step(setting)
        {
            return vec![step];
        }
        let mut steps = Vec::new();
        for me in self.living() {
            let host = self.host(me);
            if setting.faults == Faults::OneHost && self.dead.is_none() {
                steps.push(Step::Dies(me));
            }
            if !host.orders.is_empty() {
                steps.push(Step::Order(me));
            }
            let senders = (0..self.hosts.len()).filter(|from| !host.messages[*from].is_empty());
            steps.extend(senders.map(|from| Step::Deliver { from, to: me }));
            if self.dead.is_some() && !host.knows_of_the_dead {
                steps.push(Step::Lost(me));
            }
            let next = host.machine.last() + 1;
            if next <= setting.operations && host.machine.may_launch(next) {
                steps.push(Step::Launch(me));
            }
            if host.is_switching {
                steps.push(Step::Switched(me));
            }
            steps.extend(
                (1..=setting.operations).filter(|n| self.may_finish(me, *n)).map(|n| Step::Finish(me, n)),
            );
        }
        steps
    }

    /// Returns a step of a living host that nobody sees, and that any other order of steps would lead to as well: the end of an
    /// operation, open wires, and a message that is only kept, unless its sender may die before it is heard.
    fn unseen_step(&self, setting: &Setting) -> Option<Step> {
        for me in self.living() {
            let host = self.host(me);
            if host.is_switching {
                return Some(Step::Switched(me));
            }
            if let Some(number) = (1..=host.under.len() as u64).find(|number| self.may_finish(me, *number)) {
                return Some(Step::Finish(me, number));
            }
            for (from, messages) in host.messages.iter().enumerate() {
                let may_die = self.dead.is_none_or(|dead| dead == from);
                if setting.faults == Faults::OneHost && may_die {
                    continue;
                }
                let Some((epoch, position)) = messages.front().copied() else { continue };
                let mut machine = host.machine.clone();
                let is_old = epoch <= machine.epoch();
                let was_collecting = machine.is_collecting();
                let message = Message { host: from as u32, position, order: self.order(epoch) };
                let is_kept =
                    was_collecting && machine.receive(message).is_empty() && machine.is_collecting();
                if is_old || is_kept {
                    return Some(Step::Deliver { from, to: me });
                }
            }
        }
        None
    }

    /// An operation ends where all have launched it. Host 0 needs nobody, as the root of a broadcast.
    fn may_finish(&self, me: usize, number: u64) -> bool {
        let of = |host: &Host<M>| host.under[number as usize - 1];
        let host = self.host(me);
        let Some(epoch) = of(host) else { return false };
        let is_alone =
            || self.order(epoch).hosts.iter().any(|other| of(self.host(*other as usize)) != Some(epoch));
        !host.finished[number as usize - 1] && host.machine.epoch() == epoch && (me == 0 || !is_alone())
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        let (me, actions) = match step {
            Step::Dies(dead) => {
                self.dead = Some(dead);
                (0..self.hosts.len()).for_each(|me| self.change(me, |host| host.orders.push_back(SHRINK)));
                return Ok(());
            }
            Step::Order(me) => {
                let epoch = self.host(me).orders[0];
                let order = self.order(epoch);
                self.highest = self.highest.max(epoch);
                let actions = self.change(me, |host| {
                    host.orders.pop_front();
                    host.machine.order(order)
                });
                (me, actions)
            }
            Step::Deliver { from, to } => {
                let (epoch, position) = self.host(to).messages[from][0];
                let message = Message { host: from as u32, position, order: self.order(epoch) };
                let actions = self.change(to, |host| {
                    host.messages[from].pop_front();
                    host.machine.receive(message)
                });
                (to, actions)
            }
            Step::Lost(me) => {
                let dead = self.dead.expect("one died");
                let actions = self.change(me, |host| {
                    host.messages[dead].clear();
                    host.knows_of_the_dead = true;
                    host.machine.lost(dead as u32)
                });
                (me, actions)
            }
            Step::Launch(me) => {
                let number = self.host(me).machine.last() + 1;
                let before = self.change(me, |host| {
                    host.machine.launched(number);
                    host.under[number as usize - 1].replace(host.machine.epoch())
                });
                if before.is_some() {
                    return Err(format!("operation {number} runs twice at host {me}"));
                }
                // What a dead host launched alone harms nobody.
                let epochs: BTreeSet<u64> =
                    self.living().filter_map(|host| self.host(host).under[number as usize - 1]).collect();
                if epochs.len() > 1 {
                    return Err(format!("operation {number} runs under strategies {epochs:?}"));
                }
                return Ok(());
            }
            Step::Finish(me, number) => {
                let actions = self.change(me, |host| {
                    host.finished[number as usize - 1] = true;
                    host.machine.finished(number)
                });
                (me, actions)
            }
            Step::Switched(me) => {
                let actions = self.change(me, |host| {
                    host.is_switching = false;
                    host.machine.switched()
                });
                (me, actions)
            }
        };
        actions.into_iter().try_for_each(|action| self.act(me, action))
    }

    fn act(&mut self, me: usize, action: Action) -> Result<(), String> {
        match action {
            Action::Tell(message) => {
                let said = (message.order.strategy.epoch, message.position);
                for to in self.living().filter(|to| *to != me) {
                    self.change(to, |host| host.messages[me].push_back(said));
                }
            }
            Action::Switch(order) => {
                let epoch = order.strategy.epoch;
                let host = self.host(me);
                if host.is_switching {
                    return Err(format!("host {me} switches to {epoch} before it had switched"));
                }
                if self.dead.is_none()
                    && !host.finished.iter().take(host.machine.last() as usize).all(|ended| *ended)
                {
                    return Err(format!("host {me} switches to {epoch} before all has finished"));
                }
                self.change(me, |host| host.is_switching = true);
            }
            Action::Abandon { epoch, reason } => {
                if self.dead.is_none() {
                    return Err(format!("host {me} abandons {epoch}: {reason}"));
                }
                self.change(me, |host| host.is_switching = false);
            }
        }
        Ok(())
    }

    /// Checks what holds where nothing can happen any more.
    fn check_end(&self, setting: &Setting) -> Result<(), String> {
        let highest = if self.dead.is_some() { SHRINK } else { self.highest };
        for me in self.living() {
            let host = self.host(me);
            let epoch = host.machine.epoch();
            if epoch != highest {
                return Err(format!("host {me} stays at {epoch}, the highest order is {highest}"));
            }
            if host.machine.last() < setting.operations {
                return Err(format!("host {me} stops after operation {}", host.machine.last()));
            }
            if self.dead.is_none() && !host.finished.iter().all(|is_finished| *is_finished) {
                return Err(format!("host {me} has lost an operation: {:?}", host.finished));
            }
        }
        Ok(())
    }

    fn explained(&self, fault: &str) -> String {
        let mut steps = VecDeque::new();
        let mut past = &self.past;
        while let Some(one) = past {
            steps.push_front(format!("{:?}", one.step));
            past = &one.before;
        }
        format!("{fault}, after {}", steps.into_iter().collect::<Vec<_>>().join(", "))
    }
}
