//! What would make a run fit a link.
use crate::frontier::Bound;
use crate::link::Link;
use crate::run::Run;

/// A change of how a model is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// The device prepares the inputs: the columns are sent as they are, such as coded pictures.
    PrepareAtDevice,
    /// This number of records in one run.
    Batch(u32),
    /// The model takes bytes instead of floats.
    ByteInput,
    /// This number of outstanding runs; the budget then holds for the time between the ends of two runs.
    Window(u32),
}

/// Another method to run the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Alternative {
    /// Its changes.
    pub changes: Vec<Change>,
    /// The run with them.
    pub run: Run,
    /// Outstanding runs.
    pub window: u32,
}

/// Returns the first of the alternatives that keeps the budget over a link; if none does, the first that does with a larger
/// window. List them with the least effort first.
///
/// ```
/// use tidemill_replay::change::{Alternative, Change, cheapest};
/// use tidemill_replay::{frontier::Bound, link::Link, run::Run};
/// let run = Run { up: 602_112.0, down: 4_000.0, round_trips: 1, local: 0.060, software: 0.0, queue: 0.0 };
/// let coded = Run { up: 30_000.0, ..run };
/// let alternatives = [(vec![], run), (vec![Change::PrepareAtDevice], coded)];
/// let bound = Bound { budget: 0.10, window: 1 };
/// let found = cheapest(&alternatives, &Link::nominal(1e-3, 100e6, 100e6), bound).ok_or("none fits")?;
/// assert_eq!(found.changes, [Change::PrepareAtDevice]);
/// // Over 20 ms a single run takes too long, but several overlap.
/// let found = cheapest(&alternatives, &Link::nominal(20e-3, 200e6, 200e6), bound).ok_or("none fits")?;
/// assert_eq!(found.changes, [Change::Window(2)]);
/// # Ok::<(), &str>(())
/// ```
pub fn cheapest(alternatives: &[(Vec<Change>, Run)], link: &Link, bound: Bound) -> Option<Alternative> {
    let window = bound.window;
    let fitting = alternatives.iter().find(|(changes, run)| !changes.is_empty() && bound.fits(run, link));
    if let Some((changes, run)) = fitting {
        return Some(Alternative { changes: changes.clone(), run: *run, window });
    }
    alternatives.iter().find_map(|(changes, run)| {
        let needed = bound.window_needed(run, link).filter(|needed| *needed > window)?;
        let changes = changes.iter().copied().chain([Change::Window(needed)]).collect();
        Some(Alternative { changes, run: *run, window: needed })
    })
}
