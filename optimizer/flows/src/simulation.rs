//! Links, flows and time.
use crate::flow::{Flow, FlowError, FlowId, LinkId, Load};
use crate::shares::{Competitor, Ordered, max_min};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events closer together than this many seconds are one: the ends of flows with equal shares differ by rounding.
const SAME: f64 = 1e-12;

/// The load of a link as a function of time.
type Background = Box<dyn FnMut(f64) -> Load>;

struct Link {
    capacity: f64,
    load: f64,
    background: Option<Background>,
    /// Flows that send over it now.
    flows: Vec<usize>,
    carried: f64,
    /// The number in `changed` of the search that has found it.
    found: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Sending,
    Over,
}

struct State {
    route: Vec<usize>,
    left: f64,
    at: f64,
    delay: f64,
    weight: f64,
    limit: f64,
    /// How many others it waits for, and who waits for it.
    waits: usize,
    next: Vec<usize>,
    phase: Phase,
    /// When it began, or ended, or its rate was last looked at.
    since: f64,
    began: f64,
    rate: f64,
    /// Predictions of its end that are out of date have another number.
    prediction: u64,
    found: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Load(usize),
    End(usize, u64),
    Begin(usize),
}

/// Flows that have ended at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The time, in seconds.
    pub at: f64,
    /// The flows, ascending.
    pub flows: Vec<FlowId>,
}

/// Flows over shared links, in virtual time. The same calls in the same order have the same result, to the last bit.
#[derive(Default)]
pub struct Simulation {
    now: f64,
    links: Vec<Link>,
    flows: Vec<State>,
    /// Finite flows that have not ended.
    open: usize,
    events: BinaryHeap<Reverse<(Ordered, Event)>>,
    /// Links whose flows must be shared out again.
    changed: Vec<usize>,
    searches: u64,
}

impl Simulation {
    /// Adds a link with a capacity in bytes per second.
    ///
    /// # Errors
    /// The capacity must be finite, and not negative.
    pub fn link(&mut self, capacity: f64) -> Result<LinkId, FlowError> {
        in_range("a capacity", capacity, capacity.is_finite() && capacity >= 0.0)?;
        let link = Link { capacity, load: 0.0, background: None, flows: Vec::new(), carried: 0.0, found: 0 };
        self.links.push(link);
        Ok(LinkId(self.links.len() - 1))
    }

    /// Changes the capacity of a link from now on.
    ///
    /// # Errors
    /// The link must exist, and the capacity be finite and not negative.
    pub fn set_capacity(&mut self, link: LinkId, capacity: f64) -> Result<(), FlowError> {
        in_range("a capacity", capacity, capacity.is_finite() && capacity >= 0.0)?;
        self.links.get_mut(link.0).ok_or(FlowError::NoLink(link.0))?.capacity = capacity;
        self.changed.push(link.0);
        Ok(())
    }

    /// Lets a link carry other traffic, which comes before all flows. The function is asked at once, and then whenever it has said.
    ///
    /// # Errors
    /// The link must exist.
    pub fn background(
        &mut self,
        link: LinkId,
        load: impl FnMut(f64) -> Load + 'static,
    ) -> Result<(), FlowError> {
        self.links.get_mut(link.0).ok_or(FlowError::NoLink(link.0))?.background = Some(Box::new(load));
        self.events.push(Reverse((Ordered(self.now), Event::Load(link.0))));
        Ok(())
    }

    /// Adds a flow.
    ///
    /// # Errors
    /// Its links, and the flows that it waits for, must exist, its numbers make sense, and its beginning must not be in the past.
    pub fn flow(&mut self, flow: Flow) -> Result<FlowId, FlowError> {
        let route = self.checked_route(&flow.route)?;
        in_range("the bytes of a flow", flow.bytes, flow.bytes >= 0.0)?;
        in_range("the weight of a flow", flow.weight, flow.weight.is_finite() && flow.weight > 0.0)?;
        in_range("the limit of a flow", flow.limit, flow.limit > 0.0)?;
        in_range("the delay of a flow", flow.delay, flow.delay.is_finite() && flow.delay >= 0.0)?;
        in_range("the time of a flow", flow.at, flow.at.is_finite())?;
        // A flow that names no time begins now, also in the middle of a run.
        let at = if flow.at == 0.0 { self.now } else { flow.at };
        if at < self.now {
            return Err(FlowError::Past { at, now: self.now });
        }
        let position = self.flows.len();
        if let Some(missing) = flow.after.iter().find(|other| other.0 >= position) {
            return Err(FlowError::NoFlow(missing.0));
        }
        let mut waits = 0;
        for other in flow.after {
            let other = &mut self.flows[other.0];
            if other.phase != Phase::Over {
                other.next.push(position);
                waits += 1;
            }
        }
        let (left, delay, weight, limit) = (flow.bytes, flow.delay, flow.weight, flow.limit);
        let next = Vec::new();
        let phase = Phase::Waiting;
        let (since, began, rate, prediction, found) = (at, at, 0.0, 0, 0);
        #[rustfmt::skip]
        self.flows.push(State { route, left, at, delay, weight, limit, waits, next, phase, since, began, rate, prediction, found });
        self.open += usize::from(left.is_finite());
        if waits == 0 {
            self.events.push(Reverse((Ordered(at + delay), Event::Begin(position))));
        }
        Ok(FlowId(position))
    }

    /// Sends what is left of a flow by another route from now on.
    ///
    /// # Errors
    /// The flow and the links must exist.
    pub fn reroute(&mut self, flow: FlowId, route: &[LinkId]) -> Result<(), FlowError> {
        let route = self.checked_route(route)?;
        let phase = self.flows.get(flow.0).ok_or(FlowError::NoFlow(flow.0))?.phase;
        if phase == Phase::Sending {
            self.settle(flow.0);
            self.leave(flow.0);
        }
        self.flows[flow.0].route = route;
        if phase == Phase::Sending {
            self.join(flow.0);
        }
        Ok(())
    }

    /// Runs until some flows end; `None`: all finite flows have ended.
    ///
    /// # Errors
    /// A flow has no share, and nothing will change that.
    pub fn advance(&mut self) -> Result<Option<Ended>, FlowError> {
        if self.open == 0 {
            return Ok(None);
        }
        loop {
            let mut ended = Vec::new();
            while let Some(&Reverse((Ordered(at), event))) = self.events.peek() {
                if at > self.now + SAME {
                    break;
                }
                self.events.pop();
                match event {
                    Event::Load(link) => self.load(link),
                    Event::Begin(flow) => self.begin(flow),
                    Event::End(flow, prediction) => {
                        if self.is_current(flow, prediction) {
                            self.end_flow(flow);
                            ended.push(FlowId(flow));
                        }
                    }
                }
            }
            if !ended.is_empty() {
                ended.sort_unstable();
                return Ok(Some(Ended { at: self.now, flows: ended }));
            }
            self.share();
            let mut earliest = None;
            while let Some(&Reverse((Ordered(at), event))) = self.events.peek() {
                match event {
                    Event::End(flow, prediction) if !self.is_current(flow, prediction) => self.events.pop(),
                    _ => {
                        earliest = Some(at);
                        break;
                    }
                };
            }
            let Some(at) = earliest else {
                let is_stuck = |flow: &State| flow.phase != Phase::Over && flow.left.is_finite();
                let flow = self.flows.iter().position(is_stuck).unwrap_or_default();
                return Err(FlowError::Stalled { flow, at: self.now });
            };
            self.now = self.now.max(at);
        }
    }

    /// Runs until all finite flows have ended, and returns the time of the last end.
    ///
    /// # Errors
    /// A flow has no share, and nothing will change that.
    pub fn run(&mut self) -> Result<f64, FlowError> {
        while self.advance()?.is_some() {}
        Ok(self.now)
    }

    /// Returns the time, in seconds.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Returns when a flow began to send, in seconds; `None`: it has not.
    pub fn beginning(&self, flow: FlowId) -> Option<f64> {
        self.flows.get(flow.0).filter(|flow| flow.phase != Phase::Waiting).map(|flow| flow.began)
    }

    /// Returns when a flow ended, in seconds; `None`: it has not.
    pub fn end(&self, flow: FlowId) -> Option<f64> {
        self.flows.get(flow.0).filter(|flow| flow.phase == Phase::Over).map(|flow| flow.since)
    }

    /// Returns what each flow sends now, in bytes per second, by position. A flow that does not send has 0.
    pub fn rates(&mut self) -> Vec<f64> {
        self.share();
        self.flows.iter().map(|flow| flow.rate).collect()
    }

    /// Returns the flows that send over a link now, in no order that means anything.
    pub fn flows_over(&self, link: LinkId) -> Vec<FlowId> {
        self.links
            .get(link.0)
            .map_or_else(Vec::new, |link| link.flows.iter().map(|&flow| FlowId(flow)).collect())
    }

    /// Returns what a link has for flows now, in bytes per second.
    pub fn capacity(&self, link: LinkId) -> f64 {
        self.links.get(link.0).map_or(0.0, Link::available)
    }

    /// Returns the bytes of flows that a link has carried until now.
    pub fn carried(&self, link: LinkId) -> f64 {
        let Some(link) = self.links.get(link.0) else { return 0.0 };
        let under_way = |&flow: &usize| self.flows[flow].rate * (self.now - self.flows[flow].since);
        link.carried + link.flows.iter().map(under_way).sum::<f64>()
    }

    fn checked_route(&self, route: &[LinkId]) -> Result<Vec<usize>, FlowError> {
        for (position, link) in route.iter().enumerate() {
            if link.0 >= self.links.len() {
                return Err(FlowError::NoLink(link.0));
            }
            if route[..position].contains(link) {
                return Err(FlowError::Twice(link.0));
            }
        }
        Ok(route.iter().map(|link| link.0).collect())
    }

    fn is_current(&self, flow: usize, prediction: u64) -> bool {
        self.flows[flow].phase == Phase::Sending && self.flows[flow].prediction == prediction
    }

    fn load(&mut self, position: usize) {
        let link = &mut self.links[position];
        let Some(background) = &mut link.background else { return };
        let load = background(self.now);
        if load.until > self.now + SAME && load.until.is_finite() {
            self.events.push(Reverse((Ordered(load.until), Event::Load(position))));
        }
        if link.load != load.rate {
            link.load = load.rate;
            self.changed.push(position);
        }
    }

    fn begin(&mut self, position: usize) {
        let flow = &mut self.flows[position];
        (flow.phase, flow.began, flow.since) = (Phase::Sending, self.now, self.now);
        if flow.left == 0.0 {
            self.predict(position, f64::INFINITY);
        } else if flow.route.is_empty() {
            let limit = flow.limit;
            self.predict(position, limit);
        } else {
            self.join(position);
        }
    }

    fn join(&mut self, position: usize) {
        if self.flows[position].route.is_empty() {
            let limit = self.flows[position].limit;
            self.predict(position, limit);
        }
        for &link in &self.flows[position].route {
            self.links[link].flows.push(position);
            self.changed.push(link);
        }
    }

    fn leave(&mut self, position: usize) {
        for &link in &self.flows[position].route {
            let flows = &mut self.links[link].flows;
            if let Some(place) = flows.iter().position(|&flow| flow == position) {
                flows.swap_remove(place);
            }
            self.changed.push(link);
        }
    }

    fn end_flow(&mut self, position: usize) {
        self.settle(position);
        // Rounding has left a little, or taken a little too much.
        let rest = std::mem::take(&mut self.flows[position].left);
        for &link in &self.flows[position].route {
            self.links[link].carried += rest;
        }
        self.leave(position);
        self.open -= 1;
        (self.flows[position].phase, self.flows[position].rate) = (Phase::Over, 0.0);
        for next in std::mem::take(&mut self.flows[position].next) {
            let flow = &mut self.flows[next];
            flow.waits -= 1;
            if flow.waits == 0 {
                let at = flow.at.max(self.now) + flow.delay;
                self.events.push(Reverse((Ordered(at), Event::Begin(next))));
            }
        }
    }

    /// Counts what a flow has sent until now.
    fn settle(&mut self, position: usize) {
        let flow = &mut self.flows[position];
        let seconds = self.now - flow.since;
        flow.since = self.now;
        if seconds <= 0.0 || flow.rate == 0.0 {
            return;
        }
        let sent = flow.rate * seconds;
        flow.left -= sent;
        for &link in &flow.route {
            self.links[link].carried += sent;
        }
    }

    /// Gives a flow a rate, and predicts its end.
    fn predict(&mut self, position: usize, rate: f64) {
        let flow = &mut self.flows[position];
        (flow.rate, flow.prediction) = (rate, flow.prediction + 1);
        let seconds = if rate == f64::INFINITY { 0.0 } else { flow.left.max(0.0) / rate };
        if flow.left == 0.0 || (rate > 0.0 && seconds.is_finite()) {
            let end = Event::End(position, flow.prediction);
            self.events.push(Reverse((Ordered(self.now + seconds), end)));
        }
    }

    /// Shares links out again to all flows that a change can reach: those over a changed link, over the other links of these, and so on.
    fn share(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        self.searches += 1;
        let search = self.searches;
        // Place of each link among those found.
        let mut links: Vec<usize> = Vec::new();
        let mut flows: Vec<usize> = Vec::new();
        for link in std::mem::take(&mut self.changed) {
            if std::mem::replace(&mut self.links[link].found, search) != search {
                links.push(link);
            }
        }
        let mut looked_at = 0;
        while let Some(&link) = links.get(looked_at) {
            looked_at += 1;
            let over = std::mem::take(&mut self.links[link].flows);
            for &flow in &over {
                if std::mem::replace(&mut self.flows[flow].found, search) == search {
                    continue;
                }
                flows.push(flow);
                for &other in &self.flows[flow].route {
                    if std::mem::replace(&mut self.links[other].found, search) != search {
                        links.push(other);
                    }
                }
            }
            self.links[link].flows = over;
        }
        links.sort_unstable();
        flows.sort_unstable();
        let capacities: Vec<f64> = links.iter().map(|&link| self.links[link].available()).collect();
        let place = |link: &usize| links.binary_search(link).unwrap_or_default();
        let routes: Vec<Vec<usize>> =
            flows.iter().map(|&flow| self.flows[flow].route.iter().map(place).collect()).collect();
        let competitors: Vec<Competitor<'_>> = (flows.iter().zip(&routes))
            .map(|(&flow, route)| Competitor {
                links: route,
                weight: self.flows[flow].weight,
                limit: self.flows[flow].limit,
            })
            .collect();
        for (&flow, rate) in flows.iter().zip(max_min(&capacities, &competitors)) {
            // A flow that keeps its rate keeps its prediction, and so no rounding adds up.
            if rate != self.flows[flow].rate {
                self.settle(flow);
                self.predict(flow, rate);
            }
        }
    }
}

impl Link {
    fn available(&self) -> f64 {
        (self.capacity - self.load).max(0.0)
    }
}

fn in_range(what: &'static str, value: f64, is_valid: bool) -> Result<(), FlowError> {
    if is_valid { Ok(()) } else { Err(FlowError::Range { what, value }) }
}
