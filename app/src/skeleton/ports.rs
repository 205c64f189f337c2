//! Declared shapes of a file as those of a manifest.
use super::subject::Tried;
use tidemill_inference::facts::{Dimension, Port, PortElement};
use tidemill_spec::types::ElementType;

/// One dimension of a manifest's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Side {
    Batch,
    Any,
    Size(usize),
    /// A size that the user has to write; the name is the file's.
    Open(String),
}

impl Side {
    /// Formats a shape.
    pub(super) fn list(shape: &[Self]) -> String {
        let side = |side: &Self| match side {
            Self::Batch => "batch".to_owned(),
            Self::Any => "any".to_owned(),
            Self::Size(size) => size.to_string(),
            Self::Open(name) => {
                let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
                format!("SIZE{}", if name.is_empty() { name } else { format!("-OF-{name}") })
            }
        };
        format!("[{}]", shape.iter().map(side).collect::<Vec<_>>().join(", "))
    }

    /// The shape of one record: without the dimension that counts records, or without a first one of 1.
    pub(super) fn row(shape: &[Self]) -> Vec<Self> {
        let batch = shape.iter().position(|side| *side == Self::Batch);
        let left_out = batch.or((shape.first() == Some(&Self::Size(1))).then_some(0));
        let kept = shape.iter().enumerate().filter(|(at, _)| Some(*at) != left_out);
        kept.map(|(_, side)| side.clone()).collect()
    }

    /// Returns the length of a record that is one vector, whatever dimensions of 1 it has.
    pub(super) fn vector(shape: &[Self]) -> Option<usize> {
        let row = Self::row(shape);
        let sizes = row.iter().map(|side| match side {
            Self::Size(size) => Some(*size),
            _ => None,
        });
        let sizes = sizes.collect::<Option<Vec<usize>>>()?;
        // Steps read the last dimension.
        let last = sizes.last().copied().unwrap_or(1);
        (sizes.iter().fold(1, |all: usize, size| all.saturating_mul(*size)) == last).then_some(last)
    }
}

/// Name of the dimension that counts records; empty if the file has no name for it.
pub(super) fn batch_name(inputs: &[Port]) -> &str {
    inputs
        .iter()
        .find_map(|port| match port.shape.as_deref() {
            Some([Dimension::Free(name), ..]) if !matches!(name.as_str(), "" | "?") => Some(name.as_str()),
            _ => None,
        })
        .unwrap_or_default()
}

/// Position of the dimension that counts records.
fn batch_axis(shape: &[Dimension], batch: &str) -> Option<usize> {
    let named =
        |side: &Dimension| matches!(side, Dimension::Free(name) if !batch.is_empty() && name == batch);
    let first = || matches!(shape.first(), Some(Dimension::Free(_) | Dimension::Fixed(1))).then_some(0);
    shape.iter().position(named).or_else(first)
}

/// Returns the shape of a port as far as the file shows it; `batch` as in [`batch_name`].
pub(super) fn sides(shape: &[Dimension], batch: &str) -> Vec<Side> {
    let axis = batch_axis(shape, batch);
    let side = |(at, side): (usize, &Dimension)| match side {
        _ if Some(at) == axis => Side::Batch,
        Dimension::Fixed(size) => Side::Size(*size),
        Dimension::Free(name) => Side::Open(name.clone()),
    };
    shape.iter().enumerate().map(side).collect()
}

/// Returns the shape of an output: of a run with one record if there was one, else as the file has it.
pub(super) fn output_sides(port: &Port, batch: &str, tried: Option<&Tried>) -> Vec<Side> {
    let declared = port.shape.as_deref();
    match tried.and_then(|tried| tried.shapes.get(&port.name)) {
        Some(found) => {
            let named = declared.filter(|declared| declared.len() == found.len());
            let axis = match named {
                Some(declared) => batch_axis(declared, batch),
                None => Some(0),
            };
            let axis = axis.filter(|axis| found.get(*axis) == Some(&1));
            let side = |(at, size): (usize, &usize)| match Some(at) == axis {
                true => Side::Batch,
                false => Side::Size(*size),
            };
            found.iter().enumerate().map(side).collect()
        }
        None => declared.map_or_else(|| vec![Side::Batch], |declared| sides(declared, batch)),
    }
}

/// Returns the shape of a port for one record, if only the dimension that counts records is free.
pub(super) fn of_one(port: &Port, batch: &str) -> Option<Vec<usize>> {
    let size = |side: Side| match side {
        Side::Batch => Some(1),
        Side::Size(size) => Some(size),
        Side::Any | Side::Open(_) => None,
    };
    sides(port.shape.as_deref()?, batch).into_iter().map(size).collect()
}

/// The element type of a port, if a manifest can name it.
pub(super) fn element(port: &Port) -> Option<ElementType> {
    match port.element {
        PortElement::Known(element) => Some(element),
        PortElement::Other(_) => None,
    }
}

/// The name of the element type for a manifest, with a comment if there is none.
pub(super) fn dtype(port: &Port) -> String {
    match &port.element {
        PortElement::Known(element) => element.to_string(),
        PortElement::Other(name) => format!("float32 # the file has {name}, which no manifest can name"),
    }
}

/// Whether the values are floats.
pub(super) fn is_float(port: &Port) -> bool {
    element(port).is_some_and(ElementType::is_float)
}

/// Whether the values are whole numbers of 32 or 64 bits.
pub(super) fn is_whole(port: &Port) -> bool {
    matches!(element(port), Some(ElementType::Int64 | ElementType::Int32))
}

/// Whether a name, in lower case, contains one of these words.
pub(super) fn is_named(port: &Port, words: &[&str]) -> bool {
    let name = port.name.to_ascii_lowercase();
    words.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::super::cases::port;
    use super::*;

    fn shown(text: &str, batch: &str) -> String {
        Side::list(&sides(port("x", text).shape.as_deref().unwrap(), batch))
    }

    #[test]
    fn records_are_counted_where_the_file_counts_them() {
        assert_eq!(shown("float32 [batch, 3, 8]", "batch"), "[batch, 3, 8]");
        assert_eq!(shown("float32 [20, batch, 37]", "batch"), "[20, batch, 37]");
        assert_eq!(shown("float32 [1, 81920]", ""), "[batch, 81920]");
        assert_eq!(shown("float32 [2, ?, 128]", ""), "[2, SIZE, 128]");
        assert_eq!(shown("float32 [?, n.1, 4]", ""), "[batch, SIZE-OF-n1, 4]");
        assert_eq!(shown("float32 []", ""), "[]");
    }

    #[test]
    fn a_run_shows_sizes_that_the_file_leaves_open() {
        let shapes = [("y".to_owned(), vec![1, 40, 5]), ("z".to_owned(), vec![20, 1, 37])];
        let tried = Tried { shapes: shapes.into(), ..Tried::default() };
        let sides = |name: &str, text: &str| Side::list(&output_sides(&port(name, text), "n", Some(&tried)));
        assert_eq!(sides("y", "float32 [?, t, 5]"), "[batch, 40, 5]");
        assert_eq!(sides("z", "float32 [20, n, 37]"), "[20, batch, 37]");
        assert_eq!(sides("z", "float32 [1, ?]"), "[20, 1, 37]");
    }

    #[test]
    fn vectors_may_have_dimensions_of_1() {
        let vector = |text: &str| Side::vector(&sides(port("x", text).shape.as_deref().unwrap(), ""));
        assert_eq!(vector("float32 [?, 10]"), Some(10));
        assert_eq!(vector("float32 [?, 1, 1, 96]"), Some(96));
        assert_eq!(vector("float32 [?]"), Some(1));
        assert_eq!(vector("float32 [?, 96, 1, 1]"), None);
        assert_eq!(vector("float32 [?, ?]"), None);
    }
}
