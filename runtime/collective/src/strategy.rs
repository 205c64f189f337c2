//! Rings, trees, paths and pieces by which a group carries out its operations.
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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

/// Most channels of a strategy.
pub const MAX_CHANNELS: usize = 64;
/// Most bytes of a piece: each wire keeps one.
pub const MAX_PIECE: u32 = 64 << 20;

/// Why a strategy cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Nobody takes part.
    #[error("the strategy has no members")]
    Empty,
    /// Members twice, or not ascending.
    #[error("the members of the strategy are not ascending")]
    Order,
    /// None, or too many.
    #[error("the strategy has {0} channels; it needs 1 to {MAX_CHANNELS}")]
    Channels(usize),
    /// The ring of this channel.
    #[error("the ring of channel {0} does not have each member once")]
    Ring(usize),
    /// The paths of this channel.
    #[error("channel {0} does not have one path per member")]
    Paths(usize),
    /// Bytes of a piece.
    #[error("pieces of {0} bytes: they have 1 byte to {MAX_PIECE} bytes")]
    Piece(u32),
    /// Windows that never open, or are out of order.
    #[error("the windows of the strategy never open, overlap, or exceed their period")]
    Windows,
}

impl Windows {
    fn check(&self) -> Result<(), Invalid> {
        let mut last = 0;
        for (open, close) in &self.open_us {
            if *open < last || close <= open || *close > self.period_us {
                return Err(Invalid::Windows);
            }
            last = *close;
        }
        // One that never opens would stop the group for ever.
        if last == 0 { Err(Invalid::Windows) } else { Ok(()) }
    }

    /// Returns for how many microseconds from now on the group may not send; 0: it may. `now_us`: since the epoch of Unix.
    pub fn closed_for(&self, now_us: u64) -> u64 {
        let at = now_us % self.period_us.max(1);
        if self.open_us.iter().any(|(open, close)| (*open..*close).contains(&at)) {
            return 0;
        }
        let next = self.open_us.iter().map(|(open, _)| *open).find(|open| *open > at);
        let first = self.open_us.first().map_or(0, |(open, _)| *open);
        next.map_or(self.period_us - at + first, |open| open - at)
    }
}

impl Strategy {
    /// Returns the baseline: one ring in the order of ranks, routed by the system.
    pub fn rank_order(epoch: u64, members: Vec<u32>) -> Self {
        let channel = Channel { ring: members.clone(), paths: vec![None; members.len()] };
        Self { epoch, members, channels: vec![channel], piece: PIECE, small: SMALL, windows: None }
    }

    /// Returns why it is none, if so.
    ///
    /// # Errors
    /// [`Invalid`], which names the part that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.members.is_empty() {
            return Err(Invalid::Empty);
        }
        if !self.members.is_sorted_by(|one, next| one < next) {
            return Err(Invalid::Order);
        }
        if self.channels.is_empty() || self.channels.len() > MAX_CHANNELS {
            return Err(Invalid::Channels(self.channels.len()));
        }
        let members: BTreeSet<u32> = self.members.iter().copied().collect();
        for (number, channel) in self.channels.iter().enumerate() {
            if channel.ring.len() != members.len()
                || channel.ring.iter().copied().collect::<BTreeSet<_>>() != members
            {
                return Err(Invalid::Ring(number));
            }
            if channel.paths.len() != members.len() {
                return Err(Invalid::Paths(number));
            }
        }
        if self.piece == 0 || self.piece > MAX_PIECE {
            return Err(Invalid::Piece(self.piece));
        }
        self.windows.as_ref().map_or(Ok(()), Windows::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let valid = || Strategy::rank_order(1, vec![0, 2, 5]);
        assert_eq!(valid().check(), Ok(()));
        let wrong = |change: fn(&mut Strategy)| {
            let mut strategy = valid();
            change(&mut strategy);
            strategy.check()
        };
        assert_eq!(wrong(|one| one.members.clear()), Err(Invalid::Empty));
        assert_eq!(wrong(|one| one.members = vec![0, 5, 2]), Err(Invalid::Order));
        assert_eq!(wrong(|one| one.channels.clear()), Err(Invalid::Channels(0)));
        assert_eq!(wrong(|one| one.channels[0].ring = vec![0, 2, 2]), Err(Invalid::Ring(0)));
        assert_eq!(wrong(|one| one.channels[0].ring = vec![0, 2, 6]), Err(Invalid::Ring(0)));
        assert_eq!(wrong(|one| one.channels[0].ring = vec![0, 2]), Err(Invalid::Ring(0)));
        assert_eq!(wrong(|one| one.channels[0].paths.truncate(1)), Err(Invalid::Paths(0)));
        assert_eq!(wrong(|one| one.piece = 0), Err(Invalid::Piece(0)));
        for open_us in [vec![], vec![(5, 5)], vec![(0, 11)], vec![(0, 5), (4, 6)]] {
            let mut strategy = valid();
            strategy.windows = Some(Windows { period_us: 10, open_us });
            assert_eq!(strategy.check(), Err(Invalid::Windows));
        }
    }

    #[test]
    fn windows_say_how_long_they_are_closed() {
        let windows = Windows { period_us: 100, open_us: vec![(10, 20), (60, 80)] };
        let closed = [0, 10, 19, 20, 59, 60, 80, 99, 100, 115].map(|now| windows.closed_for(now));
        assert_eq!(closed, [10, 0, 0, 40, 1, 0, 30, 11, 10, 0]);
    }
}
