//! Records that cannot be run together because their texts have other lengths.
use super::{Model, RawOutputs};
use crate::backend::BackendError;
use crate::prepared::PreparedRow;
use crate::tensor::Tensor;
use tidemill_spec::manifest::{Dimension, Preprocess, TokenValues};

impl Model {
    /// Positions of the inputs that would be filled with padding which the model cannot recognise: those of any length, for
    /// whose column there is no mask.
    pub(super) fn unmasked(&self) -> Vec<usize> {
        let inputs = &self.blueprint.manifest.inputs;
        let has_mask = |column: &str| {
            inputs.iter().filter(|input| input.column.as_str() == column).any(|input| {
                let mut steps = input.preprocess.iter();
                steps.any(|step| matches!(step.value, Preprocess::Tokenize { give: TokenValues::Mask, .. }))
            })
        };
        let inputs = inputs.iter().enumerate();
        let open = inputs.filter(|(_, input)| input.shape.contains(&Dimension::Any));
        open.filter(|(_, input)| !has_mask(&input.column)).map(|(at, _)| at).collect()
    }

    /// Groups records of equal lengths, each as their positions in `rows`.
    pub(super) fn groups(&self, rows: &[PreparedRow]) -> Vec<Vec<usize>> {
        let unmasked = self.unmasked();
        let lengths = |row: &PreparedRow| -> Vec<usize> {
            unmasked.iter().map(|at| row.values.get(*at).map_or(0, |values| values.len())).collect()
        };
        let mut groups: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let lengths = lengths(row);
            match groups.iter_mut().find(|group| group.0 == lengths) {
                Some(group) => group.1.push(at),
                None => groups.push((lengths, vec![at])),
            }
        }
        groups.into_iter().map(|(_, rows)| rows).collect()
    }

    /// Runs each group of records by itself.
    pub(super) fn run_groups(
        &mut self,
        rows: &[PreparedRow],
        groups: &[Vec<usize>],
        max_steps: u32,
    ) -> Result<RawOutputs, BackendError> {
        let mut all: Option<RawOutputs> = None;
        for group in groups {
            let rows: Vec<PreparedRow> = group.iter().map(|row| rows[*row].clone()).collect();
            let raw = self.run_batch(&rows, max_steps)?;
            match &mut all {
                None => all = Some(raw),
                Some(all) => {
                    all.cut_off += raw.cut_off;
                    all.others.push(raw);
                }
            }
        }
        let mut all = all.unwrap_or_default();
        let run: Vec<usize> = groups.iter().flatten().copied().collect();
        let mut order = vec![0; run.len()];
        run.iter().enumerate().for_each(|(place, row)| order[*row] = place);
        all.order = Some(order);
        Ok(all)
    }
}

impl RawOutputs {
    /// The outputs of one record, each with a first dimension of 1; none if there is no such record.
    pub(crate) fn record(&self, row: usize) -> Vec<Tensor> {
        let mut place = self.order.as_ref().map_or(Some(row), |order| order.get(row).copied());
        for raw in self.all() {
            let Some(at) = place else { break };
            let rows = raw.tensors.first().map_or(0, Tensor::rows);
            if at < rows {
                return raw.tensors.iter().map(|tensor| tensor.row(at)).collect();
            }
            place = at.checked_sub(rows);
        }
        Vec::new()
    }
}
