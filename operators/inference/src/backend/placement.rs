//! Processors that compute the operators of a loaded model.
use serde::Serialize;

/// A number of operators of a model, and the provider that computes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// Provider of the backend, such as `cuda` or `cpu`.
    pub provider: String,
    /// Number of operators, after the backend has removed and joined some.
    pub operators: usize,
}

/// Returns a placement in words: `of 12 operators, openvino computes 10 and cpu 2`; none where a backend has one processor only.
///
/// ```
/// use tidemill_inference::backend::placement::{Placed, in_words};
/// let placed = |provider: &str, operators| Placed { provider: provider.into(), operators };
/// let words = in_words(&[placed("cuda", 10), placed("cpu", 2)]);
/// assert_eq!(words.as_deref(), Some("of 12 operators, cuda computes 10 and cpu 2"));
/// assert_eq!(in_words(&[placed("cuda", 1)]).as_deref(), Some("cuda computes its operator"));
/// assert_eq!(in_words(&[]), None);
/// ```
pub fn in_words(placement: &[Placed]) -> Option<String> {
    let (first, others) = placement.split_first()?;
    if others.is_empty() {
        return Some(match first.operators {
            1 => format!("{} computes its operator", first.provider),
            all => format!("{} computes all {all} operators", first.provider),
        });
    }
    let all: usize = placement.iter().map(|placed| placed.operators).sum();
    let others: Vec<String> =
        others.iter().map(|placed| format!("{} {}", placed.provider, placed.operators)).collect();
    Some(format!(
        "of {all} operators, {} computes {} and {}",
        first.provider,
        first.operators,
        others.join(", ")
    ))
}

/// Adds the placement of another part of the same model.
pub(crate) fn add(placement: &mut Vec<Placed>, other: &[Placed]) {
    for placed in other {
        match placement.iter_mut().find(|known| known.provider == placed.provider) {
            Some(known) => known.operators += placed.operators,
            None => placement.push(placed.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_model_are_added_by_provider() {
        let placed = |provider: &str, operators| Placed { provider: provider.to_owned(), operators };
        let mut all = vec![placed("cuda", 3)];
        add(&mut all, &[placed("cpu", 1), placed("cuda", 2)]);
        assert_eq!(all, [placed("cuda", 5), placed("cpu", 1)]);
    }
}
