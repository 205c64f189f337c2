//! Reading plans.
use super::Plan;
use crate::diagnostic::Diagnostics;
use crate::span::SourceFile;
use crate::{document, yaml};
use std::path::Path;
use std::sync::Arc;

impl Plan {
    /// Reads a plan file and checks it by itself; see also `Plan::validate_against`.
    ///
    /// # Errors
    /// Everything that is wrong with it, `E01xx` and `E04xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        Self::from_source(&yaml::read(path.as_ref())?)
    }

    /// Parses the text of a plan and checks it by itself; `file_name` is shown in errors.
    ///
    /// # Errors
    /// Everything that is wrong with it, `E01xx` and `E04xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text))
    }

    fn from_source(source: &Arc<SourceFile>) -> Result<Self, Diagnostics> {
        let tree = document::tree(source, "plan")?;
        document::convert(&tree)
    }
}
