//! Targets for fuzzing: for every parser that reads from outside one function that is given any bytes. It panics where the parser does
//! something that it promises not to do; a refusal is no failure.
//!
//! Two runners execute the very same functions: cargo-fuzz, which needs a nightly compiler and looks where inputs lead (`fuzz/`), and
//! [`run`], which changes the committed corpus blindly by a seed, on any compiler, and counts what it needs of time and memory.
mod mutation;
mod run;
mod targets;

pub use mutation::mutated;
pub use run::{Bounds, Memory, Outcome, quiet, run};
pub use targets::TARGETS;

use std::path::PathBuf;

/// Something that reads from outside.
#[derive(Debug)]
pub struct Target {
    /// Names it, its corpus and its program in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// What is read, and from whom it comes.
    pub reads: &'static str,
    /// Reads bytes and says whether they were taken.
    pub read: fn(&[u8]) -> bool,
    /// Inputs of the corpus that are made by the code that writes what is read: they are kept up to date.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Words that a blind change would hardly find.
    pub words: &'static [&'static str],
    /// Bytes of memory that one input may take.
    pub memory: usize,
}

impl Target {
    /// The target with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Where its corpus lies.
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus")).join(self.name)
    }

    /// The files of its corpus, by name.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn corpus(&self) -> std::io::Result<Vec<(String, Vec<u8>)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(self.folder())? {
            let entry = entry?;
            files.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
        }
        files.sort();
        Ok(files)
    }
}

/// Has the target with this name read bytes: what programs of fuzzers call.
///
/// # Panics
/// There is no such target, or the parser breaks a promise.
pub fn execute(name: &str, bytes: &[u8]) {
    let target = Target::find(name).expect("a target with a program in fuzz/fuzz_targets");
    (target.read)(bytes);
}
