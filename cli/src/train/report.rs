//! Results of a training: its report, and the weights.
use super::aggregation::Choice;
use super::preparation::Prepared;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{grouped, rate, seconds};
use tidemill_profiler::cache::write_whole;
use tidemill_training::{Evaluation, Model};

/// Name of the report.
pub(super) const REPORT: &str = "report.json";
/// Name of the weights.
pub(super) const WEIGHTS: &str = "weights.json";

/// Report of a training that is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Version of the format.
    pub(super) version: u32,
    /// Name of the job.
    pub(super) name: String,
    /// Steps.
    pub(super) steps: u64,
    /// Ranks at the beginning.
    pub(super) ranks: u32,
    /// Ranks that were lost, and did not come back.
    pub(super) lost_ranks: usize,
    /// Who added up the gradients, and why.
    pub(super) aggregation: Choice,
    /// Examples that were trained with, and that were held out.
    pub(super) examples: usize,
    pub(super) held_out: usize,
    /// Names of the classes.
    pub(super) classes: Vec<String>,
    /// Parameters.
    pub(super) parameters: usize,
    /// Mean loss, and share of right classes, of the examples that were trained with.
    pub(super) loss: f64,
    pub(super) accuracy: f64,
    /// The same of the held-out ones; none: there are none.
    pub(super) held_out_loss: Option<f64>,
    pub(super) held_out_accuracy: Option<f64>,
    /// Share of right classes of the held-out ones before the training, of a model that it started from.
    pub(super) held_out_accuracy_before: Option<f64>,
    /// Share of the examples that each expert computes; empty for a perceptron.
    pub(super) experts: Vec<f64>,
    /// Chance to continue without a checkpoint after lost ranks, from one lost on, at the end.
    pub(super) survival: Vec<f64>,
    /// Seconds of this start, and examples of all ranks for each of them.
    pub(super) seconds: f64,
    pub(super) examples_per_second: f64,
    /// CRC-32C of the bits of the parameters: the same for the same training, whatever the number of ranks.
    pub(super) digest: String,
    /// Files beside the report.
    pub(super) files: Vec<String>,
}

/// Course of a training, beside its model.
pub(super) struct Past {
    pub(super) lost_ranks: usize,
    pub(super) aggregation: Choice,
    pub(super) survival: Vec<f64>,
    pub(super) seconds: f64,
    /// Steps of this start.
    pub(super) steps: u64,
}

impl Report {
    /// Evaluates the model.
    pub(super) fn of(prepared: &Prepared, parameters: &[f64], before: Option<&[f64]>, past: Past) -> Self {
        let trained = Evaluation::of(&prepared.model, parameters, &prepared.examples);
        let evaluated = |parameters| {
            let some = !prepared.held_out.is_empty();
            some.then(|| Evaluation::of(&prepared.model, parameters, &prepared.held_out))
        };
        let (held_out, before) = (evaluated(parameters), before.and_then(evaluated));
        let examples = past.steps as f64 * prepared.options.batch as f64;
        Self {
            version: 1,
            name: prepared.name.clone(),
            steps: prepared.steps,
            ranks: prepared.ranks,
            lost_ranks: past.lost_ranks,
            aggregation: past.aggregation,
            examples: prepared.examples.len(),
            held_out: prepared.held_out.len(),
            classes: prepared.names.clone(),
            parameters: parameters.len(),
            loss: trained.loss,
            accuracy: trained.accuracy,
            held_out_loss: held_out.as_ref().map(|of| of.loss),
            held_out_accuracy: held_out.as_ref().map(|of| of.accuracy),
            held_out_accuracy_before: before.map(|of| of.accuracy),
            experts: if prepared.model.experts() > 1 { trained.experts } else { Vec::new() },
            survival: past.survival,
            seconds: past.seconds,
            examples_per_second: if past.seconds > 0.0 { examples / past.seconds } else { 0.0 },
            digest: tidemill_training::digest(parameters),
            files: Vec::new(),
        }
    }

    /// Writes the report and the model into a folder.
    pub(super) fn write(
        &mut self,
        prepared: &Prepared,
        parameters: &[f64],
        folder: &Path,
        job: &Path,
    ) -> anyhow::Result<()> {
        let write = |name: &str, bytes: &[u8]| {
            write_whole(&folder.join(name), bytes).map_err(|error| {
                Failure::new(Kind::Unavailable, error.to_string())
                    .with_help("name another folder (`--out DIR`)")
            })
        };
        let weights = Weights {
            version: 1,
            model: prepared.model.clone(),
            columns: prepared.columns.clone(),
            classes: prepared.names.clone(),
            parameters: parameters.to_vec(),
        };
        write(WEIGHTS, &serde_json::to_vec(&weights)?)?;
        self.files = vec![WEIGHTS.to_owned()];
        self.files.extend(prepared.write_model(parameters, self.held_out_accuracy, folder, job)?);
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        write(REPORT, &text)?;
        Ok(())
    }

    /// Returns the report in words.
    pub(super) fn words(&self) -> String {
        let mut lines = vec![format!(
            "{} steps with {} ranks in {}, {}",
            grouped(self.steps),
            self.ranks,
            seconds(self.seconds),
            rate(self.examples_per_second)
        )];
        if self.lost_ranks > 0 {
            lines.push(match self.lost_ranks {
                1 => "1 of the ranks was lost".to_owned(),
                lost => format!("{lost} of the ranks were lost"),
            });
        }
        let held_out = match (self.held_out_accuracy, self.held_out) {
            (Some(accuracy), count) => {
                let before =
                    self.held_out_accuracy_before.map(|share| format!(" (before: {:.1} %)", 100.0 * share));
                let count = grouped(count as u64);
                format!("{:.1} % of {count} held-out ones{}", 100.0 * accuracy, before.unwrap_or_default())
            }
            (None, _) => "nothing is held out".to_owned(),
        };
        lines.push(format!(
            "right class for {:.1} % of {} examples, {held_out}",
            100.0 * self.accuracy,
            grouped(self.examples as u64)
        ));
        if !self.experts.is_empty() {
            let shares: Vec<String> =
                self.experts.iter().map(|share| format!("{:.0} %", 100.0 * share)).collect();
            lines.push(format!("examples of each expert: {}", shares.join(", ")));
        }
        lines.push(format!("{} parameters, digest {}", grouped(self.parameters as u64), self.digest));
        lines.join("\n")
    }
}

/// The weights of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Weights {
    /// Version of the format.
    version: u32,
    /// The model.
    pub(super) model: Model,
    /// Columns of the inputs, with the values of each.
    columns: Vec<(String, usize)>,
    /// Names of the classes.
    pub(super) classes: Vec<String>,
    /// All parameters, in the order of the model.
    pub(super) parameters: Vec<f64>,
}

impl Weights {
    /// Reads weights that [`Report::write`] has written.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}
