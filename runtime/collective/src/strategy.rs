//! Rings, trees, paths and pieces by which a group carries out its operations.
use serde::{Deserialize, Serialize};

/// How a group carries out its operations. The service changes it between two operations; programs do not notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strategy {
    /// The number of the strategy in its group; the first is 1. Each change has a higher one.
    pub epoch: u64,
    /// The ranks that take part, ascending. A rank keeps its number when others leave; its position here is what operations count by.
    pub members: Vec<u32>,
    /// Large operations are cut into as many even parts as there are channels, and each goes its own way.
    pub channels: Vec<Channel>,
    /// Bytes of a piece: the next rank gets it while the following one is on its way.
    pub piece: u32,
    /// Operations of at most this many bytes go by a tree instead of the rings: fewer steps, more bytes.
    pub small: u64,
    /// When the group may send between hosts; none: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Windows>,
}

/// A ring of all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// The members, each once. Each sends to the next one, the last one to the first.
    pub ring: Vec<u32>,
    /// The path from each to the next one, by name; none: as the system routes it. As many as there are members.
    pub paths: Vec<Option<String>>,
}

/// Times in which a group may send between hosts, by the clock of the host, in microseconds of a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// The period.
    pub period_us: u64,
    /// When it may send: from and to, ascending, without overlap, within the period.
    pub open_us: Vec<(u64, u64)>,
}

/// Bytes of a piece, where nothing else was chosen.
pub const PIECE: u32 = 256 << 10;
/// [`Strategy::small`], where nothing else was chosen.
pub const SMALL: u64 = 16 << 10;

impl Strategy {
    /// Returns the baseline: one ring in the order of ranks, routed by the system.
    pub fn rank_order(epoch: u64, members: Vec<u32>) -> Self {
        let channel = Channel { ring: members.clone(), paths: vec![None; members.len()] };
        Self { epoch, members, channels: vec![channel], piece: PIECE, small: SMALL, windows: None }
    }
}
