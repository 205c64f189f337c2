//! Events that the coordinator receives from its hosts, and orders that it gives them.
use crate::checkpoint::{JournalOrder, Past};
use crate::protocol::{Hello, Notice, Order};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A message to the run's own thread.
pub(crate) enum Event {
    /// A notice of a host, by number.
    Notice {
        host: usize,
        notice: Notice,
    },
    /// A checkpoint is written (`false`: it will not be kept), or the error.
    Written(Result<bool, String>),
    /// Orders for the journals of sources that hosts read.
    Journals(BTreeMap<String, JournalOrder>),
    /// The last checkpoint, read again.
    Past(Result<Past, String>),
    /// A process joins as a host.
    HostJoined {
        host: usize,
        joined: Joined,
    },
    /// The connection to a process is gone.
    HostLost {
        host: usize,
        process: u64,
        why: String,
    },
    Stop,
    /// Ends the run at its last checkpoint, without these hosts.
    StopWithout(Vec<String>),
    Abort,
    /// Leaves the hosts to another coordinator.
    StepDown,
}

/// Gives a host its orders; any thread may.
pub(crate) type Orders = Arc<dyn Fn(Order) + Send + Sync>;

/// A host that has joined.
pub(crate) struct Joined {
    pub(crate) orders: Orders,
    pub(crate) hello: Hello,
    /// The identity of its certificate, if it has one.
    pub(crate) identity: Option<String>,
    /// Numbers the processes of one host, so that events of an older one are recognised.
    pub(crate) process: u64,
}
