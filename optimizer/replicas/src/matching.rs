//! Assignments of least cost.

/// Assigns each row of a square matrix of costs to a column of its own, so that the sum of the costs is least. Returns the column of each
/// row. The time grows with the cube of the rows.
///
/// The method is that of Hungarian potentials and shortest augmenting paths (Jonker and Volgenant, 1987).
///
/// ```
/// assert_eq!(tidemill_replicas::least_cost(&[vec![4, 1], vec![2, 0]]), [1, 0]);
/// ```
pub fn least_cost(costs: &[Vec<u64>]) -> Vec<usize> {
    let rows = costs.len();
    // Rows and columns count from 1; column 0 stands for the row that is being added.
    let (mut of_row, mut of_column) = (vec![0i128; rows + 1], vec![0i128; rows + 1]);
    let mut row_at = vec![0; rows + 1];
    for added in 1..=rows {
        row_at[0] = added;
        let mut column = 0;
        let mut least = vec![i128::MAX; rows + 1];
        let mut before = vec![0; rows + 1];
        let mut visited = vec![false; rows + 1];
        while row_at[column] != 0 {
            visited[column] = true;
            let row = row_at[column];
            let (mut step, mut next) = (i128::MAX, 0);
            for other in (1..=rows).filter(|other| !visited[*other]) {
                let cost = i128::from(costs[row - 1][other - 1]) - of_row[row] - of_column[other];
                if cost < least[other] {
                    least[other] = cost;
                    before[other] = column;
                }
                if least[other] < step {
                    (step, next) = (least[other], other);
                }
            }
            for other in 0..=rows {
                if visited[other] {
                    of_row[row_at[other]] += step;
                    of_column[other] -= step;
                } else if least[other] != i128::MAX {
                    least[other] -= step;
                }
            }
            column = next;
        }
        while column != 0 {
            row_at[column] = row_at[before[column]];
            column = before[column];
        }
    }
    let mut columns = vec![0; rows];
    for column in 1..=rows {
        columns[row_at[column] - 1] = column - 1;
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn least_of_all(costs: &[Vec<u64>], row: usize, free: &mut Vec<usize>) -> u64 {
        (0..free.len())
            .map(|place| {
                let column = free.swap_remove(place);
                let sum =
                    costs[row][column] + if free.is_empty() { 0 } else { least_of_all(costs, row + 1, free) };
                free.push(column);
                let last = free.len() - 1;
                free.swap(place, last);
                sum
            })
            .min()
            .unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_sum_is_least(costs in (1usize..7).prop_flat_map(|rows|
            proptest::collection::vec(proptest::collection::vec(0u64..20, rows), rows))) {
            let columns = least_cost(&costs);
            let sum: u64 = costs.iter().zip(&columns).map(|(row, column)| row[*column]).sum();
            prop_assert_eq!(sum, least_of_all(&costs, 0, &mut (0..costs.len()).collect()));
            let mut sorted = columns;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..costs.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_rows_have_no_columns() {
        assert!(least_cost(&[]).is_empty());
    }
}
