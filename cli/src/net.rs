//! `tidemill net ls`, `net top` and `net policy`: edges that run, and policies on them.
//!
//! | question | module |
//! |---|---|
//! | which services are asked, and for what? | [`asking`] |
//! | groups of programs that compute together? | [`collective`] |
//! | how are edges shown? | [`edges`] |
//! | what do links carry? | [`hints`] |
//! | how much passes per second? | [`rates`], shown by [`watching`] |
//! | which policies are there, and how do they change? | [`policies`] |
mod asking;
mod collective;
mod edges;
mod hints;
mod policies;
mod rates;
mod watching;

pub(crate) use collective::{bench, collective};
pub(crate) use edges::edges;
pub(crate) use hints::hints;
pub(crate) use policies::policy;
pub(crate) use watching::top;
