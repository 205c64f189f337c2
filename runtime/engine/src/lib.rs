//! Executes a plan on Timely Dataflow.
