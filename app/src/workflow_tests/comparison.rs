//! Comparison of found rows with the expected ones.
use serde::Serialize;
use serde_json::{Map, Value as Json};
use std::collections::HashMap;
use tidemill_spec::workflow_test::Tolerance;

/// Values by column.
pub type Row = Map<String, Json>;

/// Most differing rows that are shown.
const SHOWN: usize = 10;

/// Rows that are not the expected ones.
#[derive(Debug, Serialize)]
pub struct RowsMismatch {
    /// Id of the sink or operator.
    pub id: String,
    /// Number of expected rows.
    pub expected: usize,
    /// Number of found rows.
    pub found: usize,
    /// The first differences.
    pub differences: Vec<Difference>,
    /// Number of further differences.
    pub more: usize,
}

/// An expected row beside the found one that is nearest to it.
#[derive(Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Number of the row, from 1, if the order counts.
    pub row: Option<usize>,
    /// The expected row; `None`: one too many was found.
    pub expected: Option<Row>,
    /// The found row; `None`: it is missing.
    pub found: Option<Row>,
    /// The columns that differ.
    pub columns: Vec<String>,
}

/// Result of a comparison.
pub(super) struct Compared {
    /// `None` if all rows are as expected.
    pub(super) mismatch: Option<RowsMismatch>,
    /// The found rows, with the compared columns.
    pub(super) found: Vec<Row>,
}

/// Compares the rows of a sink or operator. Columns that no expected row names are left out; without expected rows all are kept.
pub(super) fn compare(
    id: &str,
    expected: Vec<Row>,
    found: Vec<Row>,
    is_ordered: bool,
    tolerance: &dyn Fn(&str) -> Tolerance,
) -> Compared {
    let mut columns: Vec<String> = Vec::new();
    for name in expected.iter().flat_map(Row::keys) {
        if !columns.contains(name) {
            columns.push(name.clone());
        }
    }
    if columns.is_empty() {
        let names = found.first().into_iter().flat_map(Row::keys);
        columns = names.filter(|name| !name.starts_with('_')).cloned().collect();
    }
    let only = |row: Row| -> Row {
        columns.iter().map(|name| (name.clone(), row.get(name).cloned().unwrap_or_default())).collect()
    };
    let expected: Vec<Row> = expected.into_iter().map(only).collect();
    let found: Vec<Row> = found.into_iter().map(only).collect();
    let differing = |expected: &Row, found: &Row| -> Vec<String> {
        let cells = expected.iter().zip(found.values());
        let cells = cells.filter(|((name, expected), found)| !agree(expected, found, tolerance(name)));
        cells.map(|((name, _), _)| name.clone()).collect()
    };
    let mut differences = match is_ordered {
        true => in_order(&expected, &found, &differing),
        false => in_any_order(&expected, &found, &differing),
    };
    let more = differences.len().saturating_sub(SHOWN);
    differences.truncate(SHOWN);
    let mismatch = (!differences.is_empty()).then(|| RowsMismatch {
        id: id.to_owned(),
        expected: expected.len(),
        found: found.len(),
        differences,
        more,
    });
    Compared { mismatch, found }
}

/// Whether a found value is the expected one.
fn agree(expected: &Json, found: &Json, tolerance: Tolerance) -> bool {
    match (expected, found) {
        (Json::Number(a), Json::Number(b)) => match (a.as_i64(), b.as_i64()) {
            // Large integers are not exact as floats.
            (Some(a), Some(b)) if a == b => true,
            (Some(_), Some(_)) if tolerance == Tolerance::default() => false,
            _ => a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| tolerance.permits(a, b)),
        },
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agree(a, b, tolerance))
        }
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| agree(a, b, tolerance)))
        }
        (a, b) => a == b,
    }
}

type Differing<'a> = &'a dyn Fn(&Row, &Row) -> Vec<String>;

fn in_order(expected: &[Row], found: &[Row], differing: Differing<'_>) -> Vec<Difference> {
    let rows = (0..expected.len().max(found.len())).filter_map(|at| {
        let (expected, found) = (expected.get(at), found.get(at));
        let columns = expected.zip(found).map(|(expected, found)| differing(expected, found));
        if columns.as_ref().is_some_and(Vec::is_empty) {
            return None;
        }
        let columns = columns.unwrap_or_default();
        Some(Difference { row: Some(at + 1), expected: expected.cloned(), found: found.cloned(), columns })
    });
    rows.collect()
}

/// Assigns as many found rows as possible to the expected ones, each to one; the rest differs.
fn in_any_order(expected: &[Row], found: &[Row], differing: Differing<'_>) -> Vec<Difference> {
    let mut matching = Matching {
        expected,
        found,
        differing,
        of_expected: vec![None; expected.len()],
        of_found: vec![None; found.len()],
    };
    matching.take_equal();
    for row in 0..expected.len() {
        if matching.of_expected[row].is_none() {
            matching.improve(row);
        }
    }
    matching.differences()
}

/// An assignment of found rows to expected ones. Tolerances make several rows fit one, so that the first one that fits need not be the
/// right one: it is improved along alternating paths until no more rows can be assigned.
struct Matching<'a> {
    expected: &'a [Row],
    found: &'a [Row],
    differing: Differing<'a>,
    /// The found row of each expected one.
    of_expected: Vec<Option<usize>>,
    /// The expected row of each found one.
    of_found: Vec<Option<usize>>,
}

impl Matching<'_> {
    fn assign(&mut self, expected: usize, found: usize) {
        (self.of_expected[expected], self.of_found[found]) = (Some(found), Some(expected));
    }

    /// Assigns rows that are equal as texts: nearly all.
    fn take_equal(&mut self) {
        let text = |row: &Row| Json::Object(row.clone()).to_string();
        let mut by_text: HashMap<String, Vec<usize>> = HashMap::new();
        for (place, row) in self.found.iter().enumerate().rev() {
            by_text.entry(text(row)).or_default().push(place);
        }
        for place in 0..self.expected.len() {
            if let Some(found) = by_text.get_mut(&text(&self.expected[place])).and_then(Vec::pop) {
                self.assign(place, found);
            }
        }
    }

    /// Finds a row for an expected one, by moving others if necessary.
    fn improve(&mut self, start: usize) {
        let mut reached_from: Vec<Option<usize>> = vec![None; self.found.len()];
        let mut open = vec![start];
        while let Some(expected) = open.pop() {
            for found in 0..self.found.len() {
                let fits = || (self.differing)(&self.expected[expected], &self.found[found]).is_empty();
                if reached_from[found].is_some() || !fits() {
                    continue;
                }
                reached_from[found] = Some(expected);
                match self.of_found[found] {
                    Some(other) => open.push(other),
                    None => return self.move_along(found, &reached_from),
                }
            }
        }
    }

    /// Assigns the rows of a path that ends at a free found row.
    fn move_along(&mut self, mut found: usize, reached_from: &[Option<usize>]) {
        while let Some(expected) = reached_from[found] {
            let before = self.of_expected[expected];
            self.assign(expected, found);
            match before {
                Some(before) => found = before,
                None => return,
            }
        }
    }

    /// The rows without a partner, each expected one beside the found one with the fewest other values.
    fn differences(&self) -> Vec<Difference> {
        let free = |of: &[Option<usize>]| (0..of.len()).filter(|row| of[*row].is_none()).collect::<Vec<_>>();
        let (missing, mut surplus) = (free(&self.of_expected), free(&self.of_found));
        let mut differences = Vec::new();
        for (number, expected) in missing.iter().map(|place| &self.expected[*place]).enumerate() {
            // Beyond what is shown only the number counts.
            let near = |at: &usize| {
                let columns = (self.differing)(expected, &self.found[surplus[*at]]);
                (columns.len() < expected.len()).then_some((columns.len(), columns))
            };
            let nearest = (0..surplus.len()).filter(|_| number < SHOWN);
            let nearest =
                nearest.filter_map(|at| near(&at).map(|(count, columns)| (count, at, columns))).min();
            let (found, columns) = match nearest {
                Some((_, at, columns)) => (Some(self.found[surplus.remove(at)].clone()), columns),
                None => (None, Vec::new()),
            };
            differences.push(Difference { row: None, expected: Some(expected.clone()), found, columns });
        }
        let surplus = surplus.iter().map(|place| self.found[*place].clone());
        differences.extend(surplus.map(|found| Difference {
            row: None,
            expected: None,
            found: Some(found),
            columns: Vec::new(),
        }));
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn rows(of: &[Json]) -> Vec<Row> {
        of.iter().map(|row| row.as_object().unwrap().clone()).collect()
    }

    fn differences(expected: &[Json], found: &[Json], is_ordered: bool, absolute: f64) -> Vec<Difference> {
        let tolerance = |_: &str| Tolerance { absolute, relative: 0.0 };
        let compared = compare("out", rows(expected), rows(found), is_ordered, &tolerance);
        compared.mismatch.map_or_else(Vec::new, |mismatch| mismatch.differences)
    }

    #[test]
    fn order_counts_only_where_it_should() {
        let (a, b) = (json!({"n": 1, "t": "a"}), json!({"n": 2, "t": "b"}));
        let [one, other] = [[a.clone(), b.clone()], [b, a]];
        assert_eq!(differences(&one, &other, false, 0.0), []);
        let found = differences(&one, &other, true, 0.0);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].row, &found[0].columns[..]), (Some(1), &["n".to_owned(), "t".to_owned()][..]));
    }

    #[test]
    fn a_differing_row_stands_beside_the_nearest() {
        let expected =
            [json!({"k": "a", "n": 1.0}), json!({"k": "b", "n": 2.0}), json!({"k": "c", "n": 3.0})];
        let found = [
            json!({"k": "b", "n": 2.5, "x": 0}),
            json!({"k": "a", "n": 1, "x": 0}),
            json!({"k": "d", "n": 9, "x": 0}),
        ];
        let told = differences(&expected, &found, false, 0.0);
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[0].columns, ["n"]);
        assert_eq!(told[0].found.as_ref().unwrap()["n"], 2.5);
        assert!(told[0].found.as_ref().unwrap().get("x").is_none(), "not compared");
        assert_eq!((told[1].found.is_none(), told[2].expected.is_none()), (true, true));
    }

    #[test]
    fn values_of_every_type() {
        let close = Tolerance { absolute: 0.0, relative: 0.1 };
        let exact = Tolerance::default();
        assert!(agree(&json!(100), &json!(109.9), close) && !agree(&json!(100), &json!(110.1), close));
        assert!(agree(&json!(2), &json!(2.0), exact));
        assert!(!agree(&json!(9_007_199_254_740_993_i64), &json!(9_007_199_254_740_992_i64), exact));
        assert!(agree(&json!([1.0, {"bytes": 3}]), &json!([1.05, {"bytes": 3}]), close));
        assert!(!agree(&json!([1]), &json!([1, 2]), close) && !agree(&json!(null), &json!(0), close));
        assert!(!agree(&json!({"a": 1}), &json!({"b": 1}), exact) && agree(&json!("x"), &json!("x"), exact));
    }

    proptest! {
        /// With one number per row, the largest assignment is that of the sorted rows, greedily.
        #[test]
        fn as_many_rows_as_possible_are_assigned(
            expected in prop::collection::vec(0i64..20, 0..10), found in prop::collection::vec(0i64..20, 0..10),
            tolerance in 0i64..4,
        ) {
            let (mut sorted, mut rest) = (expected.clone(), found.clone());
            sorted.sort_unstable();
            rest.sort_unstable();
            let (mut at, mut assigned) = (0, 0);
            for value in sorted {
                while at < rest.len() && rest[at] < value - tolerance {
                    at += 1;
                }
                if at < rest.len() && rest[at] <= value + tolerance {
                    (at, assigned) = (at + 1, assigned + 1);
                }
            }
            let of = |numbers: &[i64]| numbers.iter().map(|n| json!({"n": n})).collect::<Vec<_>>();
            let tolerance = |_: &str| Tolerance { absolute: tolerance as f64, relative: 0.0 };
            let compared = compare("out", rows(&of(&expected)), rows(&of(&found)), false, &tolerance);
            let told = compared.mismatch.map_or(0, |m| m.differences.len() + m.more);
            prop_assert_eq!(told, expected.len() + found.len() - 2 * assigned);
        }
    }
}
