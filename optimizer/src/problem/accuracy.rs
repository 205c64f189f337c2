//! Accuracy by variants: the measured facts, and the accuracy of joint variants that follows.
use super::{Problem, Producer};

/// Facts about accuracy, in percent.
#[derive(Debug, Clone, PartialEq)]
pub enum AccuracyModel {
    /// None: an accuracy limit cannot be met, and without one every joint variant is accepted.
    None,
    /// Measured end to end; a joint variant without a row is not accepted under an accuracy limit.
    Table(Vec<AccuracyRow>),
    /// Measured per operator: output accuracy by the accuracies of the inputs. `rows[operator][variant]`; an operator
    /// whose variant has no rows passes on the least accuracy of its inputs. The row used is the best of those whose
    /// input accuracies are all at most those of the inputs (JellyBean's conservative estimate). The end-to-end
    /// accuracy is the least of the operators without a consumer.
    RowLookup(Vec<Vec<Vec<ResponseRow>>>),
    /// `base` plus one contribution per operator: `contributions[operator][variant]`.
    Additive {
        /// Accuracy before contributions.
        base: f64,
        /// Contribution by operator and variant.
        contributions: Vec<Vec<f64>>,
    },
}

/// A measured joint variant.
#[derive(Debug, Clone, PartialEq)]
pub struct AccuracyRow {
    /// Variant per operator.
    pub variants: Vec<usize>,
    /// End-to-end accuracy.
    pub accuracy: f64,
}

/// A measured response of a variant to the accuracy of its inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseRow {
    /// Accuracy of each input, in order of the operator's inputs; inputs from sources count as 100.
    pub inputs: Vec<f64>,
    /// Accuracy of the output.
    pub output: f64,
}

/// Accuracies are compared with this tolerance, so that a limit equal to a measured value accepts it.
pub const ACCURACY_TOLERANCE: f64 = 1e-9;

impl Problem {
    /// End-to-end accuracy of joint variants (one per operator); none where it is not known.
    pub fn accuracy_of(&self, variants: &[usize]) -> Option<f64> {
        match &self.accuracy {
            AccuracyModel::None => None,
            AccuracyModel::Table(rows) => {
                rows.iter().find(|row| row.variants == variants).map(|row| row.accuracy)
            }
            AccuracyModel::Additive { base, contributions } => {
                let sum: f64 = contributions.iter().zip(variants).map(|(values, &m)| values[m]).sum();
                Some(base + sum)
            }
            AccuracyModel::RowLookup(rows) => {
                let outputs = self.output_accuracies(rows, variants)?;
                self.last_operators().into_iter().map(|v| outputs[v]).reduce(f64::min)
            }
        }
    }

    /// Accuracies that joint variants can have, the highest first: the measured ones of a table, else every tenth of a
    /// percentage point. Empty without an accuracy model.
    pub fn accuracy_levels(&self) -> Vec<f64> {
        let mut all: Vec<f64> = match &self.accuracy {
            AccuracyModel::None => Vec::new(),
            AccuracyModel::Table(rows) => rows.iter().map(|row| row.accuracy).collect(),
            AccuracyModel::RowLookup(_) | AccuracyModel::Additive { .. } => {
                (0..=1000u32).map(|tenth| f64::from(tenth) / 10.0).collect()
            }
        };
        all.sort_by(|a, b| b.total_cmp(a));
        all.dedup();
        all
    }

    /// Whether joint variants meet the accuracy limit.
    pub fn accepts(&self, variants: &[usize]) -> bool {
        match self.limits.accuracy {
            None => true,
            Some(limit) => {
                self.accuracy_of(variants).is_some_and(|accuracy| accuracy >= limit - ACCURACY_TOLERANCE)
            }
        }
    }

    /// Output accuracy of every operator by row look-up; none where no row applies.
    fn output_accuracies(&self, rows: &[Vec<Vec<ResponseRow>>], variants: &[usize]) -> Option<Vec<f64>> {
        let mut outputs = vec![0.0; self.operators.len()];
        for operator in 0..self.operators.len() {
            let inputs: Vec<f64> = self
                .inputs_of(operator)
                .into_iter()
                .map(|edge| match self.edges[edge].from {
                    Producer::Source(_) => 100.0,
                    Producer::Operator(producer) => outputs[producer],
                })
                .collect();
            let rows = &rows[operator][variants[operator]];
            outputs[operator] = if rows.is_empty() {
                inputs.iter().copied().fold(100.0, f64::min)
            } else {
                rows.iter().filter(|row| row.applies(&inputs)).map(|row| row.output).reduce(f64::max)?
            };
        }
        Some(outputs)
    }
}

impl ResponseRow {
    /// Whether no input accuracy of the row exceeds that of the input.
    pub fn applies(&self, inputs: &[f64]) -> bool {
        self.inputs.iter().zip(inputs).all(|(needed, has)| *needed <= has + ACCURACY_TOLERANCE)
    }
}
