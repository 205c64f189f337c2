//! Shared data of several controllers in PostgreSQL: rows of bytes, which only the leader can write.
//!
//! There is no consensus protocol here. The leader holds an advisory lock of the server's, which ends with its
//! connection, and has a **term**, a number that each new leader increments. Every write checks the term in its own
//! transaction and is rejected if it has changed: a leader that was suspended, or cut off from the server, writes
//! nothing more, even if it believes to lead.
//!
//! | | |
//! |---|---|
//! | [`Address`] | the server's address, as a user writes it |
//! | [`Candidate`] | a controller that can become the leader, or knows the leader |
//! | [`Lead`] | the leader: reads, and writes all or nothing |
//!
//! ```no_run
//! use tidemill_postgres::{Announcement, Candidate, Change, Standing};
//!
//! let address = "postgres://tidemill@db.example/tidemill?sslmode=verify-full&sslrootcert=ca.pem".parse()?;
//! let announcement = Announcement { name: "hub.example:7420".into(), address: "tidemill://hub.example:7420/…".into() };
//! let candidate = Candidate::new(&address, announcement)?;
//! let lead = match candidate.stand()? {
//!     Standing::Leads(lead) => lead,
//!     Standing::StandsBy(leader) => panic!("{leader:?} leads"),
//! };
//! lead.write(&[Change::put("run", "night-shift", b"{}")])?;
//! assert_eq!(lead.get("run", "night-shift")?.as_deref(), Some(&b"{}"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod address;
mod candidate;
mod error;
mod lead;
mod schema;

pub use address::{Address, AddressError};
pub use candidate::{Announcement, Candidate, Leader, Standing, StandsBy};
pub use error::{PostgresError, in_words};
pub use lead::{Change, Lead};
