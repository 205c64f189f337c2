//! Files of workers, their sources, and results of runs.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Files of a workflow, by digest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// Path of the workflow among the files.
    pub workflow: String,
    /// All files: paths with `/`, without `..`.
    pub files: Vec<BundleFile>,
    /// Variables of the workflow from the environment of the submitting user; the controller and the workers do not add their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
}

/// A file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BundleFile {
    /// Path of the file.
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
    /// Distinguishes runs that used the same name one after the other.
    pub id: String,
    /// Bytes of all files in it, as far as counted.
    #[serde(default)]
    pub bytes: u64,
}

/// Request of a worker for a source of a file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceRequest {
    /// Sources that failed.
    #[serde(default)]
    pub failed: Vec<String>,
}

/// A file that a worker is fetching.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fetching {
    /// SHA-256 of its bytes, hexadecimal.
    pub digest: String,
    /// Bytes that are there.
    pub bytes: u64,
    /// `HOST:PORT` of the worker that sends it; none: the controller or an object store.
    #[serde(default)]
    pub from: Option<String>,
}

/// A file of a run that a worker is fetching.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FetchView {
    /// The worker.
    pub worker: String,
    /// Path of the file.
    pub path: String,
    /// Bytes that are there.
    pub bytes: u64,
    /// Its size.
    pub size: u64,
    /// The worker that sends it; none: the controller or an object store.
    #[serde(default)]
    pub from: Option<String>,
}

/// Name of the object store among the sources that failed.
pub const OBJECT_STORE: &str = "object-store";

/// Source of a file for a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Source {
    /// The controller.
    Controller,
    /// Another worker, which answers `GET /v1/blobs/DIGEST` like the controller.
    Worker {
        /// Host and port.
        place: String,
    },
    /// An object store.
    Store {
        /// Signed address, valid for some time: a secret.
        link: String,
    },
    /// All sources are busy: ask again.
    Wait {
        /// Time until the next request.
        milliseconds: u64,
    },
}

/// Request of the controller for a file of a run, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilePart {
    /// Number of the request.
    pub number: u64,
    /// The run.
    pub run: String,
    /// Id of the run among those of this name: see [`RunFolder::id`].
    pub id: String,
    /// The worker of the run's plan.
    pub role: String,
    /// Path of the file in the folder of the run.
    pub path: String,
    /// First byte.
    pub offset: u64,
    /// Largest number of bytes.
    pub bytes: u64,
}

/// The reason why a worker does not send a file.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilePartRefused {
    /// Error message, for people.
    pub error: String,
}

/// Output of a sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResultView {
    /// The sink.
    pub sink: String,
    /// The file, as the workflow names it.
    pub path: String,
    /// The worker of the cluster that has it.
    pub worker: Option<String>,
    /// Bytes committed by the last checkpoint; none: the whole file is committed, or nothing before the run is complete.
    pub committed_bytes: Option<u64>,
    /// The file is complete.
    pub is_final: bool,
}

/// A removed run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedView {
    /// The run.
    pub run: String,
    /// Bytes removed at the controller.
    pub bytes: u64,
    /// Workers that remove their files of it when they return.
    pub workers: Vec<String>,
}
