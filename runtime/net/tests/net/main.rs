//! The service between two ends of a channel, as a run has them.
mod ends;
mod policies;
mod service;
mod users;
