//! Columns of a table as the values of one tensor: numbers, truth values, and categories as their positions.
//!
//! ```
//! use tidemill_inference::preprocess::features::{FeatureCell, Features};
//! use tidemill_inference::tensor::TensorData;
//! use tidemill_spec::manifest::Feature;
//! use tidemill_spec::span::Located;
//! let mut colour = Feature::plain("colour");
//! colour.categories = vec!["red".into(), "green".into()];
//! colour.one_hot = true;
//! let features = Features::new(&[Located::from(Feature::plain("age")), colour.into()]).unwrap();
//! let mut values = TensorData::Float32(vec![]);
//! features.append(&[FeatureCell::Int(41), FeatureCell::Text("green")], &mut values).unwrap();
//! assert_eq!(values, TensorData::Float32(vec![41.0, 0.0, 1.0]));
//! ```
use super::Rejected;
use crate::tensor::TensorData;
use half::f16;
use std::collections::HashMap;
use std::fmt::Display;
use tidemill_spec::manifest::{Feature, Missing};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::ColumnType;

/// One value of a record, as read from a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeatureCell<'a> {
    /// No value.
    Missing,
    /// A value of a float64 column.
    Float(f64),
    /// A value of an int64 column.
    Int(i64),
    /// A value of a bool column: 1 or 0.
    Bool(bool),
    /// A value of a text column: a category.
    Text(&'a str),
}

/// Error of a feature in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{column}` has the category {category:?} twice, at positions {first} and {second}")]
pub struct FeaturesError {
    /// The column.
    pub column: String,
    /// The category.
    pub category: String,
    /// Its first position, from 0.
    pub first: usize,
    /// Its second position.
    pub second: usize,
    /// Position of the feature in the manifest.
    pub span: Span,
}

/// The conversion of columns to one row of a tensor.
#[derive(Debug, Clone)]
pub struct Features {
    parts: Vec<Part>,
    width: usize,
}

#[derive(Debug, Clone)]
struct Part {
    column: String,
    missing: Option<Missing>,
    categories: Option<Categories>,
}

#[derive(Debug, Clone)]
struct Categories {
    texts: HashMap<String, usize>,
    /// The categories that are whole numbers, for int64 columns.
    numbers: HashMap<i64, usize>,
    /// Number of values if each category has one of its own.
    one_hot: Option<usize>,
    unknown: Option<f64>,
}

/// The value or values that a cell becomes.
enum Converted {
    Number(f64),
    /// A whole number, kept exactly where the tensor has integers.
    Whole(i64),
    /// This value `.1` times.
    Repeated(f64, usize),
    /// 1 at a position, 0 at others: position and number of values.
    OneHot(usize, usize),
}

/// Returns whether a feature can be read from a column of this type: numbers and truth values as they are; text and
/// int64 as categories.
pub fn accepts(feature: &Feature, column: &ColumnType) -> bool {
    match feature.categories.is_empty() {
        true => matches!(column, ColumnType::Int64 | ColumnType::Float64 | ColumnType::Bool),
        false => matches!(column, ColumnType::Int64 | ColumnType::Text),
    }
}

impl Features {
    /// Prepares the features of a tensor, in its order.
    ///
    /// # Errors
    /// [`FeaturesError`] if a category has two positions.
    pub fn new(features: &[Located<Feature>]) -> Result<Self, FeaturesError> {
        let parts = features.iter().map(Part::new).collect::<Result<_, _>>()?;
        Ok(Self { parts, width: features.iter().map(|feature| feature.width()).sum() })
    }

    /// Number of values of one record.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Appends the values of one record, which has a cell for each feature. Floats are rounded to the type of the tensor;
    /// so are whole numbers in a tensor of floats: float32 has each up to 2^24, float64 each up to 2^53.
    ///
    /// # Errors
    /// [`Rejected`] if a value is missing (`missing_value`), a category is not known (`unknown_category`), a tensor of
    /// integers gets another number (`not_a_whole_number`), or a number would be infinite in a tensor of floats
    /// (`number_too_large`); then nothing is appended.
    pub fn append(&self, cells: &[FeatureCell<'_>], to: &mut TensorData) -> Result<(), Rejected> {
        let before = to.len();
        let appended = self.append_each(cells, to);
        if appended.is_err() {
            to.truncate(before);
        }
        appended
    }

    fn append_each(&self, cells: &[FeatureCell<'_>], to: &mut TensorData) -> Result<(), Rejected> {
        if cells.len() != self.parts.len() {
            let detail =
                format!("the record has {} values, the model reads {}", cells.len(), self.parts.len());
            return Err(Rejected::new("wrong_type", detail));
        }
        for (part, cell) in self.parts.iter().zip(cells) {
            match part.convert(*cell)? {
                Converted::Number(value) => part.push(value, to)?,
                Converted::Whole(value) => part.push_whole(value, to)?,
                Converted::Repeated(value, times) => {
                    (0..times).try_for_each(|_| part.push(value, to))?;
                }
                Converted::OneHot(position, width) => {
                    (0..width).for_each(|at| to.push(f64::from(u8::from(at == position))));
                }
            }
        }
        Ok(())
    }
}

impl Part {
    fn new(feature: &Located<Feature>) -> Result<Self, FeaturesError> {
        let mut texts = HashMap::new();
        let mut numbers = HashMap::new();
        for (second, category) in feature.categories.iter().enumerate() {
            let number = category.parse::<i64>().ok();
            let first = texts.insert(category.clone(), second);
            // `1` and `01` are two texts and one number.
            let first = number.and_then(|number| numbers.insert(number, second)).or(first);
            if let Some(first) = first {
                let (column, category) = (feature.column.clone(), category.clone());
                return Err(FeaturesError { column, category, first, second, span: feature.span.clone() });
            }
        }
        let one_hot = feature.one_hot.then_some(feature.categories.len());
        let categories = Categories { texts, numbers, one_hot, unknown: feature.unknown };
        Ok(Self {
            column: feature.column.clone(),
            missing: feature.missing,
            categories: (!feature.categories.is_empty()).then_some(categories),
        })
    }

    fn convert(&self, cell: FeatureCell<'_>) -> Result<Converted, Rejected> {
        if cell == FeatureCell::Missing || self.is_blank(cell) {
            let Some(missing) = self.missing else {
                return Err(Rejected::new("missing_value", format!("the column `{}` is empty", self.column)));
            };
            let width = self.categories.as_ref().and_then(|categories| categories.one_hot).unwrap_or(1);
            return Ok(Converted::Repeated(missing.value(), width));
        }
        match (&self.categories, cell) {
            (Some(categories), FeatureCell::Text(text)) => {
                self.category(categories, categories.texts.get(text), format_args!("{text:?}"))
            }
            (Some(categories), FeatureCell::Int(number)) => {
                self.category(categories, categories.numbers.get(&number), number)
            }
            (None, FeatureCell::Float(value)) => Ok(Converted::Number(value)),
            (None, FeatureCell::Int(value)) => Ok(Converted::Whole(value)),
            (None, FeatureCell::Bool(value)) => Ok(Converted::Whole(i64::from(value))),
            _ => Err(Rejected::new(
                "wrong_type",
                format!("the column `{}` has another type than the manifest declares", self.column),
            )),
        }
    }

    /// Whether a text is no category but an empty field: files of text do not tell it from none. Without a rule for
    /// missing values it is a category that is not known.
    fn is_blank(&self, cell: FeatureCell<'_>) -> bool {
        let unknown = |categories: &Categories| !categories.texts.contains_key("");
        cell == FeatureCell::Text("")
            && self.missing.is_some()
            && self.categories.as_ref().is_some_and(unknown)
    }

    fn category(
        &self,
        categories: &Categories,
        position: Option<&usize>,
        value: impl Display,
    ) -> Result<Converted, Rejected> {
        match (position, categories.one_hot, categories.unknown) {
            (Some(position), Some(width), _) => Ok(Converted::OneHot(*position, width)),
            (Some(position), None, _) => Ok(Converted::Whole(*position as i64)),
            (None, Some(width), Some(_)) => Ok(Converted::Repeated(0.0, width)),
            (None, None, Some(unknown)) => Ok(Converted::Number(unknown)),
            (None, _, None) => {
                let value: String = value.to_string().chars().take(100).collect();
                let detail =
                    format!("the column `{}` has {value}, which is none of its categories", self.column);
                Err(Rejected::new("unknown_category", detail))
            }
        }
    }

    /// Appends a number. Integers get whole ones only: the model would mistake a rounded one for a value.
    fn push(&self, value: f64, to: &mut TensorData) -> Result<(), Rejected> {
        let range = match to {
            TensorData::Int64(_) => -(2f64.powi(63))..2f64.powi(63),
            TensorData::Int32(_) => -(2f64.powi(31))..2f64.powi(31),
            TensorData::Int8(_) => -128.0..128.0,
            TensorData::Uint8(_) => 0.0..256.0,
            _ => f64::NEG_INFINITY..f64::INFINITY,
        };
        if to.element().is_integer() && !(value.fract() == 0.0 && range.contains(&value)) {
            return Err(self.not_whole(value, to));
        }
        let is_too_large = match to {
            TensorData::Float32(_) => (value as f32).is_infinite(),
            TensorData::Float16(_) => f16::from_f64(value).is_infinite(),
            _ => false,
        };
        if is_too_large && value.is_finite() {
            let detail = format!(
                "the column `{}` gives {value:?}, which does not fit into {}",
                self.column,
                to.element()
            );
            return Err(Rejected::new("number_too_large", detail));
        }
        to.push(value);
        Ok(())
    }

    fn push_whole(&self, value: i64, to: &mut TensorData) -> Result<(), Rejected> {
        match to {
            TensorData::Int64(values) => values.push(value),
            // As f64 the largest ones would be rounded up, out of the range of the narrower type or not.
            _ => return self.push(value as f64, to),
        }
        Ok(())
    }

    fn not_whole(&self, value: f64, to: &TensorData) -> Rejected {
        let detail = format!("the column `{}` gives {value}, the model reads {}", self.column, to.element());
        Rejected::new("not_a_whole_number", detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FeatureCell::{Bool, Float, Int, Text};

    fn category(column: &str, categories: &[&str], one_hot: bool, unknown: Option<f64>) -> Located<Feature> {
        let categories = categories.iter().map(ToString::to_string).collect();
        Located::from(Feature { categories, one_hot, unknown, ..Feature::plain(column) })
    }

    fn missing(column: &str, missing: Missing) -> Located<Feature> {
        Located::from(Feature { missing: Some(missing), ..Feature::plain(column) })
    }

    fn plain(column: &str) -> Located<Feature> {
        Located::from(Feature::plain(column))
    }

    fn floats(features: &[Located<Feature>], cells: &[FeatureCell<'_>]) -> Result<Vec<f64>, Rejected> {
        let features = Features::new(features).unwrap();
        let mut values = TensorData::Float64(vec![7.0]);
        let appended = features.append(cells, &mut values);
        let TensorData::Float64(values) = values else { panic!("the type stays") };
        let width = if appended.is_ok() { features.width() } else { 0 };
        assert_eq!((values[0], values.len()), (7.0, 1 + width), "all of a record or nothing");
        appended.map(|()| values[1..].to_vec())
    }

    #[test]
    fn numbers_and_truth_values_keep_their_order() {
        let features = [plain("a"), plain("b"), plain("c"), plain("d")];
        assert_eq!(
            floats(&features, &[Float(-0.5), Int(3), Bool(true), Bool(false)]).unwrap(),
            [-0.5, 3.0, 1.0, 0.0]
        );
    }

    #[test]
    fn a_missing_value_follows_its_rule() {
        let nan = missing("a", Missing::Nan);
        let values = floats(&[nan, missing("b", Missing::Number(-1.0))], &[FeatureCell::Missing; 2]).unwrap();
        assert!(values[0].is_nan());
        assert_eq!(values[1], -1.0);
        let rejected = floats(&[plain("a"), plain("height")], &[Int(1), FeatureCell::Missing]).unwrap_err();
        assert_eq!(rejected, Rejected::new("missing_value", "the column `height` is empty"));
        let mut kind = category("kind", &["x", "y"], true, None);
        kind.value.missing = Some(Missing::Number(0.5));
        assert_eq!(floats(&[kind.clone()], &[FeatureCell::Missing]).unwrap(), [0.5, 0.5]);
        assert_eq!(floats(&[kind.clone()], &[Text("")]).unwrap(), [0.5, 0.5], "an empty field of a CSV file");
        kind.value.categories[1].clear();
        assert_eq!(floats(&[kind], &[Text("")]).unwrap(), [0.0, 1.0], "a category of its own");
    }

    #[test]
    fn categories_become_positions_or_ones() {
        let names = ["red", "green", "blue"];
        assert_eq!(floats(&[category("c", &names, false, None)], &[Text("blue")]).unwrap(), [2.0]);
        assert_eq!(floats(&[category("c", &names, true, None)], &[Text("green")]).unwrap(), [0.0, 1.0, 0.0]);
        let sizes = ["10", "-3", "x"];
        assert_eq!(floats(&[category("c", &sizes, false, None)], &[Int(-3)]).unwrap(), [1.0]);
        assert_eq!(floats(&[category("c", &sizes, true, None)], &[Int(10)]).unwrap(), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn an_unknown_category_follows_its_rule() {
        let names = ["red", "green"];
        assert_eq!(floats(&[category("c", &names, false, Some(-1.0))], &[Text("Red")]).unwrap(), [-1.0]);
        assert_eq!(floats(&[category("c", &names, true, Some(5.0))], &[Text("")]).unwrap(), [0.0, 0.0]);
        let rejected = floats(&[category("colour", &names, true, None)], &[Text("bl\"ue")]).unwrap_err();
        let detail = r#"the column `colour` has "bl\"ue", which is none of its categories"#;
        assert_eq!(rejected, Rejected::new("unknown_category", detail));
        let rejected = floats(&[category("size", &["1"], false, None)], &[Int(2)]).unwrap_err();
        assert_eq!(rejected.detail, "the column `size` has 2, which is none of its categories");
        let long = "é".repeat(1000);
        let rejected = floats(&[category("c", &names, false, None)], &[Text(&long)]).unwrap_err();
        assert!(rejected.detail.len() < 300, "{}", rejected.detail);
    }

    #[test]
    fn a_category_has_one_position() {
        let twice = Features::new(&[category("c", &["a", "b", "a"], false, None)]).unwrap_err();
        assert_eq!(twice.to_string(), "`c` has the category \"a\" twice, at positions 0 and 2");
        let twice = Features::new(&[category("c", &["1", "01"], false, None)]).unwrap_err();
        assert_eq!((twice.first, twice.second), (0, 1));
    }

    #[test]
    fn integers_are_kept_and_nothing_else_becomes_one() {
        let features = Features::new(&[missing("a", Missing::Nan)]).unwrap();
        let mut wide = TensorData::Int64(vec![]);
        features.append(&[Int(i64::MAX)], &mut wide).unwrap();
        features.append(&[Float(-4.0)], &mut wide).unwrap();
        for cell in [Float(0.5), Float(f64::NAN), Float(1e19), FeatureCell::Missing] {
            let rejected = features.append(&[cell], &mut wide).unwrap_err();
            assert_eq!(rejected.reason, "not_a_whole_number", "{cell:?}");
        }
        assert_eq!(wide, TensorData::Int64(vec![i64::MAX, -4]));
        let mut narrow = TensorData::Int32(vec![]);
        features.append(&[Int(i64::from(i32::MIN))], &mut narrow).unwrap();
        for number in [i64::MAX, i64::from(i32::MAX) + 1, i64::MIN] {
            assert!(features.append(&[Int(number)], &mut narrow).is_err(), "{number}");
        }
        assert_eq!(narrow, TensorData::Int32(vec![i32::MIN]));
        let mut single = TensorData::Float32(vec![]);
        features.append(&[Int((1 << 24) + 1)], &mut single).unwrap();
        assert_eq!(single, TensorData::Float32(vec![16_777_216.0]), "rounded to the nearest float32");
    }

    #[test]
    fn numbers_do_not_become_infinite() {
        let features = Features::new(&[plain("a")]).unwrap();
        let mut single = TensorData::Float32(vec![]);
        let rejected = features.append(&[Float(1e300)], &mut single).unwrap_err();
        let detail = "the column `a` gives 1e300, which does not fit into float32";
        assert_eq!(rejected, Rejected::new("number_too_large", detail));
        for kept in [3.4e38, f64::INFINITY, f64::NAN] {
            features.append(&[Float(kept)], &mut single).unwrap();
        }
        let mut half = TensorData::Float16(vec![]);
        for cell in [Int(70_000), Float(-70_000.0)] {
            assert_eq!(features.append(&[cell], &mut half).unwrap_err().reason, "number_too_large");
        }
        features.append(&[Int(65_504)], &mut half).unwrap();
        assert_eq!((single.len(), half.len()), (3, 1));
    }

    #[test]
    fn columns_are_accepted_by_what_they_hold() {
        let (number, name) = (Feature::plain("a"), category("a", &["x"], false, None).value);
        for (column, as_number, as_category) in [
            (ColumnType::Int64, true, true),
            (ColumnType::Float64, true, false),
            (ColumnType::Bool, true, false),
            (ColumnType::Text, false, true),
            (ColumnType::Bytes, false, false),
        ] {
            assert_eq!(accepts(&number, &column), as_number, "{column}");
            assert_eq!(accepts(&name, &column), as_category, "{column}");
        }
        assert_eq!(floats(&[plain("a")], &[Text("1")]).unwrap_err().reason, "wrong_type");
        assert_eq!(
            floats(&[category("a", &["x"], false, None)], &[Bool(true)]).unwrap_err().reason,
            "wrong_type"
        );
        assert_eq!(floats(&[plain("a")], &[]).unwrap_err().reason, "wrong_type");
    }
}
