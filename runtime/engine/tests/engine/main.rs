//! Tests of the engine through its public face: plans in, committed results out.
mod alignment;
mod bursts;
mod carriers;
mod conformance;
mod continued;
mod determinism;
mod emulation;
mod executors;
mod failures;
mod freshness;
mod latency;
mod mistakes;
mod parts;
mod recovery;
mod resources;
mod restarts;
mod routing;
