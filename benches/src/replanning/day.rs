//! Days: the load, and the events on machines and links. All seeds come from the caller.
use anyhow::Context;
use std::path::Path;
use std::process::Command;
use tidemill_simulator::Trace;

/// Seconds of a moment: the interval of the controller's looks.
pub(super) const STEP: f64 = 10.0;
/// Shares of the day in which a worker is absent, and in which a link has a tenth of its rate.
const LOST: (f64, f64) = (0.40, 0.55);
const SLOW: (f64, f64) = (0.65, 0.80);

/// The kind of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A curve over the day with bursts; for a while, a worker is lost, and later a link has a tenth of its rate.
    Bursty,
    /// A constant load without events.
    Steady,
    /// The load triples for 20 s every five minutes.
    Spikes,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Bursty, Self::Steady, Self::Spikes];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Bursty => "bursts, a worker lost, a link at a tenth of its rate",
            Self::Steady => "the same load all day",
            Self::Spikes => "spikes of 20 s every five minutes",
        }
    }

    /// Whether its day has faults.
    fn has_faults(self) -> bool {
        self == Self::Bursty
    }
}

/// The state of the machines and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct State {
    /// The day's lost worker is absent.
    pub(super) is_lost: bool,
    /// The link has a tenth of its rate.
    pub(super) is_slow: bool,
}

/// Ten seconds of a day.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moment {
    /// Seconds since the start of the day.
    pub(super) at: f64,
    /// The load, a factor on the nominal rates.
    pub(super) factor: f64,
    pub(super) state: State,
}

/// A day.
pub(super) struct Day {
    pub(super) kind: Kind,
    pub(super) seed: u64,
    pub(super) moments: Vec<Moment>,
}

impl Day {
    /// Creates a day, sped up by `compressed`.
    pub(super) fn new(root: &Path, kind: Kind, seed: u64, compressed: f64) -> anyhow::Result<Self> {
        let length = 86_400.0 / compressed;
        let count = (length / STEP) as usize;
        let factors: Vec<f64> = match kind {
            Kind::Bursty => bursty(root, seed, count, compressed)?,
            Kind::Steady => vec![1.0; count],
            Kind::Spikes => (0..count).map(|at| if at % 30 < 2 { 3.0 } else { 1.0 }).collect(),
        };
        let within =
            |at: f64, (from, to): (f64, f64)| kind.has_faults() && (from * length..to * length).contains(&at);
        let moments = factors.into_iter().enumerate().map(|(number, factor)| {
            let at = number as f64 * STEP;
            let state = State { is_lost: within(at, LOST), is_slow: within(at, SLOW) };
            Moment { at, factor, state }
        });
        Ok(Self { kind, seed, moments: moments.collect() })
    }

    pub(super) fn largest(&self) -> f64 {
        self.moments.iter().map(|moment| moment.factor).fold(0.0, f64::max)
    }

    pub(super) fn mean(&self) -> f64 {
        self.moments.iter().map(|moment| moment.factor).sum::<f64>() / self.moments.len().max(1) as f64
    }

    /// Returns the states of the day.
    pub(super) fn states(&self) -> Vec<State> {
        let mut all: Vec<State> = self.moments.iter().map(|moment| moment.state).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Generates a day with `scripts/bursty_trace.py`, sped up by `compressed`.
fn bursty(root: &Path, seed: u64, count: usize, compressed: f64) -> anyhow::Result<Vec<f64>> {
    let script = root.join("scripts/bursty_trace.py");
    let own = [
        ("--seed", seed.to_string()),
        ("--step", (STEP * compressed).to_string()),
        ("--decay", (60.0 * compressed).to_string()),
    ];
    let arguments = own.iter().flat_map(|(name, value)| [*name, value.as_str()]);
    let made = Command::new("python3").arg(&script).args(arguments).output();
    let made = made.with_context(|| format!("cannot run {}", script.display()))?;
    anyhow::ensure!(made.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&made.stderr));
    let trace = Trace::parse(&String::from_utf8(made.stdout)?, 1.0)?;
    Ok((0..count).map(|number| trace.factor_at((number as f64 + 0.5) * STEP * compressed)).collect())
}
