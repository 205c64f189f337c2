//! All planners against each other and against known results.
mod agreement;
mod detectors;
mod device_examples;
mod devices;
mod every_wait;
mod golden;
mod published_case;
mod published_optima;
mod sizes;
