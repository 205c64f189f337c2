//! Predicts when transfers over shared links complete: each flow has its max-min share of the links on its route, and shares change
//! when a flow begins or ends.
#![forbid(unsafe_code)]
