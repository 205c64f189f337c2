//! Whole numbers that stand beside floats, as floats. The language's own `double` fails on an empty value; typing an
//! expression puts this in its place where nobody wrote `double`, so that an empty value stays one and the operator
//! around it decides what it makes of that.
use cel::common::types::{CelDouble, CelInt, CelNull};
use cel::{DeclarationError, Env};

/// The conversion. No expression can be written with this name.
pub(crate) const WIDEN: &str = "double beside floats";

/// Declares the function.
pub(crate) fn functions(environment: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(environment, fn widened: (CelInt) -> CelDouble, name = WIDEN)?;
    cel::add_overload!(environment, fn still_empty: (CelNull) -> CelNull, name = WIDEN)
}

fn widened(value: &CelInt) -> CelDouble {
    CelDouble::from(*value.inner() as f64)
}

fn still_empty(_: &CelNull) -> CelNull {
    CelNull
}
