//! Code generation in build scripts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::compiling::{StubError, with_comments};
use crate::messages;

/// Files to write the code of.
#[derive(Clone, Debug, Default)]
pub struct Stubs {
    includes: Vec<PathBuf>,
    files: Vec<PathBuf>,
    out_dir: Option<PathBuf>,
}

impl Stubs {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory in which files and their imports are looked for. Without any it is that of the package.
    #[must_use]
    pub fn include(mut self, directory: impl AsRef<Path>) -> Self {
        self.includes.push(directory.as_ref().to_owned());
        self
    }

    /// Adds a .proto file, by its path from one of the directories.
    #[must_use]
    pub fn file(mut self, proto: impl AsRef<Path>) -> Self {
        self.files.push(proto.as_ref().to_owned());
        self
    }

    /// Sets the directory of the code, which else is `OUT_DIR`.
    #[must_use]
    pub fn out_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.out_dir = Some(directory.as_ref().to_owned());
        self
    }

    /// Writes `PACKAGE.rs` for each package of the files, and tells Cargo what it depends on. Files without a package give
    /// `_.rs`.
    ///
    /// # Errors
    ///
    /// Mistakes in .proto files, what [`rust`](crate::rust) refuses, and files that cannot be written.
    pub fn write(self) -> Result<(), StubError> {
        let out_dir = match self.out_dir {
            Some(directory) => directory,
            None => std::env::var_os("OUT_DIR").map(PathBuf::from).ok_or(StubError::NoOutDir)?,
        };
        let includes = if self.includes.is_empty() { vec![PathBuf::from(".")] } else { self.includes };
        // Also if they do not compile: the next build is after a change to them.
        for file in &self.files {
            tell_cargo(&includes, file);
        }
        let set = with_comments(&self.files, &includes)?;
        set.file.iter().for_each(|file| tell_cargo(&includes, Path::new(file.name())));
        let is_named = |name: &str| {
            self.files.iter().any(|file| file.ends_with(name) || Path::new(name).ends_with(file))
        };
        let packages: BTreeSet<&str> =
            set.file.iter().filter(|file| is_named(file.name())).map(|file| file.package()).collect();
        for package in packages {
            let code = messages::package(&set, package)?;
            let path = out_dir.join(format!("{}.rs", if package.is_empty() { "_" } else { package }));
            std::fs::write(&path, code).map_err(|error| StubError::Write { path, error })?;
        }
        Ok(())
    }
}

/// Makes a change to the file run the build script again.
fn tell_cargo(includes: &[PathBuf], file: &Path) {
    let places = includes.iter().map(|include| include.join(file)).chain([file.to_owned()]);
    if let Some(path) = places.into_iter().find(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
