//! Where the state of a run is: in a folder, in a bucket, or where whoever uses this library keeps it.
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_bucket::{Address, AddressError, Bucket, Settings};
use tidemill_spec::workflow::Workflow;
use tidemill_state::{Folder, State, StateError, Store, StoreError};

/// Keeps states where whoever uses this library says.
pub trait StateService: Send + Sync {
    /// What people call the place.
    fn place(&self) -> String;
    /// What keeps the state, which nobody else has then.
    ///
    /// # Errors
    /// Somebody has it, or it cannot be reached.
    fn store(&self) -> Result<Box<dyn Store>, StoreError>;
    /// The same, to be looked at while somebody else may have it.
    ///
    /// # Errors
    /// There is none, or it cannot be reached.
    fn look(&self) -> Result<Box<dyn Store>, StoreError>;
}

/// See [`StateService`]; two of one place are equal.
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
    /// A part of a bucket; how to reach the service is in the environment (`AWS_*`).
    Bucket(Address),
    /// Where whoever uses this library keeps it.
    Service(Service),
}

impl StatePlace {
    /// What a text of a user names: a bucket if it begins with `s3://`, else a folder.
    ///
    /// # Errors
    /// It is no right address of a bucket.
    pub fn new(text: OsString) -> Result<Self, AddressError> {
        match text.to_str().filter(|text| Address::is_meant(text)) {
            Some(address) => Ok(Self::Bucket(address.parse()?)),
            None => Ok(Self::Folder(text.into())),
        }
    }

    /// What a workflow names; folders are relative to its file.
    ///
    /// # Errors
    /// It is no right address of a bucket, which the workflow's own check has told.
    pub fn of_workflow(workflow: &Workflow) -> Option<Result<Self, AddressError>> {
        let text = workflow.checkpoint.state.as_ref()?;
        Some(Self::new(text.value.clone().into()).map(|place| match place {
            Self::Folder(path) => Self::Folder(workflow.resolve(path)),
            place => place,
        }))
    }

    /// The state there, to be gone on with; a new one where there is none.
    ///
    /// # Errors
    /// Somebody has it, or it cannot be used.
    pub fn open(&self) -> Result<State, StateError> {
        State::open(self.store()?)
    }

    /// Whether there is no state yet, as far as can be seen without making one.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.look_at_store(), Err(StateError::Store(StoreError::NoState { .. })))
    }

    /// What keeps the state, which nobody else has then.
    pub(crate) fn store(&self) -> Result<Box<dyn Store>, StateError> {
        Ok(match self {
            Self::Folder(path) => Box::new(Folder::open(path)?),
            Self::Bucket(address) => Box::new(Bucket::open(address, &Settings::of_environment())?),
            Self::Service(Service(service)) => service.store()?,
        })
    }

    /// The state there, to be looked at while somebody else may have it.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn look(&self) -> Result<State, StateError> {
        State::read(self.look_at_store()?)
    }

    pub(crate) fn look_at_store(&self) -> Result<Box<dyn Store>, StateError> {
        Ok(match self {
            Self::Folder(path) => Box::new(Folder::look(path)?),
            Self::Bucket(address) => Box::new(Bucket::look(address, &Settings::of_environment())?),
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
