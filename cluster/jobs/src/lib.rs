//! The queue of jobs: who gets machines, and when. Pure functions and data: no network, no clock. A controller and a simulator use the
//! same code, so that a policy behaves in a cluster as it was simulated (docs/decisions/0089).
//!
//! | module | holds |
//! |---|---|
//! | `queue` | [`Queue`]: events in, [`Decision`]s out; state that serde can store |
//! | [`policy`] | the order of service: a file and a line for each policy |
//! | `placement` | machines for a gang: packed or spread |
//! | [`trace`], [`cluster`], [`history`] | files: jobs of the past, machines, services of the past |
//! | [`workload`] | random traces with published shares |
//! | [`simulator`] | a trace under a policy, in virtual time, with the cost of preemptions |
//!
//! Three jobs on two slots, the example of Tiresias (Gu, 2021, figure 3.7): slots and durations are 2 and 2, 1 and 8, 2 and 6 seconds.
//!
//! ```
//! use tidemill_jobs::simulator::{Input, simulate};
//! use tidemill_jobs::{Machine, Resources, Settings, trace::Trace};
//! let text = "job,tasks,submitted,duration\na,2,0s,2s\nb,1,0s,8s\nc,2,0s,6s\n";
//! let trace = Trace::parse(text, "trace.csv")?;
//! let settings = Settings { policy: "srsf".into(), ..Settings::default() };
//! let input = Input::new(trace.jobs, vec![Machine::new("m", Resources::of_slots(2))], settings);
//! let outcome = simulate(&input, &mut |_| true)?;
//! assert_eq!(outcome.measures().completion.mean, (2.0 + 10.0 + 16.0) / 3.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod account;
pub mod cluster;
mod event;
pub mod history;
mod job;
mod measures;
pub mod models;
mod pack_limit;
mod placement;
pub mod policy;
mod queue;
mod resources;
mod settings;
pub mod simulator;
mod table;
mod time;
pub mod trace;
pub mod workload;

pub use account::{Account, Phase};
pub use event::{Action, Cause, Decision, Event, Reason};
pub use history::History;
pub use job::{Job, Machine, Share};
pub use measures::{Measures, Spread};
pub use pack_limit::{Compared, PackLimit, learnt_limit};
pub use placement::{Packing, place};
pub use queue::{Explanation, Queue, QueueError, obstacle};
pub use resources::{Rates, Resources, Service};
pub use settings::{Settings, SettingsError};
pub use time::Time;
