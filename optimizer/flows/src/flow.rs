//! Flows and links, as they are given to a simulation.

/// A link of a simulation: one direction of a cable, or of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) usize);

/// A flow of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub(crate) usize);

impl FlowId {
    /// Returns its position among the flows of its simulation, from 0 on, in the order in which they were added.
    pub fn position(self) -> usize {
        self.0
    }
}

impl LinkId {
    /// Returns its position among the links of its simulation, from 0 on, in the order in which they were added.
    pub fn position(self) -> usize {
        self.0
    }
}

/// A transfer.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    pub(crate) route: Vec<LinkId>,
    pub(crate) bytes: f64,
    pub(crate) at: f64,
    pub(crate) after: Vec<FlowId>,
    pub(crate) delay: f64,
    pub(crate) weight: f64,
    pub(crate) limit: f64,
}

impl Flow {
    /// Creates a flow over some links, in any order; none: within a host, at once. Infinite bytes: it never ends, and no run waits for it.
    pub fn new(route: impl Into<Vec<LinkId>>, bytes: f64) -> Self {
        Self {
            route: route.into(),
            bytes,
            at: 0.0,
            after: Vec::new(),
            delay: 0.0,
            weight: 1.0,
            limit: f64::INFINITY,
        }
    }

    /// Creates a flow that only takes time, such as a computation between two transfers.
    pub fn pause(seconds: f64) -> Self {
        Self::new([], 0.0).delay(seconds)
    }

    /// Sets the earliest time at which it begins, in seconds.
    #[must_use]
    pub fn at(mut self, seconds: f64) -> Self {
        self.at = seconds;
        self
    }

    /// Lets it begin when all of these have ended.
    #[must_use]
    pub fn after(mut self, flows: &[FlowId]) -> Self {
        self.after.extend_from_slice(flows);
        self
    }

    /// Sets the seconds between the moment when it may begin and its first byte.
    #[must_use]
    pub fn delay(mut self, seconds: f64) -> Self {
        self.delay = seconds;
        self
    }

    /// Sets its weight: twice the weight is twice the share. Without: 1.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the bytes per second that it never exceeds.
    #[must_use]
    pub fn limit(mut self, rate: f64) -> Self {
        self.limit = rate;
        self
    }
}

/// Traffic of others that a link carries before all flows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Bytes per second; more than the link carries leave nothing for flows.
    pub rate: f64,
    /// When to ask again, in seconds; infinite: it stays.
    pub until: f64,
}

/// Returns bytes per second.
pub fn gigabits(per_second: f64) -> f64 {
    per_second * 1e9 / 8.0
}

/// An invalid request, or a simulation that cannot end.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum FlowError {
    /// A link does not exist.
    #[error("there is no link {0}")]
    NoLink(usize),
    /// A flow does not exist, or not yet.
    #[error("there is no flow {0} yet")]
    NoFlow(usize),
    /// A route has a link twice.
    #[error("the route has link {0} twice")]
    Twice(usize),
    /// A number is out of range.
    #[error("{what} is {value}, which is out of range")]
    Range {
        /// Name of the figure.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// Something was to begin earlier than now.
    #[error("{at} s is in the past: it is {now} s")]
    Past {
        /// When it should have begun.
        at: f64,
        /// The time.
        now: f64,
    },
    /// A flow has no share, and nothing will change that.
    #[error("from {at} s on, flow {flow} has no share of its links, and nothing changes any more")]
    Stalled {
        /// Its position.
        flow: usize,
        /// The time.
        at: f64,
    },
}
