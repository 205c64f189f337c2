//! Reading infrastructure files.
use super::Infrastructure;
use crate::diagnostic::Diagnostics;
use crate::span::SourceFile;
use crate::variables::{self, Lookup};
use crate::{document, yaml};
use std::path::Path;
use std::sync::Arc;

impl Infrastructure {
    /// Reads and checks an infrastructure file.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E03xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        Self::load_with(path, &variables::environment)
    }

    /// As [`Infrastructure::load`], with variables from `lookup`.
    ///
    /// # Errors
    /// As [`Infrastructure::load`].
    pub fn load_with(path: impl AsRef<Path>, lookup: Lookup<'_>) -> Result<Self, Diagnostics> {
        Self::from_source(&yaml::read(path.as_ref())?, lookup)
    }

    /// Parses and checks the text of an infrastructure file; `file_name` is shown in errors.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E03xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text), &variables::environment)
    }

    fn from_source(source: &Arc<SourceFile>, lookup: Lookup<'_>) -> Result<Self, Diagnostics> {
        let mut tree = document::tree(source, "infrastructure")?;
        variables::fill_in(&mut tree, lookup)?;
        document::convert(&tree, Self::check)
    }

    /// Returns the YAML text; parsing it gives an equal infrastructure.
    ///
    /// # Errors
    /// None for anything that was parsed; see [`yaml::print`].
    pub fn to_yaml(&self) -> Result<String, Diagnostics> {
        yaml::print_with_variables(self)
    }
}
