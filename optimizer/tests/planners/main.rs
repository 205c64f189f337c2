//! All planners against each other and against what is known from elsewhere.
mod agreement;
mod detectors;
mod every_wait;
mod golden;
mod published_case;
mod published_optima;
mod sizes;
