//! Executes a plan in one process on Timely Dataflow (stock, pinned).
//!
//! The unit of execution is the *slot*: one thread with one single-threaded timely worker (`slot.rs`). Slots
//! are connected by *channels*: an [`node::egress`] keeps and sends, a [`link::Link`] carries, an
//! [`node::ingress`] takes. Progress time is the *epoch*, cut and logged at the sources; event-time watermarks
//! travel beside the frontier (`watermark.rs`). Operators come from `tidemill-operators`; the engine knows only
//! their traits. [`Run`] starts, watches, restarts and ends the slots.
#![forbid(unsafe_code)]

mod alignment;
mod away;
mod channel;
mod checkpoint;
pub mod clock;
mod context;
mod coordinator;
mod cut;
mod emulation;
mod executor;
mod failure;
#[doc(hidden)]
pub mod faults;
mod feeds;
mod freshness;
#[doc(hidden)]
pub mod fuzz_entry;
mod graph;
mod histogram;
mod host;
mod letters;
mod metrics;
mod node;
mod order;
mod processor;
mod promise;
mod protocol;
mod report;
mod routing;
mod run;
mod samples;
mod scaling;
mod sharing;
mod slot;
mod spread;
mod store;
mod taps;
mod traces;
mod watermark;
mod wire;

pub use away::batches_away;
pub use checkpoint::{
    Checkpoint, CheckpointWriter, Durability, FollowJournals, JournalOrder, LettersPast, Past, SinkPast,
    StageChange, StagePast,
};
pub use coordinator::{Exchange, HostLauncher, Hosts, Listen, Ready, Standby};
pub use cut::{Alone, FENCE};
pub use emulation::link::EmulatedLink;
pub use emulation::{
    AssumedTimes, CallTimes, DeviceStageReport, EmulatedDeviceReport, Emulation, EmulationReport, OnDevice,
    PacedStageReport, WireEdgeReport, WireReport, WireSpec, WorkerReport, WorkerSpeed,
};
pub use executor::{
    CPU, CallGate, Completion, EMULATED, ExecutorFactory, ExecutorRequest, ExecutorSpec, GatedCall, Job,
    JobResult, LocalModel, ModelExecutor, Notifier, PreparedModel, Span as CallSpan, UnknownDevice,
    factory_of, register as register_executors, start_local,
};
pub use failure::{OnPanic, RunError};
pub use feeds::FeedTable;
pub use graph::{Program, instance_name};
pub use host::{CoordinatorAddress, HostOptions, ServedBy, decline as decline_host, serve as serve_host};
pub use letters::{LetterGroup, LetterSample, LetterWriter};
pub use metrics::{
    Amount, BatchSizes, ByReason, EdgeMetrics, Latencies, LatencySummary, LatencyWindow, Metric, MetricKind,
    MetricOf, MetricValue, Served, SinkMetrics, StageMetrics,
};
pub use processor::ProcessorTime;
pub use promise::{Guarantee, Promise, Scope, promises};
pub use report::{
    Answered, DeviceReport, EdgeReport, HostReport, Observer, Progress, RunReport, SinkReport, SlotReport,
    StageReport, Timing,
};
pub use run::{Run, RunOptions, Stopper, quiet_engine_panics};
pub use samples::{Newest, Sample, SampleOptions, SourceLink};
pub use sharing::{Share, state_of};
pub use store::{Base, Cut, End, EpochEntry, EpochLog, EpochWriter};
pub use taps::{Tap, TapError, TapRead};
pub(crate) use tidemill_link::wake;
pub use tidemill_link::wake::Waker;
pub use tidemill_link::{frame, link, remote, transport};
pub use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus};
pub use traces::{Happening, Span, TraceId, TraceOptions, Traces, trace_name};
