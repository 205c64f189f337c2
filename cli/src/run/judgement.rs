//! What is made of a run that has ended: levels, dead letters, prediction beside measurement, and what is alarming.
use crate::account::Account;
use crate::terminal::Terminal;
use tidemill_app::emulation::Emulated;
use tidemill_app::figures::grouped;
use tidemill_app::letters::{LetterLimit, LetterVerdict, causes, spoilt};
use tidemill_app::levels::Origin;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::Prepared;
use tidemill_app::slo::{Verdict, verdicts};
use tidemill_app::slo_watch::{Violations, add_windows};
use tidemill_engine::{Observer, RunReport};
use tidemill_spec::workflow::Slo;

/// The levels that count, and who set that of rate.
pub(super) struct Levels {
    pub(super) slo: Slo,
    pub(super) rate_of: Origin,
}

/// Everything that is judged of a run.
pub(super) struct Judgement<'a> {
    pub(super) verdicts: Vec<Verdict>,
    pub(super) letters: Option<LetterVerdict>,
    pub(super) account: Option<Account<'a>>,
}

impl<'a> Judgement<'a> {
    pub(super) fn of(
        report: &'a RunReport,
        observer: &Observer,
        prepared: &'a Prepared,
        levels: &Levels,
        violations: &Violations,
        limit: Option<LetterLimit>,
        emulated: Option<&'a Emulated>,
    ) -> Self {
        let program = &prepared.program;
        let mut verdicts = verdicts(&levels.slo, report, program, observer);
        add_windows(&mut verdicts, violations);
        let account = emulated.map(|emulated| Account::of(emulated, program, report));
        let doubt = account.as_ref().and_then(Account::doubt);
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
        Self { verdicts, letters, account }
    }

    /// Whether a level is missed; one without evidence is not shown to be kept.
    pub(super) fn is_missed(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.met != Some(true))
    }

    /// Whether there are more dead letters than were allowed.
    pub(super) fn has_too_many_letters(&self) -> bool {
        self.letters.is_some_and(|letters| letters.is_passed)
    }

    /// Says what a user must not miss.
    pub(super) fn warn(&self, report: &RunReport, prepared: &Prepared, terminal: &Terminal) {
        for warning in self.account.iter().flat_map(Account::warnings) {
            terminal.warning(&warning);
        }
        let spoilt = spoilt(report, &prepared.program);
        for source in &spoilt {
            terminal.alarm(&format!(
                "source `{}` gave nothing but dead letters, {} of them, most or all for the reason `{}`: are its columns \
                 and their types those of the data?",
                source.id,
                grouped(source.letters),
                source.reasons[0]
            ));
        }
        if spoilt.is_empty() && report.dead_letters > 0 && report.sinks.iter().all(|sink| sink.records == 0) {
            let letters = grouped(report.dead_letters);
            terminal
                .alarm(&format!("no record reached a sink: there are {letters} dead letters and no results"));
        }
        if let Some(letters) = self.letters.filter(|letters| letters.is_passed) {
            terminal.error(&letters.text(), Some(&causes(report)));
        }
    }
}
