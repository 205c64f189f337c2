//! Groups through services, as programs use them.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and give up after some real time"
)]

mod giving_way;
mod hints;
mod hostile;
mod hosts;
mod liars;
mod one_host;
mod place;
mod random;
mod rejoining;
mod strategies;
mod trees;
