//! Files: what workers have, what is fetched from where, what runs wrote.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Files of a workflow, by digest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// Path of the workflow's file among them.
    pub workflow: String,
    /// All files: paths with `/`, without `..`.
    pub files: Vec<BundleFile>,
    /// Variables that the workflow names and whoever submits it has: neither the controller nor a worker fills in its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
}

/// A file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BundleFile {
    /// Where it lies.
    pub path: String,
    /// SHA-256 of its bytes, hexadecimal.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
}

/// The folder of a run on a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunFolder {
    /// The run.
    pub run: String,
    /// Tells runs apart that had the same name one after the other.
    pub id: String,
    /// Bytes of all files in it, as far as they were counted.
    #[serde(default)]
    pub bytes: u64,
}

/// A worker wants a file and asks whom it may have it from.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceRequest {
    /// Places that did not give it.
    #[serde(default)]
    pub failed: Vec<String>,
}

/// What is said of the object store, should it not give a file, as the place of one that failed.
pub const OBJECT_STORE: &str = "object-store";

/// Whom a worker may have a file from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Source {
    /// The controller.
    Controller,
    /// Another worker, which answers `GET /v1/blobs/DIGEST` as the controller does.
    Worker {
        /// Host and port.
        place: String,
    },
    /// An object store.
    Store {
        /// Where it can be read for some time. It is signed: a secret.
        link: String,
    },
    /// Everybody who has it is busy: ask again.
    Wait {
        /// After so long.
        milliseconds: u64,
    },
}

/// A file of a run that the controller wants from a worker, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilePart {
    /// Names the request.
    pub number: u64,
    /// The run.
    pub run: String,
    /// Which run of this name: see [`RunFolder::id`].
    pub id: String,
    /// The worker of the run's plan.
    pub role: String,
    /// The file within its folder.
    pub path: String,
    /// The first byte.
    pub offset: u64,
    /// Limits how many are wanted.
    pub bytes: u64,
}

/// Why a worker does not give a file.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilePartRefused {
    /// For people.
    pub error: String,
}

/// What a sink wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResultView {
    /// The sink.
    pub sink: String,
    /// The file, as the workflow names it.
    pub path: String,
    /// The worker of the cluster that has it.
    pub worker: Option<String>,
    /// Bytes that are committed by the last checkpoint; none: the whole file is, or nothing is before the run is complete.
    pub committed_bytes: Option<u64>,
    /// Nothing is added any more.
    pub is_final: bool,
}

/// A run was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedView {
    /// The run.
    pub run: String,
    /// Bytes that were removed at the controller.
    pub bytes: u64,
    /// Workers that remove their files of it as soon as they are heard.
    pub workers: Vec<String>,
}
