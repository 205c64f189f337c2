//! Running deployments: containers of a real engine, over three locations; and messages about problems.
//!
//! Without a container engine or a Compose program, tests that need them print a note to standard error and check nothing;
//! the image is built from the program under test.
mod devices;
mod elastic;
mod engine;
mod failures;
mod running;
mod ssh;
mod videos;
