//! Hosts that continue while links to other hosts are cut: what a worker of a plan does then, what its host keeps
//! meanwhile, and whether its sources may be ahead of what is durable.
mod epochs;
mod kept;
mod stand_in;

pub(crate) use epochs::EpochRanges;
pub(crate) use kept::{KeptRecords, Next};
pub(crate) use stand_in::{LetGo, StandIn};

use crate::clock::Nanoseconds;
use crate::frame::Control;
use crate::graph::Program;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_link::remote::PEER_TIMEOUT;
use tidemill_spec::plan::PlanEdge;
use tidemill_spec::units::Bytes;
use tidemill_spec::workflow::WhenCut;

/// Time without a connection after which a channel counts as cut: until then it may just be redialled.
pub(crate) const CUT_AFTER: Nanoseconds = 1_000_000_000;
/// How long an isolated host may still write after its time is over: it has to notice that it is alone, to give up
/// dialling, and to close its files.
pub const FENCE: Duration = Duration::from_secs(30);
/// Bytes that a host keeps in memory while an edge is cut; more goes to its disk.
const IN_MEMORY: i64 = 16 << 20;

/// Behaviour of a worker of a plan that receives from no other host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alone {
    /// It continues for this time; until then, and [`FENCE`] more, no other host may have its work.
    GoesOn(Duration),
    /// The run ends after this time.
    Stops(Duration),
}

impl Alone {
    /// Returns how long it runs by itself.
    pub fn patience(self) -> Duration {
        match self {
            Self::GoesOn(time) | Self::Stops(time) => time,
        }
    }
}

impl Program {
    /// Returns the policy of an edge that is cut; none where the plan has none, and where both of its ends are on one
    /// worker.
    pub fn when_cut(&self, edge: &PlanEdge) -> Option<&WhenCut> {
        let stage = |id: &str| self.plan.stages.iter().find(|stage| stage.id == id);
        let (from, to) = (stage(&edge.from)?, stage(&edge.to)?);
        if from.worker == to.worker {
            return None;
        }
        self.when_cut.get(&(to.operator.clone(), edge.input))
    }

    /// Returns the behaviour of a worker of the plan that receives from no other host; none: the default of hosts. An
    /// edge that ends the run when it is cut has priority over edges that keep their records. Workers of one place
    /// continue together: they are cut together.
    pub fn alone(&self, worker: &str) -> Option<Alone> {
        let stops = self.ends_of(worker).filter_map(|(_, when_cut)| match when_cut {
            WhenCut::Stop(stop) => Some(Duration::from_nanos(stop.after().0)),
            WhenCut::Buffer(_) | WhenCut::Degrade(_) => None,
        });
        if let Some(after) = stops.min() {
            return Some(Alone::Stops(after));
        }
        let place_of = |worker: &str| {
            let place = self.plan.workers.iter().find(|known| known.id == worker);
            place.map(|place| (place.tier.as_str(), place.location.as_deref()))
        };
        let place = place_of(worker);
        let workers: BTreeSet<&str> = self.plan.stages.iter().map(|stage| stage.worker.as_str()).collect();
        let near = workers
            .into_iter()
            .filter(|other| *other == worker || place.is_some() && place_of(other) == place);
        let times = near.flat_map(|near| self.ends_of(near)).filter_map(|(sends, when_cut)| match when_cut {
            _ if !sends => None,
            when_cut => when_cut.kept().map(|kept| Duration::from_nanos(kept.time().0)),
        });
        times.max().map(Alone::GoesOn)
    }

    /// Returns the ends, on a worker, of edges with a policy for cuts: whether the worker sends, and the policy.
    fn ends_of<'a>(&'a self, worker: &'a str) -> impl Iterator<Item = (bool, &'a WhenCut)> {
        let has =
            move |id: &str| self.plan.stages.iter().any(|stage| stage.id == id && stage.worker == worker);
        self.plan.edges.iter().filter_map(move |edge| {
            let sends = has(&edge.from);
            let when_cut = self.when_cut(edge).filter(|_| sends || has(&edge.to))?;
            Some((sends, when_cut))
        })
    }
}

/// Data kept beyond the usual because an edge is cut. The cut channel reports it to the upstream stages, as it
/// reports what is durable, with the bytes that each host on the path may keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hold {
    /// Nothing.
    #[default]
    None,
    /// Data that came while it was cut, until it is delivered.
    Delivers(u64),
    /// Data that comes while it is cut.
    Cut(u64),
}

impl Hold {
    /// Returns the message to the sender of a channel.
    pub(crate) fn told(self) -> Control {
        match self {
            Self::None => Control::Ahead(0),
            Self::Delivers(bytes) => Control::Delivers(bytes),
            Self::Cut(bytes) => Control::Ahead(bytes),
        }
    }

    /// Returns the hold that a message reports.
    pub(crate) fn of_ahead(bytes: u64) -> Self {
        if bytes == 0 { Self::None } else { Self::Cut(bytes) }
    }
}

/// State of cut edges that the slots of one host share.
pub(crate) struct Cuts {
    /// Folder for records that exceed the memory limit.
    folder: PathBuf,
    /// Its sources continue until a cut is noticed.
    pub(crate) is_held: bool,
    /// Channels that keep more than usual.
    open: AtomicUsize,
    /// Bytes that all channels keep, and those of them in memory.
    kept: AtomicI64,
    in_memory: AtomicI64,
    /// The disk is full.
    is_disk_full: AtomicBool,
    /// It was notified that nothing more can be kept.
    is_told_full: AtomicBool,
}

impl Cuts {
    /// Makes the state of a host that has its files in `folder`.
    pub(crate) fn new(folder: PathBuf, is_held: bool) -> Self {
        Self {
            folder,
            is_held,
            open: AtomicUsize::new(0),
            kept: AtomicI64::new(0),
            in_memory: AtomicI64::new(0),
            is_disk_full: AtomicBool::new(false),
            is_told_full: AtomicBool::new(false),
        }
    }

    /// Records a change of what a channel keeps.
    pub(crate) fn change(&self, before: Hold, after: Hold) {
        match (before, after) {
            (Hold::None, Hold::None) => {}
            (Hold::None, _) => {
                let is_first = self.open.fetch_add(1, Ordering::AcqRel) == 0;
                // The disk may have space again: try it.
                self.is_disk_full.fetch_and(!is_first, Ordering::AcqRel);
            }
            (_, Hold::None) => {
                let is_last = self.open.fetch_sub(1, Ordering::AcqRel) == 1;
                self.is_told_full.fetch_and(!is_last, Ordering::AcqRel);
            }
            _ => {}
        }
    }

    /// Returns whether a source may be further ahead of what is durable than usual: an edge downstream of it is cut,
    /// and there is room for its output. One that can wait at no cost waits as soon as the edge is back.
    pub(crate) fn goes_on(&self, hold: Hold, can_wait: bool) -> bool {
        let (bytes, may) = match hold {
            Hold::None => return false,
            Hold::Delivers(bytes) => (bytes, !can_wait),
            Hold::Cut(bytes) => (bytes, true),
        };
        let has_room = self.has_room(bytes);
        if !has_room && !self.is_told_full.swap(true, Ordering::AcqRel) {
            let most = Bytes(bytes);
            tracing::warn!(
                "all that may be kept while an edge is cut is kept ({most}): sources wait until some of it is delivered"
            );
        }
        may && has_room
    }

    fn has_room(&self, bytes: u64) -> bool {
        let kept = u64::try_from(self.kept.load(Ordering::Acquire)).unwrap_or(0);
        let is_disk_full = self.is_disk_full.load(Ordering::Acquire);
        kept < bytes && !(is_disk_full && self.in_memory.load(Ordering::Acquire) >= IN_MEMORY)
    }

    /// Returns whether further kept data goes to the disk.
    fn spills(&self, bytes: usize) -> bool {
        self.open.load(Ordering::Acquire) > 0
            && !self.is_disk_full.load(Ordering::Acquire)
            && self.in_memory.load(Ordering::Acquire).saturating_add(bytes as i64) > IN_MEMORY
    }

    /// Adds to the kept bytes, and to those of them in memory; either may be negative.
    fn keep(&self, bytes: i64, in_memory: i64) {
        self.kept.fetch_add(bytes, Ordering::AcqRel);
        self.in_memory.fetch_add(in_memory, Ordering::AcqRel);
    }

    fn disk_failed(&self, error: &std::io::Error) {
        if !self.is_disk_full.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                "`{}` takes nothing more while an edge is cut ({error}): what does not fit into {} MiB of memory waits at its source",
                self.folder.display(),
                IN_MEMORY >> 20
            );
        }
    }

    /// Marks the disk as possibly free: nothing is on it any more, or it was full long ago.
    fn disk_is_free(&self) {
        self.is_disk_full.store(false, Ordering::Release);
    }
}

/// Returns the epochs that a source may be further ahead than two checkpoint intervals, so that it does not wait
/// until a cut is noticed: a silent peer is lost after [`PEER_TIMEOUT`].
pub(crate) fn unnoticed_epochs(tick: Nanoseconds) -> u64 {
    let unnoticed = PEER_TIMEOUT.as_nanos() as Nanoseconds + 2 * CUT_AFTER;
    u64::try_from(unnoticed / tick.max(1)).unwrap_or(0)
}
