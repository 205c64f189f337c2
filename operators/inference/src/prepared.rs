//! Prepared records: their values one after another, in the buffers that the model then reads.
use crate::origin::Origin;
use crate::tensor::TensorData;

/// A record's values as the model reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedRow {
    /// One entry for each input of the manifest.
    pub(crate) values: Vec<TensorData>,
    /// The picture or text that it was made of.
    pub(crate) origin: Origin,
}

impl PreparedRow {
    /// A record of unknown origin.
    pub(crate) fn new(values: Vec<TensorData>) -> Self {
        Self { values, origin: Origin::default() }
    }
}

/// Several records. Made by [`crate::model::Model::no_rows`]; the buffers are reused for the next batch.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedRows {
    /// The values of all records, for each input of the manifest.
    pub(crate) inputs: Vec<TensorData>,
    /// End of each record in each input: all inputs of the first record, then of the second.
    ends: Vec<usize>,
    /// The picture or text that each record was made of.
    pub(crate) origins: Vec<Origin>,
    rows: usize,
}

impl PreparedRows {
    /// Creates it without records, for inputs of these types.
    pub(crate) fn new(inputs: Vec<TensorData>) -> Self {
        Self { inputs, ends: Vec::new(), origins: Vec::new(), rows: 0 }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Removes all records and keeps the buffers.
    pub fn clear(&mut self) {
        self.ends.clear();
        self.origins.clear();
        self.rows = 0;
        self.cut();
    }

    /// Start of record `row` in input `input`.
    fn start(&self, row: usize, input: usize) -> usize {
        if row == 0 { 0 } else { self.ends[(row - 1) * self.inputs.len() + input] }
    }

    /// Copies a record.
    ///
    /// # Panics
    /// If there is no such record.
    pub fn row(&self, row: usize) -> PreparedRow {
        assert!(row < self.rows, "there are {} records", self.rows);
        let inputs = self.inputs.iter().enumerate();
        let values = inputs
            .map(|(input, values)| {
                values.part(self.start(row, input)..self.ends[row * self.inputs.len() + input])
            })
            .collect();
        PreparedRow { values, origin: self.origins[row].clone() }
    }

    /// Number of values after the last whole record, in input `input`.
    pub(crate) fn unfinished(&self, input: usize) -> usize {
        self.inputs[input].len() - self.start(self.rows, input)
    }

    /// Makes a record of the values appended since the last one.
    pub(crate) fn finish(&mut self, origin: Origin) {
        self.origins.push(origin);
        self.ends.extend(self.inputs.iter().map(TensorData::len));
        self.rows += 1;
    }

    /// Removes the values appended since the last record.
    pub(crate) fn cut(&mut self) {
        for input in 0..self.inputs.len() {
            let end = self.start(self.rows, input);
            self.inputs[input].truncate(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_any_length_come_apart_again() {
        let mut rows =
            PreparedRows::new(vec![TensorData::Float32(Vec::new()), TensorData::Int64(Vec::new())]);
        let add = |rows: &mut PreparedRows, floats: &[f32], integers: &[i64]| {
            rows.inputs[0].append(TensorData::Float32(floats.to_vec())).unwrap();
            rows.inputs[1].append(TensorData::Int64(integers.to_vec())).unwrap();
        };
        add(&mut rows, &[1.0, 2.0], &[3]);
        rows.finish(Origin::default());
        add(&mut rows, &[9.0], &[9, 9]);
        assert_eq!((rows.unfinished(0), rows.unfinished(1)), (1, 2));
        rows.cut();
        rows.inputs[1].append(TensorData::Int64(vec![4, 5])).unwrap();
        rows.finish(Origin::default());
        assert_eq!(rows.len(), 2);
        let row = |floats: &[f32], integers: &[i64]| {
            PreparedRow::new(vec![TensorData::Float32(floats.to_vec()), TensorData::Int64(integers.to_vec())])
        };
        assert_eq!(rows.row(0), row(&[1.0, 2.0], &[3]));
        assert_eq!(rows.row(1), row(&[], &[4, 5]));
        rows.clear();
        assert!(rows.is_empty() && rows.inputs.iter().all(TensorData::is_empty));
    }
}
