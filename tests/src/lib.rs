//! Tests of the whole workspace are in `tests/`; this library is empty.
