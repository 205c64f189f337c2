//! A program for HiGHS: minimise a linear cost, each row between two numbers, some columns integer.

/// Position of a column.
pub type Column = usize;

/// The program. Columns and rows are numbered in the order of their addition.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub(crate) costs: Vec<f64>,
    pub(crate) column_low: Vec<f64>,
    pub(crate) column_high: Vec<f64>,
    pub(crate) integer: Vec<i32>,
    pub(crate) row_low: Vec<f64>,
    pub(crate) row_high: Vec<f64>,
    /// Start of each row in `indices` and `coefficients`.
    pub(crate) starts: Vec<i32>,
    pub(crate) indices: Vec<i32>,
    pub(crate) coefficients: Vec<f64>,
}

impl Program {
    /// Adds a column with its cost and its bounds, which may be infinite.
    ///
    /// # Panics
    /// Beyond 2^31 columns.
    pub fn column(&mut self, cost: f64, low: f64, high: f64, integer: bool) -> Column {
        self.costs.push(cost);
        self.column_low.push(low);
        self.column_high.push(high);
        self.integer.push(i32::from(integer));
        self.costs.len() - 1
    }

    /// Adds a row: a sum of different columns from `low` to `high`, which may be infinite.
    ///
    /// # Panics
    /// When a column was not added before, and beyond 2^31 coefficients.
    pub fn row(&mut self, low: f64, high: f64, terms: impl IntoIterator<Item = (Column, f64)>) {
        self.starts.push(index(self.indices.len()));
        self.row_low.push(low);
        self.row_high.push(high);
        for (column, coefficient) in terms {
            assert!(column < self.costs.len(), "column {column} of {}", self.costs.len());
            self.indices.push(index(column));
            self.coefficients.push(coefficient);
        }
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.costs.len()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.starts.len()
    }

    /// Whether every number is valid: HiGHS accepts invalid ones and gives meaningless answers.
    pub(crate) fn is_sound(&self) -> bool {
        let bounds = [&self.column_low, &self.column_high, &self.row_low, &self.row_high];
        let finite = [&self.costs, &self.coefficients];
        !bounds.into_iter().flatten().any(|bound| bound.is_nan())
            && finite.into_iter().flatten().all(|number| number.is_finite())
    }

    /// Whether a column is integer.
    pub fn has_integers(&self) -> bool {
        self.integer.contains(&1)
    }
}

/// Converts a position to the 32 bits of HiGHS.
fn index(position: usize) -> i32 {
    i32::try_from(position).expect("a program of fewer than 2^31 numbers")
}
