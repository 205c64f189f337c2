//! What the coordinator of a run and its hosts tell each other: plain data, in memory or over a socket.
//!
//! The *coordinator* owns the lives of the slots and decides: who starts, from which epoch, when to stop, what is a checkpoint. A
//! *host* is a process with the resources of some workers: it starts their slots, connects links, opens sinks and models, and
//! reports. A run in one process is the very same pair.
//!
//! Each side's words arrive in the order in which they were sent, or the connection is lost as a whole: what a host said before
//! a part of a checkpoint (dead letters, cuts of epochs) is known when the part is.
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

/// What the coordinator tells a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Loads the models of its stages and nothing else: the run of its plan begins later, when another plan of the same run has
    /// been ended.
    Prepare,
    /// What the run is, so that the host can open what is its own.
    Begin(Box<Beginning>),
    /// Where another host is reached from now on.
    Peer { host: String, address: Address },
    /// Who the certificate of another host is of from now on; who shows another one is not that host.
    Identity { host: String, identity: String },
    /// All hosts are open: the run begins at this engine time. Comes before any slot is started; until then it is what
    /// [`Beginning`] says.
    Started { at: Nanoseconds, elapsed_before: Nanoseconds },
    /// Starts a slot, or starts it again. `resume_at`, by instance: everything before is durable behind it.
    Start { slot: usize, incarnation: u32, resume_at: Vec<Epoch>, new_executor: Option<String> },
    /// The receiver of a channel has ended well: everything is durable there.
    ReceiverFinished { channel: usize },
    /// Asks for what is new of the host's stages, sources and sinks, for a checkpoint of `epoch`.
    Part(PartRequest),
    /// The checkpoint of this epoch is written: nothing before it is needed by a host that is started again.
    KeepFrom(Epoch),
    /// What becomes of the journals of sources, by source: those of the host are among them.
    Journals(BTreeMap<String, JournalOrder>),
    /// All letters of the epochs before this one are durable.
    LettersDurable(Epoch),
    /// Ends the sources; what is under way is finished.
    Stop,
    /// Ends all slots at once; nothing more is committed.
    Abort,
    /// All slots have ended: closes the sinks. `will_continue`: another process goes on from the last checkpoint; `cut_short`: sources had
    /// more than the run was to read.
    Close {
        complete: bool,
        will_continue: bool,
        #[serde(default)]
        cut_short: bool,
    },
    /// Nothing more follows.
    Leave,
    /// Asks for what the record of a sink came from, among what sources of the host have sent.
    FindSources { number: u64, sink: String, record: Vec<u8> },
    /// Somebody looks at the records of sinks: for a while they are told as they are kept.
    ShowSamples,
    /// The engine time when the ping of this number came.
    Pong { number: u64, now: Nanoseconds },
}

/// What a run is, for a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Beginning {
    /// Engine time at which the run began.
    pub(crate) started: Nanoseconds,
    /// Engine time of the processes that this run continues.
    pub(crate) elapsed_before: Nanoseconds,
    /// What the host continues from.
    pub(crate) past: Option<Past>,
    /// Each source ends after so many records.
    pub(crate) records: Option<u64>,
    /// Sources end after so much engine time.
    pub(crate) duration: Option<Nanoseconds>,
    /// Copies of one model that may run at once.
    pub(crate) model_copies: usize,
    /// Epochs of a former run to repeat, by source stage.
    pub(crate) replay: Option<BTreeMap<String, EpochLog>>,
    /// Any slot may be restarted, not only where an operator asks for it.
    pub(crate) recoverable: bool,
    /// Keeps what other hosts may ask for again until a checkpoint has it.
    pub(crate) keeps_for_checkpoints: bool,
    /// The run keeps checkpoints.
    pub(crate) is_durable: bool,
    /// Rows by sink that earlier processes of the run had committed when it was continued.
    pub(crate) rows_before: BTreeMap<String, u64>,
    /// How many times slower than real time the run is.
    pub(crate) dilation: f64,
    /// Where the other hosts are reached.
    pub(crate) peers: BTreeMap<String, Address>,
    /// Who their certificates are of, where they say so.
    pub(crate) identities: BTreeMap<String, String>,
    /// Workers and wires are emulated.
    pub(crate) emulation: Option<HostEmulation>,
    /// Records are kept to be looked at.
    pub(crate) samples: Option<SampleOptions>,
    /// Records are traced.
    #[serde(default)]
    pub(crate) traces: Option<TraceOptions>,
}

/// Which part of a checkpoint is wanted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PartRequest {
    pub(crate) number: u64,
    pub(crate) epoch: Epoch,
    /// Of the checkpoint before: calls of earlier epochs are written.
    pub(crate) from: Epoch,
    /// By stage instance: the newest snapshot that is written.
    pub(crate) snapshots: BTreeMap<String, Epoch>,
    /// The sinks are closed.
    pub(crate) is_complete: bool,
}

/// A host's part of a checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) stages: BTreeMap<String, StageChange>,
    pub(crate) sources: BTreeMap<String, EpochLog>,
    pub(crate) sinks: BTreeMap<String, SinkPast>,
}

/// What a host tells the coordinator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// First word of a host in another process.
    Hello(Hello),
    /// What time is it? Answered with the same number. Asked now and then once the run is begun: before, its time may not be known.
    Ping(u64),
    /// The models are loaded, or why not.
    Prepared(Result<(), RunError>),
    /// Everything is opened, or why not.
    Opened(Result<(), RunError>),
    /// By instance of the slot: everything before is durable behind it.
    Durable { slot: usize, incarnation: u32, epochs: Vec<Epoch> },
    /// A slot has ended; `durable` as above. `heard`: by channel out of it, the incarnation of the receiver that had said that everything
    /// is durable behind it: what it tells the coordinator of that may come later.
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
    /// An epoch of a source begins; only from other processes.
    Epoch { source: String, entry: EpochEntry },
    /// What was asked for; `None`: not now, the next checkpoint will do.
    Part { number: u64, part: Result<Option<Part>, String> },
    /// A record of a sink is kept; only from other processes.
    Sample(Box<SampleMessage>),
    /// What was asked for, as far as it is there.
    SourcesFound { number: u64, sources: FoundSources },
    /// What happened to traced records; only from other processes.
    Spans(Vec<Span>),
    /// All figures as of now; only from other processes.
    Figures(Box<Figures>),
    /// The sinks are closed, or why not.
    Closed(Result<(), RunError>),
    /// What it had no room for, since it said so last; only from other processes.
    NotTold(NotTold),
}

/// What a host had to say and will not: nobody listened, and what it keeps is bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotTold {
    /// Dead letters.
    pub(crate) letters: u64,
    /// Spans of traced records.
    pub(crate) spans: u64,
}

/// Who a host is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Digest of the graph that it has made of the plan: the coordinator's must be the same.
    pub(crate) graph: u64,
    /// Where other hosts reach it; none: it dials.
    pub(crate) address: Option<Address>,
    /// It has gone on without its coordinator.
    pub(crate) standing: Option<Box<Standing>>,
}

/// What a host has that went on without its coordinator. Letters and cuts of epochs that no checkpoint has come before it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Engine time at which the run began.
    pub(crate) started: Nanoseconds,
    /// As in [`Beginning`].
    pub(crate) elapsed_before: Nanoseconds,
    /// Engine time when this is said.
    pub(crate) now: Nanoseconds,
    /// Its slots that were started.
    pub(crate) slots: BTreeMap<usize, StandingSlot>,
    /// By channel: newest incarnations that have been met at the other ends.
    pub(crate) met: BTreeMap<usize, u32>,
    /// Its sinks are closed, or why not: its work is done, and it cannot go on.
    pub(crate) closed: Option<Result<(), RunError>>,
}

impl Standing {
    /// Brings the slots up to date, and what came of closing the sinks.
    pub(crate) fn remember(&mut self, notice: &Notice) {
        remember(&mut self.slots, notice);
        if let Notice::Closed(closed) = notice {
            self.closed = Some(closed.clone());
        }
    }
}

/// Brings what is known of slots up to date.
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
    /// By instance: everything before is durable behind it.
    pub(crate) durable: Vec<Epoch>,
    /// How it ended; none: it runs.
    pub(crate) end: Option<End>,
}

/// How a slot ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// All its output is durable.
    Finished,
    /// As ordered.
    Aborted,
    /// As a test wanted; is restarted.
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
