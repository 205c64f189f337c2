//! Keeps the state of a run durably in a folder, independently of the engine.
//!
//! # Contents of the folder
//!
//! | | |
//! |---|---|
//! | `manifest.json` | the [`Manifest`] of the last commit, with the version of the format and a checksum |
//! | `objects/*.object` | states of stages: snapshots and calls; never changed once they are referred to |
//! | `lock` | the holder of the state ([`Holder`]); the lock itself is the system's and ends with the process |
//! | `journals` | stream data that no checkpoint has yet; owned by others, and not touched |
//! | `manifest.json.new` | the next manifest while it is written; a crash may leave it |
//!
//! # The order of writes
//!
//! [`State::commit`] writes new objects, and waits for the disk (fsync) to have
//!
//! 1. the bytes of the objects,
//! 2. their names in `objects`,
//! 3. the bytes of `manifest.json.new`, which is then renamed to `manifest.json`,
//! 4. that name in the folder.
//!
//! Only then does it delete unreferenced objects. So after a loss of power at any moment, the folder holds the manifest
//! of the last commit that returned, or of the unfinished one, and all objects that it refers to. Everything else is
//! deleted when the state is opened.
//!
//! # Example
//!
//! ```
//! use std::collections::BTreeMap;
//! use tidemill_state::{Content, Digest, Identity, Manifest, ObjectReference, StageState, State, compare};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("state");
//! let identity = Identity {
//!     workflow_name: "shop".to_owned(),
//!     operators: BTreeMap::from([("count".to_owned(), Digest::of(b"window: 60 s"))]),
//!     plan: Digest::of(b"one copy"),
//! };
//!
//! let mut state = State::in_folder(&path)?;
//! assert!(state.manifest().is_none());
//! let snapshot = b"17 shoes".to_vec();
//! let reference = ObjectReference::new(1, "count/0", Content::Snapshot { epoch: 40 }, &snapshot);
//! let mut manifest = Manifest { checkpoint: 1, epoch: 40, ..Manifest::new(identity.clone()) };
//! let stage = StageState { objects: vec![reference.clone()] };
//! manifest.stages.insert("count/0".to_owned(), stage);
//! state.commit(manifest, vec![(reference.name, snapshot)])?;
//! drop(state); // or the process is killed
//!
//! let state = State::in_folder(&path)?;
//! let manifest = state.manifest().expect("it was committed");
//! assert!(compare(&manifest.identity, &identity).is_none());
//! assert_eq!(manifest.epoch, 40);
//! assert_eq!(state.object(&manifest.stages["count/0"].objects[0])?, b"17 shoes");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod digest;
mod error;
mod files;
mod folder;
#[doc(hidden)]
pub mod fuzz_entry;
mod identity;
mod input;
mod limits;
mod lock;
mod manifest;
#[cfg(test)]
mod power_loss;
mod state;

pub use digest::{Digest, Token};
pub use error::{Damage, StateError, StoreError};
pub use folder::{FORMER_JOURNALS, Folder, JOURNALS, Store, WORKERS_LOCK};
pub use identity::{Difference, Identity, compare};
pub use input::InputState;
pub use limits::Limits;
pub use lock::Holder;
pub use manifest::{
    Content, FORMAT, Manifest, ObjectReference, OlderManifest, PROGRAM, SinkState, StageState, Totals,
    is_object_name, is_readable,
};
pub use state::State;
