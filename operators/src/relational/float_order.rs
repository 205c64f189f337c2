//! Comparisons of floats as in IEEE 754: with NaN on a side all are false. CEL's own comparisons fail there, since
//! NaN has no place in an order; typing replaces them by these.
use cel::common::ast::operators as op;
use cel::common::types::{CelBool, CelDouble};
use cel::{DeclarationError, Env};

/// The comparisons, as written and as computed. The second name cannot be written in an expression.
const COMPARISONS: [(&str, &str); 4] = [
    (op::LESS, "< of floats"),
    (op::LESS_EQUALS, "<= of floats"),
    (op::GREATER, "> of floats"),
    (op::GREATER_EQUALS, ">= of floats"),
];

/// Declares the functions.
pub(crate) fn functions(environment: &mut Env) -> Result<(), DeclarationError> {
    let [(_, less_name), (_, most_name), (_, more_name), (_, least_name)] = COMPARISONS;
    cel::add_overload!(environment, fn less: (CelDouble, CelDouble) -> CelBool, name = less_name)?;
    cel::add_overload!(environment, fn at_most: (CelDouble, CelDouble) -> CelBool, name = most_name)?;
    cel::add_overload!(environment, fn more: (CelDouble, CelDouble) -> CelBool, name = more_name)?;
    cel::add_overload!(environment, fn at_least: (CelDouble, CelDouble) -> CelBool, name = least_name)
}

/// Returns the comparison to compute for one that was written.
pub(crate) fn computed(written: &str) -> Option<&'static str> {
    COMPARISONS.iter().find(|(name, _)| *name == written).map(|(_, name)| *name)
}

/// Returns the comparison that was written for one to compute.
pub(crate) fn written(computed: &str) -> Option<&'static str> {
    COMPARISONS.iter().find(|(_, name)| *name == computed).map(|(name, _)| *name)
}

fn less(a: &CelDouble, b: &CelDouble) -> CelBool {
    CelBool::from(a.inner() < b.inner())
}

fn at_most(a: &CelDouble, b: &CelDouble) -> CelBool {
    CelBool::from(a.inner() <= b.inner())
}

fn more(a: &CelDouble, b: &CelDouble) -> CelBool {
    CelBool::from(a.inner() > b.inner())
}

fn at_least(a: &CelDouble, b: &CelDouble) -> CelBool {
    CelBool::from(a.inner() >= b.inner())
}
