//! What is judged of a run that has ended: service levels, dead letters, prediction beside measurement.
use crate::emulation::Emulated;
use crate::emulation::comparison::Comparison;
use crate::letters::{LetterLimit, LetterVerdict};
use crate::levels::Origin;
use crate::preparation::Prepared;
use crate::slo::{Verdict, verdicts};
use crate::slo_watch::{Violations, add_windows};
use tidemill_engine::{Observer, RunReport};
use tidemill_spec::workflow::Slo;

/// The levels that count, and who set that of rate: see [`crate::levels::settle`].
#[derive(Debug)]
pub struct Levels {
    /// As the workflow has them, with the rate that counts.
    pub slo: Slo,
    /// Who set the rate.
    pub rate_of: Origin,
}

/// Everything that is judged of a run.
#[derive(Debug)]
pub struct Judgement {
    /// One for each service level.
    pub verdicts: Vec<Verdict>,
    /// Whether there were more dead letters than were allowed, where a limit is given.
    pub letters: Option<LetterVerdict>,
    /// Of an emulated run.
    pub comparison: Option<Comparison>,
}

impl Judgement {
    /// Judges. `violations` are those that were seen while it ran, see [`crate::slo_watch::SloWatch`].
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

    /// Whether a level is missed; one without evidence is not shown to be kept.
    pub fn is_missed(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.met != Some(true))
    }

    /// Whether there are more dead letters than were allowed.
    pub fn has_too_many_letters(&self) -> bool {
        self.letters.is_some_and(|letters| letters.is_passed)
    }
}
