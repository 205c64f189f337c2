//! Asks the questions of an explanation: with progress, and until Ctrl-C.
use crate::interrupt::Interrupt;
use crate::status_line::StatusLine;
use crate::terminal::Terminal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use tidemill_app::failure::Failure;
use tidemill_app::planning::failed;
use tidemill_optimizer::explain::{Explanation, OtherPercentile, explain};
use tidemill_optimizer::planner::SearchLimits;
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::Outcome;

/// Time between two looks at Ctrl-C, and between two drawings.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The plan to explain.
pub(super) struct Subject {
    pub(super) problem: Problem,
    pub(super) best: Outcome,
    pub(super) rate: f64,
    pub(super) percentiles: Vec<OtherPercentile>,
    pub(super) limits: SearchLimits,
}

/// An explanation, and whether Ctrl-C ended it.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    pub(super) explanation: Explanation,
    pub(super) is_interrupted: bool,
}

/// A part of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Binding,
    Prices,
    Rejected,
    Devices,
    Percentiles,
}

impl Section {
    /// Its heading.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Binding => "binding limits",
            Self::Prices => "cost of slightly higher levels",
            Self::Rejected => "rejected plans",
            Self::Devices => "models on devices",
            Self::Percentiles => "cost by the guaranteed percentile of service times",
        }
    }
}

impl Asked {
    /// The sections that have no answer yet because Ctrl-C came first.
    pub(super) fn left_out(&self, problem: &Problem) -> Vec<Section> {
        if !self.is_interrupted {
            return Vec::new();
        }
        let Explanation { binding, prices, rejected, open, devices, percentiles, questions, .. } =
            &self.explanation;
        let all = [
            (Section::Binding, binding.is_empty() && *questions == 0),
            (Section::Prices, prices.is_empty()),
            (Section::Rejected, rejected.is_empty() && open.is_empty()),
            (Section::Devices, devices.is_empty() && problem.has_remotes()),
            (Section::Percentiles, percentiles.is_empty()),
        ];
        all.into_iter().filter(|(_, is_left_out)| *is_left_out).map(|(section, _)| section).collect()
    }

    /// Number of questions that were not asked.
    pub(super) fn unasked(&self) -> usize {
        let Explanation { questions, effort, .. } = &self.explanation;
        if self.is_interrupted { questions.saturating_sub(effort.answered) } else { 0 }
    }
}

/// Explains on a thread of its own, as a search does not look at Ctrl-C. After the first signal the answers so far count.
///
/// # Errors
/// Errors of the planner; no thread.
pub(super) fn asked(subject: Subject, interrupt: &Interrupt, terminal: Terminal) -> anyhow::Result<Asked> {
    let (sender, receiver) = channel();
    interrupt.is_watched();
    let thread = std::thread::Builder::new().name("explain".into()).spawn(move || {
        // Without a receiver no caller waits for the rest.
        let mut seen = |so_far: &Explanation| drop(sender.send(so_far.clone()));
        let Subject { problem, best, rate, percentiles, limits } = subject;
        explain(&problem, &best, rate, &percentiles, &limits, &mut seen)
    })?;
    let mut line = StatusLine::new(terminal);
    let mut so_far = Explanation::default();
    loop {
        match receiver.recv_timeout(LOOK_EVERY) {
            Ok(next) => so_far = next,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if interrupt.is_wanted() {
            line.finish();
            return Ok(Asked { explanation: so_far, is_interrupted: true });
        }
        if terminal.animates() {
            line.show(|seconds| progress(&so_far, seconds));
        }
    }
    line.finish();
    interrupt.is_over();
    let explained: Result<Explanation, Failure> = match thread.join() {
        Ok(explained) => explained.map_err(failed),
        Err(panic) => std::panic::resume_unwind(panic),
    };
    Ok(Asked { explanation: explained?, is_interrupted: false })
}

fn progress(so_far: &Explanation, seconds: f64) -> String {
    let (effort, seconds) = (so_far.effort, seconds.round());
    format!(
        "explaining: {} of {} questions, {} searches, {seconds} s; Ctrl-C shows the answers so far",
        effort.answered, so_far.questions, effort.searches
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::ColorChoice;
    use tidemill_optimizer::planner::Planner;
    use tidemill_optimizer::planners::exact::Exact;
    use tidemill_problems::small_problem;

    fn subject() -> Subject {
        let planned = (1..).map(small_problem).find_map(|problem| {
            let best = Exact.plan(&problem, &SearchLimits::default()).unwrap();
            best.solution.is_some().then_some((problem, best))
        });
        let (problem, best) = planned.unwrap();
        let limits = SearchLimits { wall_seconds: None, ..SearchLimits::default() };
        Subject { problem, best, rate: 10.0, percentiles: Vec::new(), limits }
    }

    #[test]
    fn all_questions_are_asked_unless_interrupted() {
        let terminal = Terminal::new(ColorChoice::Never, true);
        let asked = asked(subject(), &Interrupt::default(), terminal).unwrap();
        assert!(!asked.is_interrupted && asked.unasked() == 0);
        assert!(asked.explanation.effort.answered > 0 && !asked.explanation.prices.is_empty());
    }

    #[test]
    fn ctrl_c_ends_it_with_what_is_known() {
        let terminal = Terminal::new(ColorChoice::Never, true);
        let interrupt = Interrupt::default();
        interrupt.is_watched();
        interrupt.signalled();
        let subject = subject();
        let problem = subject.problem.clone();
        let asked = asked(subject, &interrupt, terminal).unwrap();
        assert!(asked.is_interrupted);
        // However many answers there were by then.
        let left_out = asked.left_out(&problem);
        assert_eq!(left_out.contains(&Section::Prices), asked.explanation.prices.is_empty());
    }

    #[test]
    fn sections_without_an_answer_are_left_out_after_ctrl_c() {
        let problem = subject().problem;
        let none = Asked { is_interrupted: true, ..Asked::default() };
        let without_devices = [Section::Binding, Section::Prices, Section::Rejected, Section::Percentiles];
        assert_eq!(none.left_out(&problem), without_devices);
        assert_eq!(Asked { is_interrupted: false, ..none.clone() }.left_out(&problem), []);
        let terminal = Terminal::new(ColorChoice::Never, true);
        let all = asked(subject(), &Interrupt::default(), terminal).unwrap().explanation;
        // Cut after the prices, which are the first answers.
        let some = Explanation { rejected: Vec::new(), open: Vec::new(), percentiles: Vec::new(), ..all };
        let some = Asked { explanation: some, is_interrupted: true };
        assert_eq!(some.left_out(&problem), [Section::Rejected, Section::Percentiles]);
    }
}
