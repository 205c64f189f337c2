//! The state of a run: opened, read, committed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::digest::Digest;
use crate::error::{Damage, StateError, StoreError};
use crate::folder::{Folder, Store};
use crate::manifest::{Manifest, ObjectReference, OlderManifest, decode, encode};

/// The state of a run in a [`Store`]; dropping it closes the store.
pub struct State {
    store: Box<dyn Store>,
    manifest: Option<Manifest>,
    /// Manifests that may be there instead of `manifest` after a loss of power: their objects stay.
    unconfirmed: Vec<Manifest>,
    /// The kept older checkpoints, the newest first.
    pub(crate) older: Vec<(OlderManifest, Manifest)>,
    /// Number of checkpoints to keep, including the last one.
    keep: usize,
    /// Unreferenced objects that are not deleted yet.
    left_over: BTreeSet<String>,
}

impl State {
    /// Opens the state in a store, new or not, and deletes objects that the manifest does not refer to, left by a
    /// crash.
    ///
    /// # Errors
    ///
    /// The manifest is damaged or of another version, or errors of the store. No object is deleted then.
    pub fn open(store: Box<dyn Store>) -> Result<Self, StateError> {
        let mut state = Self::read(store)?;
        state.read_older()?;
        let known = state.known();
        let mut left_over = state.store.list()?;
        left_over.retain(|name| !known.contains(name));
        state.left_over = left_over.into_iter().collect();
        state.delete_left_over();
        Ok(state)
    }

    /// Runs [`State::open`] in this folder, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// As [`State::open`] and [`Folder::open`].
    pub fn in_folder(path: &Path) -> Result<Self, StateError> {
        Self::open(Box::new(Folder::open(path)?))
    }

    /// Opens the state in this folder without the lock, also while a run has it open. Nothing is written, and writes
    /// are rejected; an object that the run deletes meanwhile is missing.
    ///
    /// # Errors
    ///
    /// As [`Folder::look`]; also if the manifest is damaged or of another version.
    pub fn look(path: &Path) -> Result<Self, StateError> {
        Self::read(Box::new(Folder::look(path)?))
    }

    /// Reads the manifest and changes nothing, in a store that is open for reading.
    ///
    /// # Errors
    ///
    /// The manifest is damaged or of another version, or errors of the store.
    pub fn read(store: Box<dyn Store>) -> Result<Self, StateError> {
        let bytes = store.manifest()?;
        let manifest = bytes.map(|bytes| decode(&store.place(), &bytes)).transpose()?;
        let (unconfirmed, older, left_over) = (Vec::new(), Vec::new(), BTreeSet::new());
        Ok(Self { store, manifest, unconfirmed, older, keep: 1, left_over })
    }

    /// Also reads the kept older checkpoints; a state open for writing has them anyway.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub fn with_older(mut self) -> Result<Self, StateError> {
        self.read_older()?;
        Ok(self)
    }

    /// Reads the manifests of older checkpoints. A damaged or missing one is dropped: the last one does not need it.
    fn read_older(&mut self) -> Result<(), StateError> {
        for entry in self.manifest.iter().flat_map(|manifest| &manifest.older) {
            let read = self.checked(&entry.name, entry.bytes, entry.checksum);
            match read.and_then(|bytes| decode(&self.store.place(), &bytes)) {
                Ok(manifest) => self.older.push((entry.clone(), manifest)),
                Err(StateError::Store(error)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Sets the number of checkpoints to keep from the next one on, including the last one; at least 1, the default.
    pub fn keep(&mut self, checkpoints: usize) {
        self.keep = checkpoints.max(1);
    }

    /// Returns the place, for messages.
    pub fn place(&self) -> String {
        self.store.place()
    }

    /// Returns the manifest of the last commit; none in a new state.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Returns the older checkpoint that is always kept ([`Manifest::pinned`]), if it is still readable.
    pub fn pinned(&self) -> Option<&Manifest> {
        let pinned = self.manifest.as_ref()?.pinned?;
        let (_, manifest) = self.older.iter().find(|(entry, _)| entry.checkpoint == pinned)?;
        Some(manifest)
    }

    /// Iterates over the kept, readable older checkpoints, the newest first.
    pub fn older(&self) -> impl DoubleEndedIterator<Item = &Manifest> {
        self.older.iter().map(|(_, manifest)| manifest)
    }

    /// Returns the bytes of an object.
    ///
    /// # Errors
    ///
    /// [`StateError::Corrupted`] if it does not match the reference, or errors of the store.
    pub fn object(&self, reference: &ObjectReference) -> Result<Vec<u8>, StateError> {
        self.checked(&reference.name, reference.bytes, reference.checksum)
    }

    fn checked(&self, name: &str, length: u64, checksum: Digest) -> Result<Vec<u8>, StateError> {
        let corrupted =
            |damage| StateError::Corrupted { place: self.store.place(), name: name.to_owned(), damage };
        let bytes = match self.store.get(name) {
            Ok(bytes) => bytes,
            Err(StoreError::Missing { .. }) => return Err(corrupted(Damage::Missing)),
            Err(error) => return Err(error.into()),
        };
        let found = bytes.len() as u64;
        if found != length {
            return Err(corrupted(Damage::Length { expected: length, found }));
        }
        if Digest::of(&bytes) != checksum {
            return Err(corrupted(Damage::Checksum));
        }
        Ok(bytes)
    }

    /// Puts new objects, replaces the manifest, then deletes unreferenced objects. On return everything survives a loss
    /// of power.
    ///
    /// `objects` are those that the manifest refers to and the previous one does not, by name; see
    /// [`ObjectReference::new`]. [`State::keep`] sets the number of older checkpoints to keep, and [`Manifest::pinned`]
    /// one of them.
    ///
    /// # Errors
    ///
    /// The previous manifest is still valid, and a later commit may succeed. After an error that
    /// [`StoreError::is_unconfirmed`], a process that opens the state again finds either of the two, complete.
    /// [`StateError::Refused`] if the manifest and the objects do not fit together.
    pub fn commit(&mut self, manifest: Manifest, objects: Vec<(String, Vec<u8>)>) -> Result<(), StateError> {
        self.check(&manifest, &objects)?;
        let mut older = self.older.clone();
        let mut objects = objects;
        let is_pinned = |checkpoint: u64| manifest.pinned == Some(checkpoint);
        let is_kept = |last: &&Manifest| self.keep > 1 || is_pinned(last.checkpoint);
        if let Some(last) = self.manifest.as_ref().filter(is_kept) {
            let last = Manifest { older: Vec::new(), ..last.clone() };
            let (entry, bytes) = OlderManifest::new(&last).map_err(unwritable)?;
            objects.push((entry.name.clone(), bytes));
            older.insert(0, (entry, last));
        }
        let mut newer = 0;
        older.retain(|(entry, _)| {
            newer += 1;
            newer < self.keep || is_pinned(entry.checkpoint)
        });
        self.write(manifest, older, objects)
    }

    /// Replaces the manifest and the kept older ones.
    fn write(
        &mut self,
        mut manifest: Manifest,
        older: Vec<(OlderManifest, Manifest)>,
        objects: Vec<(String, Vec<u8>)>,
    ) -> Result<(), StateError> {
        manifest.older = older.iter().map(|(entry, _)| entry.clone()).collect();
        let text = encode(&manifest).map_err(unwritable)?;
        let known = self.known();
        let mut put = Vec::new();
        let mut written = Ok(());
        for (name, bytes) in objects {
            // Objects of an unconfirmed manifest are durable, and a crash may leave only these.
            if written.is_ok() && !known.contains(&name) {
                written = self.store.put(&name, &bytes);
                put.push(name);
            }
        }
        match written.and_then(|()| self.store.replace_manifest(&text)) {
            Ok(()) => {
                self.left_over.extend(known);
                self.manifest = Some(manifest);
                self.older = older;
                self.unconfirmed.clear();
                self.delete_left_over();
                Ok(())
            }
            Err(error) => {
                if error.is_unconfirmed() {
                    self.unconfirmed.push(manifest);
                } else {
                    self.left_over.extend(put);
                    self.delete_left_over();
                }
                Err(error.into())
            }
        }
    }

    /// Returns to a kept older checkpoint; later ones are forgotten.
    ///
    /// # Errors
    ///
    /// [`StateError::NotKept`] if there is none of this epoch, or as [`State::commit`].
    pub fn go_back(&mut self, epoch: u64) -> Result<(), StateError> {
        self.go_back_with(epoch, |_| {})
    }

    /// Returns to a checkpoint with a change to its manifest, atomically. It may refer to fewer objects, and to no
    /// others.
    ///
    /// # Errors
    ///
    /// As [`State::go_back`].
    pub fn go_back_with(&mut self, epoch: u64, change: impl FnOnce(&mut Manifest)) -> Result<(), StateError> {
        let Some(at) = self.older.iter().position(|(entry, _)| entry.epoch == epoch) else {
            let kept = self.older.iter().map(|(entry, _)| entry.epoch).collect();
            return Err(StateError::NotKept { place: self.place(), epoch, kept });
        };
        let older = self.older[at + 1..].to_vec();
        let mut manifest = self.older[at].1.clone();
        let last = self.manifest.iter().chain(&self.unconfirmed).map(|manifest| manifest.checkpoint).max();
        manifest.checkpoint = last.unwrap_or(0) + 1;
        change(&mut manifest);
        let known = self.known();
        if let Some(other) = manifest.references().find(|reference| !known.contains(&reference.name)) {
            return Err(StateError::Refused(format!(
                "it refers to object {}, which is not there",
                other.name
            )));
        }
        self.write(manifest, older, Vec::new())
    }

    /// Deletes everything: the state becomes a new one.
    ///
    /// # Errors
    ///
    /// Errors of the store; either all is still there or the manifest is gone.
    pub fn reset(&mut self) -> Result<(), StateError> {
        self.store.remove_manifest()?;
        self.manifest = None;
        self.unconfirmed.clear();
        self.older.clear();
        self.left_over = self.store.list()?.into_iter().collect();
        self.delete_left_over();
        Ok(())
    }

    /// References of all manifests that a crash may leave.
    fn references(&self) -> impl Iterator<Item = &ObjectReference> {
        self.manifest.iter().chain(&self.unconfirmed).flat_map(Manifest::references)
    }

    /// Names of all objects that may be needed.
    fn known(&self) -> BTreeSet<String> {
        let older = self.older.iter().flat_map(|(_, manifest)| manifest.references());
        let references = self.references().chain(older).map(|reference| &reference.name);
        let manifests = self.manifest.iter().chain(&self.unconfirmed).flat_map(|manifest| &manifest.older);
        references.chain(manifests.map(|entry| &entry.name)).cloned().collect()
    }

    /// Checks that the manifest, the objects and the stored ones fit together.
    fn check(&self, manifest: &Manifest, objects: &[(String, Vec<u8>)]) -> Result<(), StateError> {
        let refused = |reason: String| Err(StateError::Refused(reason));
        if let Some(last) = self.manifest.as_ref().filter(|last| manifest.checkpoint <= last.checkpoint) {
            return refused(format!("checkpoint {} follows {}", manifest.checkpoint, last.checkpoint));
        }
        if !manifest.seconds.is_finite() {
            return refused(format!("its time is {}", manifest.seconds));
        }
        let mut there = BTreeMap::new();
        for reference in self.references() {
            there.insert(reference.name.as_str(), (reference.bytes, reference.checksum));
        }
        let mut unused = BTreeSet::new();
        for (name, bytes) in objects {
            let given = (bytes.len() as u64, Digest::of(bytes));
            if !unused.insert(name.as_str()) || there.insert(name, given).is_some_and(|other| other != given)
            {
                return refused(format!("there is another object {name}"));
            }
        }
        for reference in manifest.references() {
            let name = reference.name.as_str();
            if there.get(name) != Some(&(reference.bytes, reference.checksum)) {
                return refused(format!("it refers to object {name}, which is not there or another one"));
            }
            unused.remove(name);
        }
        match unused.first() {
            Some(name) => refused(format!("it does not refer to object {name}")),
            None => Ok(()),
        }
    }

    /// Deletes unreferenced objects. Failures are retried with the next commit: such an object takes space, and does no
    /// other harm.
    fn delete_left_over(&mut self) {
        let known = self.known();
        let store = &mut self.store;
        self.left_over.retain(|name| !known.contains(name) && store.delete(name).is_err());
    }
}

fn unwritable(error: serde_json::Error) -> StateError {
    StateError::Refused(error.to_string())
}
