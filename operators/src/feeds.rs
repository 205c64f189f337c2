//! The feeds of a live source: the cameras, devices or subscriptions that it reads side by side. Each has a state, and
//! accounts for all of its records.
//!
//! A source of one feed has one entry. The handle belongs to the bound source, so that a run can show the feeds and change
//! them while a reader works on another thread.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeedState {
    /// No record has come yet, or the connection is lost and is made again.
    Connecting,
    /// Records come.
    Live,
    /// Connected, but no record has come for longer than its stall time.
    Stalled,
    /// It is not tried again until somebody acts: a rejected password, a path that does not exist.
    Failed,
    /// Stopped by an order.
    Paused,
}

impl FeedState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Connecting, Self::Live, Self::Stalled, Self::Failed, Self::Paused];

    /// The name in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Stalled => "stalled",
            Self::Failed => "failed",
            Self::Paused => "paused",
        }
    }
}

/// State and counts of a feed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FeedStatus {
    /// Its name, unique within the source.
    pub feed: String,
    /// Its state.
    pub state: FeedState,
    /// Seconds in this state.
    pub seconds: f64,
    /// The cause of the state, without any secret; empty when there is nothing to say.
    pub detail: String,
    /// Successful connections.
    pub connects: u64,
    /// Records that came: frames that were decoded, messages. Always the sum of `emitted`, `drops` and `waiting`.
    pub received: u64,
    /// Records given to the run.
    pub emitted: u64,
    /// Records dropped, by stable reason: `superseded` by a newer one of the feed, `paused`.
    pub drops: BTreeMap<String, u64>,
    /// Records that wait to be read.
    pub waiting: u64,
}

/// A change of the feeds of a running source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeedOrder {
    /// Adds a feed.
    Add {
        /// Its name.
        feed: String,
        /// Its address, as in the options of the source.
        address: String,
    },
    /// Removes a feed.
    Remove {
        /// Its name.
        feed: String,
    },
    /// Stops reading a feed and closes its connection.
    Pause {
        /// Its name.
        feed: String,
    },
    /// Continues a feed that is paused or has failed.
    Resume {
        /// Its name.
        feed: String,
    },
}

/// The feeds of a live source; shared by its reader and the run.
pub trait Feeds: Send + Sync {
    /// Returns the state and counts of all feeds, by name.
    fn status(&self) -> Vec<FeedStatus>;

    /// Changes the feeds. It takes effect without waiting for a connection.
    ///
    /// # Errors
    /// The reason why it is rejected, with advice and without secrets: an unknown feed, a name that is in use, an address
    /// that is none.
    fn order(&self, order: &FeedOrder) -> Result<(), String>;
}
