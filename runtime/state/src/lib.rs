//! The state of a run in a folder, so that another process continues it.
//!
//! | in the folder | what it is |
//! |---|---|
//! | `manifest.json` | what the last checkpoint consists of; replaced at once by a rename |
//! | `objects/` | what manifests name: snapshots of stages and what came after them; written once, never changed |
//! | `lock` | who has the state open; the lock itself goes with that process, however it ends |
//!
//! A checkpoint is written in this order, each step durable before the next: objects, their folder, the new manifest beside the old
//! one, the rename, the folder. Whatever is interrupted, the manifest names only what is whole. Objects that no manifest names
//! are left of a process that died, and removed by the next one.
//!
//! ```
//! use tidemill_state::{Identity, Manifest, State};
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("state");
//! let mut state = State::open(&path).unwrap();
//! assert!(state.manifest().is_none());
//! let identity = Identity { workflow: "vqa".into(), ..Identity::default() };
//! state.commit(Manifest::new(identity), Vec::new()).unwrap();
//! drop(state);
//! assert_eq!(State::open(&path).unwrap().manifest().unwrap().identity.workflow, "vqa");
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod folder;
mod identity;
mod manifest;
mod state;

pub use folder::StateError;
pub use identity::{Change, Identity, compare};
pub use manifest::{Content, FORMAT, Manifest, ObjectReference, SinkState, StageState, Token};
pub use state::State;
