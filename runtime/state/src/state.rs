//! A state that one process has open.
use crate::folder::{Folder, StateError, checksum};
use crate::manifest::{Content, FORMAT, Manifest, ObjectReference};
use std::collections::BTreeSet;
use std::path::Path;

/// See the crate.
#[derive(Debug)]
pub struct State {
    folder: Folder,
    manifest: Option<Manifest>,
    /// When it was opened.
    opened: String,
}

impl State {
    /// Opens the state in a folder for this process alone; without one it begins.
    ///
    /// # Errors
    /// Another process has it, it is of another format, damaged, or no state; the folder cannot be written.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        Self::open_at(path, "")
    }

    /// [`State::open`], telling others since when: RFC 3339.
    ///
    /// # Errors
    /// As there.
    pub fn open_at(path: &Path, now: &str) -> Result<Self, StateError> {
        let folder = Folder::open(path, now)?;
        let manifest = folder.manifest()?;
        let state = Self { folder, manifest, opened: now.to_owned() };
        state.remove_unnamed()?;
        Ok(state)
    }

    /// The manifest of a state, whoever has it open.
    ///
    /// # Errors
    /// There is no state, it is of another format, or damaged.
    pub fn look(path: &Path) -> Result<Manifest, StateError> {
        let missing = || StateError::Missing { path: path.to_owned() };
        Folder::look(path).manifest()?.ok_or_else(missing)
    }

    /// Forgets what is in a folder, also what this program cannot read.
    ///
    /// # Errors
    /// Another process has it, it is no state, or it cannot be written.
    pub fn reset(path: &Path) -> Result<(), StateError> {
        let folder = Folder::open(path, "")?;
        folder.forget()?;
        Self { folder, manifest: None, opened: String::new() }.remove_unnamed()
    }

    /// The last checkpoint; none: the run has not begun.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// When this process opened it.
    pub fn opened(&self) -> &str {
        &self.opened
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Reads an object.
    ///
    /// # Errors
    /// It is missing or not as it was written.
    pub fn object(&self, reference: &ObjectReference) -> Result<Vec<u8>, StateError> {
        self.folder.object(reference)
    }

    /// A reference to an object that is to be committed. `of`: whose it is, for people who look into the folder.
    pub fn reference(&self, of: &str, content: Content, bytes: &[u8]) -> ObjectReference {
        let number = self.manifest.as_ref().map_or(0, |manifest| manifest.checkpoint) + 1;
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '.' };
        let readable: String = of.chars().take(60).map(plain).collect();
        let kind = match content {
            Content::Snapshot { .. } => "snapshot",
            Content::Calls { .. } => "calls",
        };
        let name = format!("{number:08}-{readable}-{}.{kind}", &checksum(of.as_bytes())[..8]);
        ObjectReference { name, bytes: bytes.len() as u64, checksum: checksum(bytes), content }
    }

    /// Makes a checkpoint durable, with its new objects; then removes objects that only the one before needed. When it fails,
    /// the one before holds.
    ///
    /// # Errors
    /// Something cannot be written.
    pub fn commit(
        &mut self,
        mut manifest: Manifest,
        objects: Vec<(ObjectReference, &[u8])>,
    ) -> Result<(), StateError> {
        manifest.format = FORMAT;
        manifest.checkpoint = self.manifest.as_ref().map_or(0, |manifest| manifest.checkpoint) + 1;
        for (reference, bytes) in objects {
            self.folder.put(&reference.name, bytes)?;
        }
        self.folder.replace_manifest(&manifest)?;
        self.manifest = Some(manifest);
        self.remove_unnamed()
    }

    fn remove_unnamed(&self) -> Result<(), StateError> {
        let named: BTreeSet<&str> =
            self.manifest.iter().flat_map(Manifest::objects).map(|object| object.name.as_str()).collect();
        for name in self.folder.names()?.iter().filter(|name| !named.contains(name.as_str())) {
            self.folder.remove(name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::manifest::StageState;

    fn manifest(epoch: u64, objects: Vec<ObjectReference>) -> Manifest {
        let mut manifest = Manifest { epoch, ..Manifest::new(Identity::default()) };
        manifest.stages.insert("join".into(), StageState { objects });
        manifest
    }

    fn committed(state: &mut State, epoch: u64, bytes: &[u8]) -> ObjectReference {
        let object = state.reference("join#0", Content::Snapshot { epoch }, bytes);
        state.commit(manifest(epoch, vec![object.clone()]), vec![(object.clone(), bytes)]).unwrap();
        object
    }

    #[test]
    fn the_last_checkpoint_is_found_and_nothing_else_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/state");
        let mut state = State::open(&path).unwrap();
        assert!(state.manifest().is_none());
        let first = committed(&mut state, 4, b"first");
        let second = committed(&mut state, 8, b"second");
        assert!(state.object(&first).is_err());
        drop(state);
        // Left of a process that died before its manifest was there.
        std::fs::write(path.join("objects/00000003-x.calls"), "half").unwrap();
        std::fs::write(path.join("manifest.json.next"), "{").unwrap();
        let state = State::open(&path).unwrap();
        let found = state.manifest().unwrap();
        assert_eq!((found.epoch, found.checkpoint), (8, 2));
        assert_eq!(state.object(&second).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(path.join("objects")).unwrap().count(), 1);
        assert_eq!(State::look(&path).unwrap().epoch, 8);
    }

    #[test]
    fn the_second_is_told_who_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open_at(folder.path(), "2026-11-23T06:00:00Z").unwrap();
        let refused = State::open(folder.path()).unwrap_err().to_string();
        let process = std::process::id().to_string();
        assert!(refused.contains("in use by process") && refused.contains(&process), "{refused}");
        assert!(refused.contains("since 2026-11-23T06:00:00Z"), "{refused}");
        assert!(State::reset(folder.path()).is_err());
        drop(state);
        State::open(folder.path()).unwrap();
    }

    #[test]
    fn damage_is_told_and_not_taken_for_a_state() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = State::open(folder.path()).unwrap();
        let object = committed(&mut state, 4, b"bytes");
        let file = folder.path().join("objects").join(&object.name);
        for (content, told) in [("byteZ", "checksum"), ("byte", "4 bytes instead of 5")] {
            std::fs::write(&file, content).unwrap();
            let error = state.object(&object).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("state reset"), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(state.object(&object), Err(StateError::File { .. })));
        drop(state);
        let manifest = folder.path().join("manifest.json");
        let text = std::fs::read_to_string(&manifest).unwrap();
        std::fs::write(&manifest, &text[..text.len() / 2]).unwrap();
        assert!(matches!(State::open(folder.path()), Err(StateError::Damaged { .. })));
        std::fs::write(&manifest, text.replace("\"format\": 1", "\"format\": 7")).unwrap();
        let error = State::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("format 7") && error.contains("reads format 1"), "{error}");
        State::reset(folder.path()).unwrap();
        assert!(State::open(folder.path()).unwrap().manifest().is_none());
    }

    #[test]
    fn other_folders_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("thesis.tex"), "years").unwrap();
        let error = State::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("thesis.tex"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(matches!(State::look(folder.path()), Err(StateError::Missing { .. })));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_written_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = State::open(folder.path()).unwrap();
        let first = committed(&mut state, 4, b"first");
        // In the place of the next manifest, which then cannot be written, also by those who may write everything.
        std::fs::create_dir(folder.path().join("manifest.json.next")).unwrap();
        let object = state.reference("join#0", Content::Snapshot { epoch: 8 }, b"second");
        let next = manifest(8, vec![object.clone()]);
        assert!(state.commit(next.clone(), vec![(object.clone(), b"second")]).is_err());
        assert_eq!(State::look(folder.path()).unwrap().epoch, 4);
        assert_eq!(state.object(&first).unwrap(), b"first");
        std::fs::remove_dir(folder.path().join("manifest.json.next")).unwrap();
        state.commit(next, vec![(object, b"second")]).unwrap();
        assert_eq!(State::look(folder.path()).unwrap().epoch, 8);
    }
}
