//! Location of a run's state: a folder, a bucket, or a service of the program that uses this library.
use super::bucket;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_spec::bucket_address::{Address, AddressError};
use tidemill_spec::workflow::Workflow;
use tidemill_state::{Folder, State, StateError, Store, StoreError};

/// Stores states for the program that uses this library.
pub trait StateService: Send + Sync {
    /// Name of the location for people.
    fn place(&self) -> String;
    /// Opens the storage exclusively.
    ///
    /// # Errors
    /// Another process has it, or it cannot be reached.
    fn store(&self) -> Result<Box<dyn Store>, StoreError>;
    /// Opens the storage for reading, while another process may have it.
    ///
    /// # Errors
    /// There is none, or it cannot be reached.
    fn look(&self) -> Result<Box<dyn Store>, StoreError>;
}

/// See [`StateService`]; two with one location are equal.
#[derive(Clone)]
pub struct Service(pub Arc<dyn StateService>);

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({})", self.0.place())
    }
}

impl PartialEq for Service {
    fn eq(&self, other: &Self) -> bool {
        self.0.place() == other.0.place()
    }
}

impl Eq for Service {}

/// A folder of this machine, a bucket, or a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatePlace {
    /// A folder.
    Folder(PathBuf),
    /// A part of a bucket; the access settings are in the environment (`AWS_*`).
    Bucket(Address),
    /// A service of the program that uses this library.
    Service(Service),
}

impl StatePlace {
    /// Parses a user's text: a bucket if it starts with `s3://`, else a folder.
    ///
    /// # Errors
    /// It is no valid address of a bucket.
    pub fn new(text: OsString) -> Result<Self, AddressError> {
        match text.to_str().filter(|text| Address::is_meant(text)) {
            Some(address) => Ok(Self::Bucket(address.parse()?)),
            None => Ok(Self::Folder(text.into())),
        }
    }

    /// Returns the location named in a workflow; folders are relative to its file.
    ///
    /// # Errors
    /// It is no valid address of a bucket, which the workflow's own check has reported.
    pub fn of_workflow(workflow: &Workflow) -> Option<Result<Self, AddressError>> {
        let text = workflow.checkpoint.state.as_ref()?;
        Some(Self::new(text.value.clone().into()).map(|place| match place {
            Self::Folder(path) => Self::Folder(workflow.resolve(path)),
            place => place,
        }))
    }

    /// Opens the state to continue it; creates one if there is none.
    ///
    /// # Errors
    /// Another process has it, or it cannot be used.
    pub fn open(&self) -> Result<State, StateError> {
        State::open(self.store()?)
    }

    /// Whether there is no state yet, as far as can be seen without creating one.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.look_at_store(), Err(StateError::Store(StoreError::NoState { .. })))
    }

    /// Opens the storage exclusively.
    pub(crate) fn store(&self) -> Result<Box<dyn Store>, StateError> {
        Ok(match self {
            Self::Folder(path) => Box::new(Folder::open(path)?),
            Self::Bucket(address) => bucket::open(address)?,
            Self::Service(Service(service)) => service.store()?,
        })
    }

    /// Opens the state for reading, while another process may have it.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn look(&self) -> Result<State, StateError> {
        State::read(self.look_at_store()?)
    }

    pub(crate) fn look_at_store(&self) -> Result<Box<dyn Store>, StateError> {
        Ok(match self {
            Self::Folder(path) => Box::new(Folder::look(path)?),
            Self::Bucket(address) => bucket::look(address)?,
            Self::Service(Service(service)) => service.look()?,
        })
    }
}

impl fmt::Display for StatePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Bucket(address) => address.fmt(f),
            Self::Service(Service(service)) => f.write_str(&service.place()),
        }
    }
}
