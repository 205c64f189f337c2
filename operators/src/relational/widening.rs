//! Conversion of whole numbers beside floats. CEL's own `double` fails on an empty value. Where typing adds a
//! conversion, it uses this one, so that an empty value stays empty and the surrounding operator decides.
use cel::common::types::{CelDouble, CelInt, CelNull};
use cel::{DeclarationError, Env};

/// The conversion. Its name cannot be written in an expression.
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
