//! A program without its decided parts: columns with one possible value, and rows that always hold.
//!
//! The solver's own presolve keeps continuous columns. Most programs here restrict one large program (variants given,
//! numbers of workers given), so that most shares and flows are 0; without them a linear program takes a fraction of
//! the time.
//!
//! A row whose least activity over the bounds of its columns equals its right side holds only with every column at that
//! bound; one whose largest activity is within it always holds. Nothing else is done, so the points of the reduced
//! program are exactly those of the whole.
use super::program::{ColumnFacts, Row};
use super::tuning::{ACTIVITY_ROUNDING, ROW_VIOLATION};
use microlp::ComparisonOp;

/// The remaining program.
#[derive(Debug)]
pub(super) struct Reduced {
    /// Per column: its only value.
    pub(super) fixed: Vec<Option<f64>>,
    /// Remaining rows, with the remaining columns.
    pub(super) rows: Vec<Row>,
}

/// Least and largest activity of terms, and the largest of them.
struct Activity {
    least: f64,
    most: f64,
    scale: f64,
}

impl Reduced {
    /// Returns none where a row can never hold.
    pub(super) fn of(columns: &[ColumnFacts], rows: &[Row]) -> Option<Self> {
        let mut fixed: Vec<Option<f64>> =
            columns.iter().map(|column| (column.low == column.high).then_some(column.low)).collect();
        let mut rows_of: Vec<Vec<usize>> = vec![Vec::new(); columns.len()];
        for (index, row) in rows.iter().enumerate() {
            for (column, _) in &row.terms {
                rows_of[*column].push(index);
            }
        }
        let mut is_left = vec![true; rows.len()];
        let mut is_waiting = vec![true; rows.len()];
        let mut waiting: Vec<usize> = (0..rows.len()).rev().collect();
        while let Some(index) = waiting.pop() {
            is_waiting[index] = false;
            if !is_left[index] {
                continue;
            }
            let row = &rows[index];
            let activity = activity(columns, &fixed, row);
            let rounding = ACTIVITY_ROUNDING * activity.scale;
            let is_bounded_above = !matches!(row.operator, ComparisonOp::Ge);
            let is_bounded_below = !matches!(row.operator, ComparisonOp::Le);
            let broken = ROW_VIOLATION * activity.scale.max(1.0);
            if (is_bounded_above && activity.least > row.right + broken)
                || (is_bounded_below && activity.most < row.right - broken)
            {
                return None;
            }
            let at_least = is_bounded_above && activity.least >= row.right - rounding;
            let at_most = is_bounded_below && activity.most <= row.right + rounding;
            if at_least || at_most {
                is_left[index] = false;
                for &(column, value) in &row.terms {
                    if fixed[column].is_some() {
                        continue;
                    }
                    let takes_low = (value > 0.0) == at_least;
                    fixed[column] = Some(if takes_low { columns[column].low } else { columns[column].high });
                    for &other in &rows_of[column] {
                        if is_left[other] && !is_waiting[other] {
                            is_waiting[other] = true;
                            waiting.push(other);
                        }
                    }
                }
            } else {
                let holds_above = !is_bounded_above || activity.most <= row.right + rounding;
                let holds_below = !is_bounded_below || activity.least >= row.right - rounding;
                is_left[index] = !(holds_above && holds_below);
            }
        }
        // A row with only given columns may be dropped only where it holds. That was checked above; a row whose last
        // column became given later was put into `waiting` and checked again.
        let left = |row: &Row| {
            let mut right = row.right;
            let mut terms = Vec::with_capacity(row.terms.len());
            for &(column, value) in &row.terms {
                match fixed[column] {
                    Some(given) => right -= value * given,
                    None => terms.push((column, value)),
                }
            }
            Row { terms, right, operator: row.operator }
        };
        let rows = rows.iter().zip(&is_left).filter(|(_, is_left)| **is_left).map(|(row, _)| left(row));
        let rows = rows.collect();
        Some(Self { fixed, rows })
    }
}

fn activity(columns: &[ColumnFacts], fixed: &[Option<f64>], row: &Row) -> Activity {
    let mut activity = Activity { least: 0.0, most: 0.0, scale: row.right.abs() };
    for &(column, value) in &row.terms {
        let (low, high) = fixed[column].map_or((columns[column].low, columns[column].high), |v| (v, v));
        let ends = [value * low, value * high];
        activity.least += ends[0].min(ends[1]);
        activity.most += ends[0].max(ends[1]);
        activity.scale = activity.scale.max(ends[0].abs()).max(ends[1].abs());
    }
    activity
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planners::exact::program::{Answer, Effort, Program};

    /// `sum phi = b`, `flow = phi`: without the binary its shares and flows disappear.
    #[test]
    fn what_a_given_column_decides_is_left_out() {
        let mut program = Program::default();
        let binaries: Vec<_> = (0..2).map(|_| program.integer(0.0, 0, 1)).collect();
        let mut shares = Vec::new();
        for &binary in &binaries {
            let own: Vec<_> = [1.0, 2.0].map(|cost| program.real(cost, 0.0, 1.0)).to_vec();
            program.equal(vec![(own[0], 1.0), (own[1], 1.0), (binary, -1.0)], 0.0);
            shares.extend(own);
        }
        program.equal(binaries.iter().map(|&binary| (binary, 1.0)).collect(), 1.0);
        program.at_most(vec![(shares[2], 1.0)], 0.25);
        let fixed = program.with([(binaries[0], 0.0)]);
        let (columns, rows) = fixed.parts();
        let reduced = Reduced::of(columns, rows).expect("has points");
        assert_eq!(reduced.fixed[shares[0]], Some(0.0));
        assert_eq!(reduced.fixed[binaries[1]], Some(1.0), "one of them is chosen");
        assert_eq!((reduced.fixed[shares[2]], reduced.fixed[shares[3]]), (None, None));
        let Answer::Found(point) = fixed.solve(&Effort { nodes: 10, seconds: 10.0, ..Effort::default() })
        else {
            panic!("has a point")
        };
        assert!((point.cost - 1.75).abs() < 1e-9, "{point:?}");
        // A value that no column can reach is impossible.
        let (columns, rows) = fixed.parts();
        let mut impossible = rows.to_vec();
        impossible[2].right = 3.0;
        assert!(Reduced::of(columns, &impossible).is_none());
    }
}
