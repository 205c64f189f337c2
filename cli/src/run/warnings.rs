//! What a user must not miss of a run that has ended.
use crate::account::Account;
use crate::terminal::Terminal;
use tidemill_app::figures::grouped;
use tidemill_app::judgement::Judgement;
use tidemill_app::letters::{causes, spoilt};
use tidemill_app::listener::Listener;
use tidemill_app::preparation::Prepared;
use tidemill_engine::RunReport;

pub(super) fn warn(
    judgement: &Judgement,
    account: Option<&Account<'_>>,
    report: &RunReport,
    prepared: &Prepared,
    terminal: &Terminal,
) {
    for warning in account.iter().flat_map(|account| account.warnings()) {
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
        terminal.alarm(&format!("no record reached a sink: there are {letters} dead letters and no results"));
    }
    if let Some(letters) = judgement.letters.filter(|letters| letters.is_passed) {
        terminal.error(&letters.text(), Some(&causes(report)));
    }
}
