//! The planner on small cases; the published case with its golden numbers stands in `tests/published.rs`.
