//! Keeps the state of a run in an S3-compatible bucket, where [`tidemill_state`] keeps it in a folder.
//!
//! # Contents of the bucket
//!
//! | | |
//! |---|---|
//! | `PREFIX/manifest.json` | the holder of the state, and the manifest of the last commit; replaced only by compare-and-swap (`If-Match`) |
//! | `PREFIX/objects/*.object` | the states of stages; never changed |
//!
//! # Ownership
//!
//! A bucket has no lock that ends with a process. So the manifest contains a lease, which its holder renews every 5 s.
//! A process that finds another's lease
//!
//! - takes it at once if the holder was a process of this machine that has ended, and is rejected at once if it runs;
//! - else watches it for [`TERM`] (15 s), is rejected as soon as it is renewed, and takes it if it is not.
//!
//! This reads no clock and compares none. Each new holder increments a number, and every write names the ETag that it
//! replaces. So a process that was suspended for too long cannot overwrite another's data: its write fails with
//! [`tidemill_state::StoreError::TakenOver`], and so do all later ones.
//!
//! # Files
//!
//! [`Files`] is another use of a bucket: files named by their digests, which others read with signed links.
//!
//! # Failures of the service
//!
//! Requests that the service could not serve (5xx, 429, no connection, no answer) are repeated for [`PATIENCE`] with
//! growing pauses, with a warning after 5 s. A write without an answer may have happened or not: the manifest is read
//! to find out. Where that fails as well, the error is unconfirmed ([`tidemill_state::StoreError::is_unconfirmed`]),
//! and objects of both stay.
//!
//! # Access
//!
//! As with other programs: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`,
//! `AWS_ENDPOINT_URL`, and `AWS_ALLOW_HTTP=true` for a service without TLS. No message contains any of them.
//!
//! ```no_run
//! use tidemill_bucket::{Bucket, Settings};
//! use tidemill_state::State;
//!
//! let address: tidemill_bucket::Address = "s3://runs/shop".parse()?;
//! let state = State::open(Box::new(Bucket::open(&address, &Settings::of_environment())?))?;
//! println!("{:?}", state.manifest());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

// Named to fix its version, see the workspace's Cargo.toml.
use idna_adapter as _;

mod bucket;
mod document;
mod failure;
mod files;
#[doc(hidden)]
pub mod fuzz_entry;
mod keeper;
mod lease;
mod service;
mod settings;

pub use bucket::Bucket;
pub use files::{Files, StoredFile, read_link, read_link_from};
pub use lease::TERM;
pub use service::PATIENCE;
pub use settings::Settings;
pub use tidemill_spec::bucket_address::{Address, AddressError};
