//! Numbers of a manifest as values of a tensor, without a silent change.
//!
//! ```
//! use tidemill_inference::exact::fitting;
//! use tidemill_spec::manifest::Number;
//! use tidemill_spec::types::ElementType;
//! assert!(fitting(ElementType::Int8, Number::Whole(-128)).is_ok());
//! let error = fitting(ElementType::Int8, Number::Whole(300)).unwrap_err();
//! assert_eq!(error.to_string(), "300 does not fit into int8; write a whole number from -128 to 127");
//! ```
use crate::tensor::TensorData;
use half::f16;
use tidemill_spec::manifest::Number;
use tidemill_spec::types::ElementType;

/// Number that an element type does not have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{value} does not fit into {element}; write {range}")]
pub struct Unfit {
    /// The number.
    pub value: Number,
    /// The element type.
    pub element: ElementType,
    range: String,
}

/// Returns a number as a tensor of one value. Decimals are rounded to the nearest float; whole numbers are kept exactly.
///
/// # Errors
/// [`Unfit`] if the type has no such value: it is out of range, a part of a whole number, a whole number with more digits
/// than the float has, or too small for the float, so that it would be 0.
pub fn fitting(element: ElementType, value: Number) -> Result<TensorData, Unfit> {
    let unfit = || Unfit { value, element, range: range(element) };
    let whole = match value {
        Number::Whole(value) => Some(value),
        // Above, floats and whole numbers are not one to one.
        Number::Real(value) if value.fract() == 0.0 && value.abs() <= 2f64.powi(53) => Some(value as i64),
        Number::Real(_) => None,
    };
    fn narrow<T: TryFrom<i64>>(whole: Option<i64>) -> Option<Vec<T>> {
        Some(vec![T::try_from(whole?).ok()?])
    }
    let fitted = match element {
        ElementType::Int64 => whole.map(|value| TensorData::Int64(vec![value])),
        ElementType::Int32 => narrow(whole).map(TensorData::Int32),
        ElementType::Int8 => narrow(whole).map(TensorData::Int8),
        ElementType::Uint8 => narrow(whole).map(TensorData::Uint8),
        ElementType::Bool => {
            whole.filter(|value| matches!(value, 0 | 1)).map(|value| TensorData::Bool(vec![value == 1]))
        }
        ElementType::Text => None,
        ElementType::Float32 => {
            let rounded = wide(value) as f32;
            is_kept(value, f64::from(rounded)).then(|| TensorData::Float32(vec![rounded]))
        }
        ElementType::Float16 => {
            let rounded = f16::from_f64(wide(value));
            is_kept(value, rounded.to_f64()).then(|| TensorData::Float16(vec![rounded]))
        }
        ElementType::Float64 => is_kept(value, wide(value)).then(|| TensorData::Float64(vec![wide(value)])),
    };
    fitted.ok_or_else(unfit)
}

fn wide(value: Number) -> f64 {
    match value {
        Number::Whole(value) => value as f64,
        Number::Real(value) => value,
    }
}

/// Whether a number is the same, or for decimals near, after its conversion to a float.
fn is_kept(value: Number, rounded: f64) -> bool {
    match value {
        // The largest i64 is rounded up to 2^63, which `as` would bring back.
        Number::Whole(value) => rounded < 2f64.powi(63) && rounded as i64 == value,
        Number::Real(value) => rounded.is_finite() == value.is_finite() && (rounded == 0.0) == (value == 0.0),
    }
}

fn range(element: ElementType) -> String {
    match element {
        ElementType::Int64 => format!("a whole number from {} to {}", i64::MIN, i64::MAX),
        ElementType::Int32 => format!("a whole number from {} to {}", i32::MIN, i32::MAX),
        ElementType::Int8 => "a whole number from -128 to 127".to_owned(),
        ElementType::Uint8 => "a whole number from 0 to 255".to_owned(),
        ElementType::Bool => "0 or 1".to_owned(),
        ElementType::Float16 => "a number up to 65504, a whole one of up to 3 digits".to_owned(),
        ElementType::Float32 => "a number up to 3.4e38, a whole one of up to 7 digits".to_owned(),
        ElementType::Float64 => "a whole number of up to 15 digits, or a decimal".to_owned(),
        ElementType::Text => "a text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Number::{Real, Whole};

    #[test]
    fn what_fits_is_kept() {
        let exact = 9_007_199_254_740_993;
        assert_eq!(fitting(ElementType::Int64, Whole(exact)).unwrap(), TensorData::Int64(vec![exact]));
        assert_eq!(fitting(ElementType::Uint8, Real(255.0)).unwrap(), TensorData::Uint8(vec![255]));
        assert_eq!(fitting(ElementType::Bool, Whole(1)).unwrap(), TensorData::Bool(vec![true]));
        assert_eq!(fitting(ElementType::Float32, Real(0.1)).unwrap(), TensorData::Float32(vec![0.1]));
        assert_eq!(fitting(ElementType::Float32, Whole(3)).unwrap(), TensorData::Float32(vec![3.0]));
        assert_eq!(fitting(ElementType::Float64, Real(-0.0)).unwrap(), TensorData::Float64(vec![-0.0]));
    }

    #[test]
    fn what_would_change_is_refused() {
        for (element, value) in [
            (ElementType::Int8, Whole(300)),
            (ElementType::Uint8, Whole(-1)),
            (ElementType::Int64, Real(1.5)),
            (ElementType::Int64, Real(1e19)),
            (ElementType::Int32, Whole(1 << 31)),
            (ElementType::Bool, Real(0.4)),
            (ElementType::Bool, Whole(2)),
            (ElementType::Float16, Whole(70_000)),
            (ElementType::Float16, Whole(2049)),
            (ElementType::Float32, Real(1e300)),
            (ElementType::Float32, Real(1e-60)),
            (ElementType::Float32, Whole(16_777_217)),
            (ElementType::Float64, Whole(i64::MAX)),
        ] {
            let error = fitting(element, value).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{value} does not fit into {element}; write")), "{error}");
        }
    }
}
