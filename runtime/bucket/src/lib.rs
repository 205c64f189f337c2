//! Keeps the state of a run in an S3-compatible bucket, where [`tidemill_state`] keeps it in a folder.
//!
//! # What lies in the bucket
//!
//! | | |
//! |---|---|
//! | `PREFIX/manifest.json` | who has the state, and the manifest of the last commit; replaced only by compare-and-swap (`If-Match`) |
//! | `PREFIX/objects/*.object` | what stages keep; never changed |
//!
//! # Who has it
//!
//! A bucket knows no lock that ends with a process. So the manifest has a lease in it, which its holder renews every 5 s.
//! Who finds one that is not its own
//!
//! - takes it at once if the holder was a process of this machine that has ended, and is refused at once if it runs;
//! - else watches it for [`TERM`] (15 s), is refused as soon as it is renewed, and takes it if it is not.
//!
//! No clock is read for that, let alone two compared. Each taking counts a number up, and every write names the ETag of what
//! it replaces. So a process that was away for too long, and comes back, cannot write over what another one
//! has written since: its write fails with [`tidemill_state::StoreError::TakenOver`], and so do all that follow.
//!
//! # Files
//!
//! [`Files`] is another use of a bucket: files called by their digests, which others read by links that are signed.
//!
//! # When the service fails
//!
//! Requests that the service could not serve (5xx, 429, no connection, no answer) are repeated for [`PATIENCE`] with growing
//! pauses, and a warning tells so after 5 s. A write that was not answered may have been done or not: the manifest is read to find
//! out. Where that fails as well, the error says so ([`tidemill_state::StoreError::is_unconfirmed`]), and objects of both stay.
//!
//! # Access
//!
//! As with other programs: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, and
//! `AWS_ALLOW_HTTP=true` for a service without TLS. None of them is ever part of a message.
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
pub mod heard;
mod keeper;
mod lease;
mod service;
mod settings;

pub use bucket::Bucket;
pub use files::{Files, StoredFile, read_link};
pub use lease::TERM;
pub use service::PATIENCE;
pub use settings::Settings;
pub use tidemill_spec::bucket_address::{Address, AddressError};
