//! Top-k: an answer is right if the truth is among the first k values of a tensor.
//!
//! The tensor has the best answer first, as `top_positions(scores, 5)` in a `map` or the labels of a model
//! give it:
//!
//! ```yaml
//! ground_truth: {path: truth.csv, key: key, prediction: best, truth: class, top_k: 5}
//! ```
use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{Array, ArrayRef};

/// Whether the truth is among the first `k` values of a row; texts and whole numbers as they are written. An
/// empty tensor has none.
pub(crate) fn is_among(column: &ArrayRef, row: usize, k: usize, truth: &str) -> bool {
    let Some(lists) = column.as_fixed_size_list_opt().filter(|lists| lists.is_valid(row)) else {
        return false;
    };
    let values = lists.value(row);
    let count = k.min(values.len());
    if let Some(texts) = values.as_string_opt::<i32>() {
        return (0..count).any(|place| texts.value(place) == truth);
    }
    let Ok(truth) = truth.trim().parse::<i64>() else { return false };
    let mut found = (0..count).filter_map(|place| whole(&values, place));
    found.any(|value| value == truth)
}

fn whole(values: &ArrayRef, place: usize) -> Option<i64> {
    if let Some(values) = values.as_primitive_opt::<Int64Type>() {
        return Some(values.value(place));
    }
    if let Some(values) = values.as_primitive_opt::<Int32Type>() {
        return Some(values.value(place).into());
    }
    if let Some(values) = values.as_primitive_opt::<Int8Type>() {
        return Some(values.value(place).into());
    }
    values.as_primitive_opt::<UInt8Type>().map(|values| values.value(place).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::array;
    use serde_json::json;
    use tidemill_spec::types::ColumnType;

    #[test]
    fn the_first_k_count() {
        for (kind, list, truth, found) in [
            ("tensor<text>[3]", json!(["cat", "dog", "cow"]), "dog", [false, true, true, true]),
            ("tensor<int64>[3]", json!([7, 9, 0]), "0", [false, false, true, true]),
            ("tensor<int32>[3]", json!([7, 9, 0]), "7", [true; 4]),
            ("tensor<int8>[3]", json!([7, 9, 0]), "x", [false; 4]),
            ("tensor<uint8>[3]", json!([7, 255, 0]), "255", [false, true, true, true]),
            ("tensor<int64>[3]", json!(null), "0", [false; 4]),
        ] {
            let column = array(&ColumnType::named(kind).unwrap(), vec![&list]);
            assert_eq!([1, 2, 3, 9].map(|k| is_among(&column, 0, k, truth)), found, "{kind} {list}");
        }
    }
}
