//! Events at a rank of a training: lines for people, or a JSON object on each line.
use super::aggregation::Choice;
use super::report::Report;
use serde::{Deserialize, Serialize};
use std::io::Write;
use tidemill_app::figures::{duration, grouped};
use tidemill_training::{Origin, Regrouped};

/// An event at a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(super) enum Event {
    /// It is chosen who adds up the gradients.
    Chosen(Choice),
    /// The ranks have agreed, and continue.
    Regrouped(Agreement),
    /// Steps are done.
    Step {
        /// Steps that are done.
        step: u64,
        /// Steps of the training.
        steps: u64,
        /// Mean loss since the last of these events.
        loss: f64,
        /// Rate over all ranks since then.
        examples_per_second: f64,
    },
    /// A checkpoint is written.
    Saved {
        /// Its step.
        step: u64,
    },
    /// A rank is lost.
    Lost {
        /// The reason.
        why: String,
    },
    /// The training has ended early because it was asked to.
    Asked {
        /// Steps that are done.
        step: u64,
        /// Whether a checkpoint has them.
        is_kept: bool,
    },
    /// More ranks are lost than the training survives.
    TooFew {
        /// Number of lost ranks.
        lost: usize,
        /// Steps that are done.
        step: u64,
        /// Whether a checkpoint has them.
        is_kept: bool,
    },
    /// The ranks that are left cannot find each other.
    Apart {
        /// The reason.
        why: String,
    },
    /// The training is done.
    Done(Box<Report>),
}

/// An agreement of all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Agreement {
    /// Steps that are done.
    pub(super) step: u64,
    /// Numbers of the ranks.
    pub(super) ranks: Vec<u32>,
    /// The same ranks have agreed on other places of experts.
    pub(super) is_rebalance: bool,
    /// Where the state is from: `beginning`, `ranks` or `checkpoint`.
    pub(super) from: String,
    /// Experts that no rank had any more.
    pub(super) lost_experts: Vec<usize>,
    /// Experts whose state went from one rank to another.
    pub(super) moved_experts: usize,
    /// Chance that the training continues without a checkpoint after lost ranks, from one lost up to as many as it still survives.
    pub(super) survival: Vec<f64>,
    /// Experts of each rank, in the order of `ranks`.
    pub(super) experts: Vec<Vec<usize>>,
    /// Seconds from the news of a loss until all agreed; none: nothing was lost.
    pub(super) recovered_seconds: Option<f64>,
}

impl Agreement {
    /// Describes it; `before`: the ranks that agreed before, `survival`: see the field, `took`: the seconds since a loss.
    pub(super) fn new(of: &Regrouped, before: &[u32], survival: Vec<f64>, took: Option<f64>) -> Self {
        let from = match of.origin {
            Origin::Beginning => "beginning",
            Origin::Ranks => "ranks",
            Origin::Checkpoint => "checkpoint",
        };
        Self {
            step: of.step,
            is_rebalance: of.origin == Origin::Ranks && of.members == before,
            ranks: of.members.clone(),
            from: from.to_owned(),
            lost_experts: of.lost.clone(),
            moved_experts: of.moved,
            survival,
            experts: of.experts.clone(),
            recovered_seconds: took,
        }
    }

    /// Returns it in words; none: nothing has changed.
    fn words(&self) -> Option<String> {
        if self.is_rebalance {
            let text =
                format!("step {}: {} experts moved to other ranks", grouped(self.step), self.moved_experts);
            return (self.moved_experts > 0).then_some(text);
        }
        let ranks: Vec<String> = self.ranks.iter().map(u32::to_string).collect();
        let (ranks, s) = match ranks.len() {
            1 => (format!("rank {}", ranks.concat()), "s"),
            _ => (format!("ranks {}", ranks.join(", ")), ""),
        };
        let mut text = match self.from.as_str() {
            "ranks" => format!("{ranks} continue{s} after step {}", grouped(self.step)),
            "checkpoint" => {
                format!("{ranks} continue{s} from the checkpoint of step {}", grouped(self.step))
            }
            _ if self.lost_experts.is_empty() => format!("{ranks} begin{s}"),
            _ => format!("{ranks} begin{s} again"),
        };
        if !self.lost_experts.is_empty() {
            let lost: Vec<String> = self.lost_experts.iter().map(usize::to_string).collect();
            text += &format!(", because no rank that is left has expert {}", lost.join(", "));
        }
        if let Some(took) = self.recovered_seconds {
            text += &format!(", {} after the loss", duration(took * 1e9));
        }
        if self.moved_experts > 0 {
            text += &format!("; {} experts moved", self.moved_experts);
        }
        if !self.survival.is_empty() {
            text += &format!("; {}", survival(&self.survival));
        }
        Some(text)
    }
}

/// `odds to continue: 100 % after the loss of 1 more rank, 83 % of 2`.
pub(super) fn survival(odds: &[f64]) -> String {
    let shown = odds.iter().take(4).enumerate().map(|(place, chance)| match place {
        0 => format!("{:.0} % after the loss of 1 more rank", 100.0 * chance),
        _ => format!("{:.0} % of {}", 100.0 * chance, place + 1),
    });
    format!("odds to continue: {}", shown.collect::<Vec<_>>().join(", "))
}

impl Event {
    /// Returns the event in words; none: people need not know.
    pub(super) fn words(&self) -> Option<String> {
        let kept = |is_kept: bool| match is_kept {
            true => "a checkpoint has them",
            false => "nothing is kept",
        };
        Some(match self {
            Self::Chosen(choice) => return choice.words(),
            Self::Regrouped(agreement) => return agreement.words(),
            Self::Step { step, steps, loss, examples_per_second } => format!(
                "step {} of {}: loss {loss:.4}, {} examples/s",
                grouped(*step),
                grouped(*steps),
                grouped(examples_per_second.round() as u64)
            ),
            Self::Saved { .. } => return None,
            Self::Lost { why } => format!("a rank is lost: {why}"),
            Self::Asked { step, is_kept } => {
                format!("ends early after {} steps; {}", grouped(*step), kept(*is_kept))
            }
            Self::TooFew { lost, step, is_kept } => format!(
                "ends after {} steps, because {lost} of its ranks {} lost; {}",
                grouped(*step),
                if *lost == 1 { "is" } else { "are" },
                kept(*is_kept)
            ),
            Self::Apart { why } => {
                format!("ends, because the ranks that are left do not find each other: {why}")
            }
            Self::Done(report) => report.words(),
        })
    }

    /// Writes the event as a line of JSON.
    pub(super) fn write_json(&self, out: &mut dyn Write) -> std::io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        writeln!(out)?;
        out.flush()
    }
}
