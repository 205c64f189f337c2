//! The state of a run: additions and deletions are written with the next manifest, in one transaction.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_app::state::place::{Service, StatePlace, StateService};
use tidemill_postgres::{Change, Lead, PostgresError};
use tidemill_state::{Store, StoreError, is_object_name};

const MANIFEST: &str = "manifest.json";

pub(super) fn kind(run: &str) -> String {
    format!("state:{run}")
}

/// Storage of the states of runs.
#[derive(Clone)]
pub(in super::super) struct SharedState {
    lead: Arc<Lead>,
    run: String,
}

impl SharedState {
    pub(in super::super) fn place(lead: &Arc<Lead>, run: &str) -> StatePlace {
        StatePlace::Service(Service(Arc::new(Self { lead: Arc::clone(lead), run: run.to_owned() })))
    }

    fn open(&self, may_write: bool) -> Rows {
        Rows {
            lead: Arc::clone(&self.lead),
            kind: kind(&self.run),
            may_write,
            put: BTreeMap::new(),
            deleted: BTreeSet::new(),
        }
    }
}

impl StateService for SharedState {
    fn place(&self) -> String {
        format!("{}, run {}", self.lead.place(), self.run)
    }

    fn store(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(self.open(true)))
    }

    fn look(&self) -> Result<Box<dyn Store>, StoreError> {
        let rows = self.open(false);
        match rows.manifest()? {
            Some(_) => Ok(Box::new(rows)),
            None => Err(StoreError::NoState { place: StateService::place(self) }),
        }
    }
}

/// See the module.
struct Rows {
    lead: Arc<Lead>,
    kind: String,
    may_write: bool,
    put: BTreeMap<String, Vec<u8>>,
    deleted: BTreeSet<String>,
}

impl Rows {
    fn failed(&self, doing: &'static str, error: PostgresError) -> StoreError {
        let place = Store::place(self);
        match error {
            PostgresError::Deposed { .. } => StoreError::TakenOver { place, holder: None },
            PostgresError::Lost { .. } => StoreError::Unanswered { place, reason: error.to_string() },
            _ => StoreError::Service { place, doing, reason: error.to_string() },
        }
    }

    fn named(&self, name: &str) -> Result<(), StoreError> {
        if !self.may_write {
            return Err(StoreError::OnlyLooking { place: Store::place(self) });
        }
        match is_object_name(name) {
            true => Ok(()),
            false => Err(StoreError::Name { name: name.to_owned() }),
        }
    }

    fn replace(&mut self, manifest: Option<&[u8]>) -> Result<(), StoreError> {
        if !self.may_write {
            return Err(StoreError::OnlyLooking { place: Store::place(self) });
        }
        let kind = self.kind.as_str();
        let gone = self.deleted.iter().map(|name| Change::delete(kind, name));
        let there = self.put.iter().map(|(name, bytes)| Change::put(kind, name, bytes));
        let last = Change { kind, name: MANIFEST, bytes: manifest };
        let changes: Vec<Change<'_>> = gone.chain(there).chain([last]).collect();
        self.lead.write(&changes).map_err(|error| self.failed("written", error))?;
        self.put.clear();
        self.deleted.clear();
        Ok(())
    }
}

impl Store for Rows {
    fn place(&self) -> String {
        format!("{}, {}", self.lead.place(), self.kind)
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.named(name)?;
        self.deleted.remove(name);
        self.put.insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        if let Some(bytes) = self.put.get(name) {
            return Ok(bytes.clone());
        }
        let found = self.lead.get(&self.kind, name).map_err(|error| self.failed("read", error))?;
        found.ok_or_else(|| StoreError::Missing { place: Store::place(self), name: name.to_owned() })
    }

    fn delete(&mut self, name: &str) -> Result<(), StoreError> {
        self.named(name)?;
        self.put.remove(name);
        self.deleted.insert(name.to_owned());
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, StoreError> {
        let mut names = self.lead.names(&self.kind).map_err(|error| self.failed("read", error))?;
        names.retain(|name| {
            is_object_name(name) && !self.deleted.contains(name) && !self.put.contains_key(name)
        });
        names.extend(self.put.keys().cloned());
        Ok(names)
    }

    fn manifest(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.lead.get(&self.kind, MANIFEST).map_err(|error| self.failed("read", error))
    }

    fn replace_manifest(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.replace(Some(bytes))
    }

    fn remove_manifest(&mut self) -> Result<(), StoreError> {
        self.replace(None)
    }
}
