//! Verdicts on an ended run: service levels, dead letters, predictions against measurements.
use crate::emulation::Emulated;
use crate::emulation::comparison::Comparison;
use crate::letters::{LetterLimit, LetterVerdict};
use crate::levels::Origin;
use crate::preparation::Prepared;
use crate::slo::{Verdict, verdicts};
use crate::slo_watch::{Violations, add_windows};
use tidemill_engine::{Observer, RunReport};
use tidemill_spec::workflow::Slo;

/// The effective levels, and the origin of the rate: see [`crate::levels::settle`].
#[derive(Debug)]
pub struct Levels {
    /// As in the workflow, with the effective rate.
    pub slo: Slo,
    /// Origin of the rate.
    pub rate_of: Origin,
}

/// All verdicts on a run.
#[derive(Debug)]
pub struct Judgement {
    /// One per service level.
    pub verdicts: Vec<Verdict>,
    /// Whether there were too many dead letters, if a limit is given.
    pub letters: Option<LetterVerdict>,
    /// Comparison of an emulated run.
    pub comparison: Option<Comparison>,
}

impl Judgement {
    /// Judges a run. `violations` were observed during it, see [`crate::slo_watch::SloWatch`].
    pub fn of(
        report: &RunReport,
        observer: &Observer,
        prepared: &Prepared,
        levels: &Levels,
        violations: &Violations,
        limit: Option<LetterLimit>,
        emulated: Option<&Emulated>,
    ) -> Self {
        let program = &prepared.program;
        let mut verdicts = verdicts(&levels.slo, report, program, observer);
        add_windows(&mut verdicts, violations);
        let comparison = emulated.map(|emulated| Comparison::of(emulated, program, report));
        let doubt = comparison.as_ref().and_then(Comparison::doubt);
        for verdict in &mut verdicts {
            if prepared.is_planned {
                verdict.of = Some(if verdict.slo == "rate" { levels.rate_of } else { Origin::Workflow });
            }
            if let Some(doubt) = doubt.filter(|_| verdict.slo == "latency") {
                verdict.doubt(doubt);
            }
            if !report.complete && verdict.measured.is_none() {
                verdict.met = None;
            }
        }
        let letters = limit.map(|limit| LetterVerdict::of(limit, report, program));
        Self { verdicts, letters, comparison }
    }

    /// Whether a level is missed; one without evidence is not proven to be met.
    pub fn is_missed(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.met != Some(true))
    }

    /// Whether there are too many dead letters.
    pub fn has_too_many_letters(&self) -> bool {
        self.letters.is_some_and(|letters| letters.is_passed)
    }
}
