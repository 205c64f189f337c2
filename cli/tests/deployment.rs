//! Deployments that run: containers of a real engine, over three locations; and what is said where something is in the way.
//!
//! Where no container engine or no Compose program is, tests that need them say so on standard error and check nothing; the image is
//! made of the program under test.
mod elastic;
mod engine;
mod failures;
mod running;
mod ssh;
mod videos;
