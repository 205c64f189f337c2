//! The map: jobs, the aggregator of each tensor, and moves. One file, replaced as a whole.
use super::MasterError;
use crate::tensor::Spec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tidemill_aggregation::Service;

/// The version of the format.
const FORMAT: u32 = 1;
/// The name of the file.
pub(super) const FILE: &str = "map.json";

/// How a job is placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage", content = "reason")]
pub(super) enum Stage {
    /// It has an aggregator of its own while its iterations are measured.
    Profiled,
    /// The service has placed it.
    Placed,
    /// It stays where it is, and why.
    Fixed(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) digest: Vec<u8>,
    pub(super) workers: u32,
    pub(super) spread: u32,
    pub(super) specs: Vec<Spec>,
    pub(super) stage: Stage,
    /// A step was made.
    pub(super) started: bool,
    pub(super) left: BTreeSet<u32>,
    /// The aggregator of each tensor.
    pub(super) places: Vec<String>,
    /// Where tensors move to.
    pub(super) moves: BTreeMap<u32, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Map {
    format: u32,
    next_job: u64,
    next_name: u64,
    pub(super) service: Service,
    /// The process of each aggregator of the service.
    pub(super) names: BTreeMap<u64, String>,
    /// All processes.
    pub(super) aggregators: BTreeSet<String>,
    pub(super) jobs: BTreeMap<String, Job>,
}

impl Map {
    pub(super) fn new(service: Service) -> Self {
        Self {
            format: FORMAT,
            next_job: 0,
            next_name: 0,
            service,
            names: BTreeMap::new(),
            aggregators: BTreeSet::new(),
            jobs: BTreeMap::new(),
        }
    }

    /// Reads the map of a folder, or begins one.
    pub(super) fn open(folder: &Path, service: Service) -> Result<Self, MasterError> {
        let path = folder.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::new(service)),
            Err(error) => return Err(MasterError::file(&path, error)),
        };
        let damaged = |reason: String| MasterError::Map { path: path.clone(), reason };
        let map: Self = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if map.format != FORMAT {
            return Err(damaged(format!("it has format {}, and {FORMAT} is known", map.format)));
        }
        Ok(map)
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), MasterError> {
        let path = folder.join(FILE);
        let written = tidemill_disk::replace(&path, |file| {
            file.set_permissions(Permissions::from_mode(0o600))?;
            Ok(serde_json::to_writer(file, self)?)
        });
        written.map_err(|error| MasterError::file(&path, error))
    }

    pub(super) fn new_name(&mut self) -> String {
        let name = format!("a{}", self.next_name);
        self.next_name += 1;
        name
    }

    pub(super) fn new_job(&mut self) -> u64 {
        self.next_job += 1;
        self.next_job
    }

    /// The aggregator of the service that a process is.
    pub(super) fn of_name(&self, name: &str) -> Option<u64> {
        self.names.iter().find(|(_, of)| *of == name).map(|(id, _)| *id)
    }

    /// Tensors that a process has or gets.
    pub(super) fn tensors_of(&self, name: &str) -> usize {
        let of_job = |job: &Job| {
            job.places.iter().filter(|place| *place == name).count()
                + job.moves.values().filter(|to| *to == name).count()
        };
        self.jobs.values().map(of_job).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut map = Map::open(folder.path(), Service::default()).unwrap();
        let name = map.new_name();
        map.aggregators.insert(name.clone());
        let job = Job {
            id: map.new_job(),
            digest: vec![1],
            workers: 2,
            spread: 1,
            specs: Vec::new(),
            stage: Stage::Fixed("asked for".to_owned()),
            started: true,
            left: BTreeSet::from([1]),
            places: vec![name.clone()],
            moves: BTreeMap::from([(0, "a9".to_owned())]),
        };
        map.jobs.insert("one".to_owned(), job);
        assert_eq!((map.tensors_of(&name), map.tensors_of("a9")), (1, 1));
        map.write(folder.path()).unwrap();
        assert_eq!(Map::open(folder.path(), Service::default()).unwrap(), map);
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let error = Map::open(folder.path(), Service::default()).unwrap_err();
        assert!(error.to_string().contains("map.json"), "{error}");
    }
}
