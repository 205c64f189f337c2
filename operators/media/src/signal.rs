//! Steps on plain values: lengths, scales, axes.

/// Cuts to `length` values or pads with zeros at the end.
pub fn pad_or_trim<T: Copy + Default>(mut values: Vec<T>, length: usize) -> Vec<T> {
    values.resize(length, T::default());
    values
}

/// Subtracts the mean and divides by the standard deviation (of the population, at least 1e-5), both over
/// all values.
pub fn standardize(values: &mut [f32]) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
    let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / variance.sqrt().max(1e-5);
    for value in values {
        *value = ((f64::from(*value) - mean) * scale) as f32;
    }
}

/// Transposes a matrix of `columns` columns.
pub fn transpose<T: Copy>(values: &[T], columns: usize) -> Vec<T> {
    let mut transposed = Vec::new();
    append_transposed(values, columns, &mut transposed);
    transposed
}

/// Appends the transposed matrix to `to`.
pub fn append_transposed<T: Clone>(values: &[T], columns: usize, to: &mut Vec<T>) {
    to.reserve(values.len());
    for column in 0..columns {
        to.extend(values.iter().skip(column).step_by(columns.max(1)).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_made_equal() {
        assert_eq!(pad_or_trim(vec![1, 2, 3], 2), [1, 2]);
        assert_eq!(pad_or_trim(vec![1.0], 3), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn mean_and_deviation_become_0_and_1() {
        let mut values = [2.0, 4.0, 6.0, 8.0];
        standardize(&mut values);
        assert!((values.iter().sum::<f32>()).abs() < 1e-6);
        assert!((values.iter().map(|v| v * v).sum::<f32>() / 4.0 - 1.0).abs() < 1e-5);
        let mut silence = [3.0; 4];
        standardize(&mut silence);
        assert_eq!(silence, [0.0; 4]);
    }

    #[test]
    fn rows_become_columns() {
        assert_eq!(transpose(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
