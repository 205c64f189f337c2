//! Decides whether a run should get another plan. Uses no clocks, threads, files or network, so that a simulation runs the controller's own
//! code.
//!
//! | question | module |
//! |---|---|
//! | what do plans cost and miss by current figures? | [`assessment`] |
//! | which load is planned for? | [`load`] |
//! | how accurate are the models by judged answers? | [`scores`] |
//! | is another plan worth a change? | [`decision`] |
//! | which levels are relaxed if no plan keeps all? | [`degradation`] |
//! | where does a plan's worker move when its machine is lost? | [`placement`] |
//! | when is a run checked? | [`replanner`] |
pub mod assessment;
pub mod decision;
pub mod degradation;
pub mod load;
pub mod placement;
pub mod replanner;
pub mod scores;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_app::measured::{Measured, MeasuredLevel};
use tidemill_app::run_figures::Computed;

/// Share of a worker that a plan uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Use {
    /// Part of its time.
    pub time: f64,
    /// Bytes of memory for models.
    pub memory_bytes: u64,
}

/// Recent measurements of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Late {
    /// Rates, latencies and scores.
    pub measured: Measured,
    /// By stage that computed something.
    pub stages: BTreeMap<String, Computed>,
    /// Its service levels as measured.
    pub levels: Vec<MeasuredLevel>,
}
