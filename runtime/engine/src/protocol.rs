//! Messages between the coordinator of a run and its hosts: plain data, in memory or over a socket.
//!
//! The *coordinator* owns the slots' lifecycle and decides: which start, from which epoch, when to stop, and the
//! checkpoints. A *host* is a process with the resources of some workers: it starts their slots, connects links, opens
//! sinks and models, and reports. A run in one process is such a pair, too.
//!
//! Each side's messages arrive in order, or the connection is lost as a whole: a host's notices before a part of a
//! checkpoint (dead letters, cuts of epochs) are known when the part is.
pub(crate) mod examples;
#[cfg(test)]
mod mutations;

use crate::checkpoint::{JournalOrder, Past, SinkPast, StageChange};
use crate::emulation::HostEmulation;
use crate::failure::RunError;
use crate::frame::{Epoch, Nanoseconds};
use crate::metrics::Figures;
use crate::samples::{FoundSources, SampleMessage, SampleOptions};
use crate::store::{EpochEntry, EpochLog};
use crate::traces::{Span, TraceOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_link::remote::Address;
use tidemill_operators::api::DeadLetter;
use tidemill_operators::feeds::FeedOrder;

/// An order of the coordinator to a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Load the models of its stages and nothing else: the run of its plan starts later, when another plan of this run has
    /// ended.
    Prepare,
    /// The description of the run, with which the host opens its own parts.
    Begin(Box<Beginning>),
    /// The new address of another host.
    Peer { host: String, address: Address },
    /// The new identity in another host's certificate; a peer with another one is not that host.
    Identity { host: String, identity: String },
    /// All hosts are open: the run starts at this engine time. Comes before any slot is started; until then the values of
    /// [`Beginning`] apply.
    Started { at: Nanoseconds, elapsed_before: Nanoseconds },
    /// Start a slot, or restart it. `resume_at`, by instance: everything before is durable downstream.
    Start { slot: usize, incarnation: u32, resume_at: Vec<Epoch>, new_executor: Option<String> },
    /// The receiver of a channel has ended well: everything is durable there.
    ReceiverFinished { channel: usize },
    /// Request for the changes of the host's stages, sources and sinks, for a checkpoint of `epoch`.
    Part(PartRequest),
    /// The checkpoint of this epoch is written: a restarted host needs nothing before it.
    KeepFrom(Epoch),
    /// Orders for the journals of sources, by source, including those of the host.
    Journals(BTreeMap<String, JournalOrder>),
    /// All letters of the epochs before this one are durable.
    LettersDurable(Epoch),
    /// End the sources; records in transit are processed.
    Stop,
    /// End all slots at once; nothing more is committed.
    Abort,
    /// All slots have ended: close the sinks. `will_continue`: another process continues from the last checkpoint;
    /// `cut_short`: sources had more records than the run was to read.
    Close {
        complete: bool,
        will_continue: bool,
        #[serde(default)]
        cut_short: bool,
    },
    /// Nothing more follows.
    Leave,
    /// Request for the source records that a sink's record came from, among those sent by the host's sources.
    FindSources { number: u64, sink: String, record: Vec<u8> },
    /// The records of sinks are being inspected: for a while they are sent when they are kept.
    ShowSamples,
    /// Change the feeds of a source that the host reads.
    Feed { number: u64, source: String, order: FeedOrder },
    /// The engine time at which the ping of this number arrived.
    Pong { number: u64, now: Nanoseconds },
}

/// Description of a run for a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Beginning {
    /// Engine time at which the run started.
    pub(crate) started: Nanoseconds,
    /// Engine time of the processes that this run continues.
    pub(crate) elapsed_before: Nanoseconds,
    /// State to continue from.
    pub(crate) past: Option<Past>,
    /// Limit on the records of each source.
    pub(crate) records: Option<u64>,
    /// Limit on the engine time of sources.
    pub(crate) duration: Option<Nanoseconds>,
    /// Copies of one model that may run at once.
    pub(crate) model_copies: usize,
    /// Epochs of a former run to repeat, by source stage.
    pub(crate) replay: Option<BTreeMap<String, EpochLog>>,
    /// Any slot may be restarted, not only where an operator asks for it.
    pub(crate) recoverable: bool,
    /// Whether to keep data that other hosts may request again until a checkpoint has it.
    pub(crate) keeps_for_checkpoints: bool,
    /// Whether the run keeps checkpoints.
    pub(crate) is_durable: bool,
    /// Rows by sink that earlier processes of the run had committed when it was continued.
    pub(crate) rows_before: BTreeMap<String, u64>,
    /// Factor by which the run is slower than real time.
    pub(crate) dilation: f64,
    /// Addresses of the other hosts.
    pub(crate) peers: BTreeMap<String, Address>,
    /// Identities in their certificates, if known.
    pub(crate) identities: BTreeMap<String, String>,
    /// Emulation of workers and wires, if any.
    pub(crate) emulation: Option<HostEmulation>,
    /// Sampling of records, if any.
    pub(crate) samples: Option<SampleOptions>,
    /// Tracing of records, if any.
    #[serde(default)]
    pub(crate) traces: Option<TraceOptions>,
}

/// Requested part of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PartRequest {
    pub(crate) number: u64,
    pub(crate) epoch: Epoch,
    /// Epoch of the previous checkpoint: calls of earlier epochs are written.
    pub(crate) from: Epoch,
    /// By stage instance: the newest written snapshot.
    pub(crate) snapshots: BTreeMap<String, Epoch>,
    /// Whether the sinks are closed.
    pub(crate) is_complete: bool,
}

/// A host's part of a checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) stages: BTreeMap<String, StageChange>,
    pub(crate) sources: BTreeMap<String, EpochLog>,
    pub(crate) sinks: BTreeMap<String, SinkPast>,
}

/// A notice of a host to the coordinator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// First message of a host in another process.
    Hello(Hello),
    /// Request for the time, answered with this number. Sent occasionally once the run has started: before, its time may be
    /// unknown.
    Ping(u64),
    /// The models are loaded, or an error.
    Prepared(Result<(), RunError>),
    /// Everything is opened, or an error.
    Opened(Result<(), RunError>),
    /// By instance of the slot: everything before is durable downstream.
    Durable { slot: usize, incarnation: u32, epochs: Vec<Epoch> },
    /// A slot has ended; `durable` as in [`Notice::Durable`]. `heard`: by channel out of it, the incarnation of the
    /// receiver that had reported everything as durable; the receiver's own notice may come later.
    Ended {
        slot: usize,
        incarnation: u32,
        durable: Vec<Epoch>,
        end: End,
        #[serde(default)]
        heard: BTreeMap<usize, u32>,
    },
    /// A dead letter of an operator; only from other processes.
    Letter { operator: String, epoch: Epoch, letter: DeadLetter },
    /// An epoch of a source starts; only from other processes.
    Epoch { source: String, entry: EpochEntry },
    /// The requested part; `None`: not available now, the next checkpoint will have it.
    Part { number: u64, part: Result<Option<Part>, String> },
    /// A sink's record was kept; only from other processes.
    Sample(Box<SampleMessage>),
    /// The requested source records, as far as they are there.
    SourcesFound { number: u64, sources: FoundSources },
    /// The order of this number was followed, or the reason why not.
    FeedAnswered { number: u64, answer: Result<(), String> },
    /// Spans of traced records; only from other processes.
    Spans(Vec<Span>),
    /// All current figures; only from other processes.
    Figures(Box<Figures>),
    /// The sinks are closed, or an error.
    Closed(Result<(), RunError>),
    /// Losses for lack of room since the last such notice; only from other processes.
    #[serde(rename = "NotTold")]
    LostNotices(LostNotices),
}

/// Lost notices of a host: the coordinator was away, and the host's memory is bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostNotices {
    /// Dead letters.
    pub(crate) letters: u64,
    /// Spans of traced records.
    pub(crate) spans: u64,
}

/// Identification of a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Digest of the graph that it has made of the plan: the coordinator's must be equal.
    pub(crate) graph: u64,
    /// Its address for other hosts; `None`: it dials.
    pub(crate) address: Option<Address>,
    /// Present if it has continued without its coordinator.
    pub(crate) standing: Option<Box<Standing>>,
}

/// State of a host that continued without its coordinator. Letters and cuts of epochs that no checkpoint has come before
/// it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Engine time at which the run started.
    pub(crate) started: Nanoseconds,
    /// See [`Beginning`].
    pub(crate) elapsed_before: Nanoseconds,
    /// Present engine time.
    pub(crate) now: Nanoseconds,
    /// Its started slots.
    pub(crate) slots: BTreeMap<usize, StandingSlot>,
    /// By channel: newest known incarnations of the other ends.
    pub(crate) met: BTreeMap<usize, u32>,
    /// Its sinks are closed, or an error: its work is done, and it cannot continue.
    pub(crate) closed: Option<Result<(), RunError>>,
}

impl Standing {
    /// Updates the slots, and the result of closing the sinks.
    pub(crate) fn remember(&mut self, notice: &Notice) {
        remember(&mut self.slots, notice);
        if let Notice::Closed(closed) = notice {
            self.closed = Some(closed.clone());
        }
    }
}

/// Updates the known slots.
pub(crate) fn remember(slots: &mut BTreeMap<usize, StandingSlot>, notice: &Notice) {
    let (Notice::Durable { slot, incarnation, epochs: durable }
    | Notice::Ended { slot, incarnation, durable, .. }) = notice
    else {
        return;
    };
    if let Some(known) = slots.get_mut(slot).filter(|slot| slot.incarnation == *incarnation) {
        known.durable.clone_from(durable);
        if let Notice::Ended { end, .. } = notice {
            known.end = Some(end.clone());
        }
    }
}

/// A slot, its newest incarnation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StandingSlot {
    pub(crate) incarnation: u32,
    /// By instance: everything before is durable downstream.
    pub(crate) durable: Vec<Epoch>,
    /// Its end; `None` while it runs.
    pub(crate) end: Option<End>,
}

/// End of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// All its output is durable.
    Finished,
    /// By order.
    Aborted,
    /// Killed by a test; is restarted.
    Killed,
    /// The run must end.
    Failed(RunError),
    /// An operator panicked.
    Panicked { operator: String, text: String, restarts: bool, found_cause: bool },
    /// The executor of a model died.
    ExecutorLost {
        instance: String,
        operator: String,
        text: String,
        restarts: bool,
        narrows: bool,
        found_cause: bool,
    },
}
