//! Things that are measured: workloads, scenarios, and what came out.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of every reply, and of small requests.
pub const SMALL: usize = 64;

/// Work of a client.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Workload {
    /// One call in flight: 64 bytes there, 64 bytes back.
    Latency,
    /// The same at a fixed rate per second; a latency begins when the call was due, not when it was sent.
    Open(f64),
    /// 128 calls of 64 bytes in flight.
    Rate,
    /// 128 calls of 8 KiB in flight.
    Good8k,
    /// 8 calls of 1 MiB in flight.
    Good1m,
    /// Messages of 8 KiB on one stream after another, 2,000 each; the server answers the last one.
    Stream,
    /// Small calls at a fixed rate per second, beside calls of 32 KiB of which 64 are in flight. A rate of 0 and `false`
    /// leave one of the two out.
    Qos(f64, bool),
    /// Payloads of so many bytes from one process to another of this host, one at a time.
    Channel(usize),
    /// So many calls of 64 bytes in flight, with a filter and without one in turns.
    Paired(usize),
}

impl Workload {
    /// Bytes of a request, and requests in flight.
    pub fn shape(self) -> (usize, usize) {
        match self {
            Self::Latency | Self::Open(_) => (SMALL, 1),
            Self::Rate => (SMALL, 128),
            Self::Good8k => (8 << 10, 128),
            Self::Good1m => (1 << 20, 8),
            Self::Stream => (8 << 10, 1),
            Self::Qos(..) => (32 << 10, 64),
            Self::Channel(bytes) => (bytes, 1),
            Self::Paired(in_flight) => (SMALL, in_flight),
        }
    }
}

/// Filter of a call, in the proxy or service of the client's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Filter {
    /// Nothing.
    None,
    /// A policy that does nothing.
    Null,
    /// A rate limiter that never refuses.
    Limiter,
    /// Access by the caller's role, which is right in 99 of 100 calls.
    Acl,
}

/// A link between two network namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Namespace of the client.
    pub client: String,
    /// Namespace of the server.
    pub server: String,
    /// Address of the server.
    pub address: String,
}

/// Set-up of a measurement, which a contender starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Filter that calls go through.
    pub filter: Filter,
    /// Services in a chain; each calls the next. 1: one server.
    pub services: usize,
    /// Where it is: on loopback, or on both sides of a link.
    pub link: Option<Link>,
    /// Work that follows.
    pub workload: Workload,
}

impl Scenario {
    /// Whether filters come and go while it runs, which only the product can.
    pub fn is_paired(&self) -> bool {
        matches!(self.workload, Workload::Paired(_))
    }
}

/// Work of a client process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The workload.
    pub workload: Workload,
    /// The filter that the scenario has.
    pub filter: Filter,
    /// Whether each call says its caller's role.
    pub roles: bool,
    /// Seconds before the measurement.
    pub warmup: f64,
    /// Seconds of the measurement.
    pub seconds: f64,
}

/// Observations of a client process. Times are in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Calls that were answered.
    pub calls: u64,
    /// Payload bytes of them.
    pub bytes: u64,
    /// Calls that a filter refused.
    pub refused: u64,
    /// Calls that failed otherwise.
    pub errors: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Mean latency.
    pub mean: f64,
    /// Half of the calls took less.
    pub p50: f64,
    /// 99 % took less.
    pub p99: f64,
    /// 99.9 % took less.
    pub p999: f64,
    /// Further figures, by their names.
    pub more: BTreeMap<String, f64>,
}

/// Collects latencies.
pub struct Latencies(hdrhistogram::Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let range = hdrhistogram::Histogram::new_with_bounds(1, 100_000_000_000, 3);
        Self(range.expect("the bounds are valid"))
    }
}

impl Latencies {
    /// Adds one, in nanoseconds.
    pub fn add(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds.max(1));
    }

    /// Puts them into an outcome.
    pub fn write_to(&self, outcome: &mut Outcome) {
        if self.0.is_empty() {
            return;
        }
        let at = |share| self.0.value_at_quantile(share) as f64 / 1e3;
        (outcome.mean, outcome.p50) = (self.0.mean() / 1e3, at(0.5));
        (outcome.p99, outcome.p999) = (at(0.99), at(0.999));
    }

    /// The median in microseconds; 0 without any.
    pub fn median(&self) -> f64 {
        self.0.value_at_quantile(0.5) as f64 / 1e3
    }
}
