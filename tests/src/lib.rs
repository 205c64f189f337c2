//! Tests of the workspace as a whole live in `tests/`; this library is empty.
