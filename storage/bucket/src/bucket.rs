//! The blocking interface of the store.
use crate::keeper::{Access, Command, Keeper, Reply};
use crate::settings::Settings;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use tidemill_spec::bucket_address::Address;
use tidemill_state::{Store, StoreError, is_object_name};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// A [`Store`] in an S3-compatible bucket; see the crate documentation.
pub struct Bucket {
    place: String,
    access: Access,
    /// Objects put since the last replacement of the manifest. They stay until it is replaced again, which proves that
    /// no other process has the state: it might have put objects with these names.
    unproven: BTreeSet<String>,
    /// Channel to the thread that talks to the service; the thread ends when it is dropped.
    commands: Option<UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Bucket {
    /// Opens the state at this address and takes its lease.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] where another process has it, [`StoreError::Foreign`] where other objects are there, or
    /// errors of the service. Nothing is changed then.
    pub fn open(address: &Address, settings: &Settings) -> Result<Self, StoreError> {
        Self::start(address, settings, Access::Alone)
    }

    /// Opens the state for reading, also while a process has it: writes nothing, and objects written concurrently may
    /// be gone when read.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoState`] where there is none, or errors of the service.
    pub fn look(address: &Address, settings: &Settings) -> Result<Self, StoreError> {
        Self::start(address, settings, Access::Looking)
    }

    fn start(address: &Address, settings: &Settings, access: Access) -> Result<Self, StoreError> {
        let place = address.to_string();
        let (address, settings) = (address.clone(), settings.clone());
        let failed = |error: std::io::Error| service_error(&place, error.to_string());
        let (opened, is_open) = sync_channel(1);
        let (commands, waiting) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let serve = async move {
            match Keeper::open(&address, &settings, access).await {
                Ok(keeper) => {
                    drop(opened.send(Ok(())));
                    keeper.serve(waiting).await;
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        let thread = std::thread::Builder::new().name("tm-bucket".to_owned());
        let thread = thread.spawn(move || runtime.block_on(serve)).map_err(failed)?;
        is_open.recv().map_err(|_| gone(&place))??;
        Ok(Self { place, access, unproven: BTreeSet::new(), commands: Some(commands), thread: Some(thread) })
    }

    fn send(&self, command: Command) -> Result<(), StoreError> {
        let sent = self.commands.as_ref().map(|commands| commands.send(command));
        sent.and_then(Result::ok).ok_or_else(|| gone(&self.place))
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let (reply, answer) = sync_channel(1);
        self.send(command(reply))?;
        answer.recv().map_err(|_| gone(&self.place))?
    }

    fn may_write(&self) -> Result<(), StoreError> {
        match self.access {
            Access::Alone => Ok(()),
            Access::Looking => Err(StoreError::OnlyLooking { place: self.place.clone() }),
        }
    }

    fn replace(&mut self, state: Option<Box<RawValue>>) -> Result<(), StoreError> {
        self.may_write()?;
        self.ask(|reply| Command::Replace { state, reply })?;
        self.unproven.clear();
        Ok(())
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // It has panicked, which was reported.
            let _ = thread.join();
        }
    }
}

fn service_error(place: &str, reason: String) -> StoreError {
    StoreError::Service { place: place.to_owned(), doing: "used", reason }
}

fn gone(place: &str) -> StoreError {
    service_error(place, "the thread for it is gone".to_owned())
}

fn named(name: &str) -> Result<String, StoreError> {
    let name = name.to_owned();
    if is_object_name(&name) { Ok(name) } else { Err(StoreError::Name { name }) }
}

impl Store for Bucket {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.may_write()?;
        let name = named(name)?;
        self.unproven.insert(name.clone());
        self.send(Command::Put { name, bytes: bytes.to_vec() })
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let name = named(name)?;
        self.ask(|reply| Command::Get { name, reply })
    }

    fn delete(&mut self, name: &str) -> Result<(), StoreError> {
        self.may_write()?;
        let name = named(name)?;
        if self.unproven.contains(&name) {
            return Err(service_error(&self.place, format!("object {name} stays until the next checkpoint")));
        }
        self.send(Command::Delete { name })
    }

    fn list(&self) -> Result<Vec<String>, StoreError> {
        self.ask(|reply| Command::List { reply })
    }

    fn manifest(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.ask(|reply| Command::Manifest { reply })
    }

    fn replace_manifest(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let text = std::str::from_utf8(bytes).ok().map(|text| text.trim_end().to_owned());
        let state = text.and_then(|text| RawValue::from_string(text).ok());
        self.replace(Some(
            state.ok_or_else(|| service_error(&self.place, "its manifest is not JSON".to_owned()))?,
        ))
    }

    fn remove_manifest(&mut self) -> Result<(), StoreError> {
        self.replace(None)
    }
}
