//! Whether a run should have another plan, by the figures of now: without clocks, threads, files or a network, so that a simulation asks
//! what a controller asks.
//!
//! | question | module |
//! |---|---|
//! | what do plans come to by the figures of now? | [`assessment`] |
//! | for which load is it planned? | [`load`] |
//! | how accurate are the models, as answers with truth say? | [`scores`] |
//! | is another one worth a change? | [`decision`] |
//! | what gives way where no plan keeps all levels? | [`degradation`] |
//! | where does a worker of a plan go when its own is lost? | [`placement`] |
//! | who looks, and when? | [`replanner`] |
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

/// What a plan takes of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Use {
    /// Part of its time.
    pub time: f64,
    /// Bytes of memory for models.
    pub memory_bytes: u64,
}

/// What is known of a run of late.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Late {
    /// What came and how late.
    pub measured: Measured,
    /// By stage that computed something.
    pub stages: BTreeMap<String, Computed>,
    /// Its service levels beside that.
    pub levels: Vec<MeasuredLevel>,
}
