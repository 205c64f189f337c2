//! Reading manifests.
use super::Manifest;
use crate::diagnostic::Diagnostics;
use crate::span::SourceFile;
use crate::{document, yaml};
use std::path::Path;
use std::sync::Arc;

impl Manifest {
    /// Reads and checks a manifest file.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E05xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        Self::from_source(&yaml::read(path.as_ref())?)
    }

    /// Parses and checks the text of a manifest; `file_name` is shown in errors.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E05xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text))
    }

    fn from_source(source: &Arc<SourceFile>) -> Result<Self, Diagnostics> {
        let tree = document::tree(source, "model manifest")?;
        document::convert(&tree, Self::check)
    }

    /// Returns the names of all its files, relative to its own folder.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let decoder = self.decoder.iter().flat_map(|decoder| [&decoder.file, &decoder.tokenizer.file]);
        let artifacts = self.artifacts.values().map(|artifact| &artifact.file);
        let model = Some(&self.file).filter(|file| !file.is_empty());
        model.into_iter().chain(artifacts).chain(decoder).map(|file| file.value.as_str())
    }

    /// Returns the YAML text; parsing it gives an equal manifest.
    ///
    /// # Errors
    /// None for anything that was parsed; see [`yaml::print`].
    pub fn to_yaml(&self) -> Result<String, Diagnostics> {
        yaml::print(self)
    }
}
