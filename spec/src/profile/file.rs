//! A profile with the file it came from, for errors with positions.
use super::Profile;
use crate::diagnostic::Diagnostics;
use crate::span::SourceFile;
use crate::value::Value;
use crate::workflow::Workflow;
use crate::{document, yaml};
use std::path::Path;
use std::sync::Arc;

/// A profile that remembers its file.
#[derive(Debug, Clone)]
pub struct ProfileFile {
    /// The profile.
    pub profile: Profile,
    tree: Value,
}

impl ProfileFile {
    /// Reads a profile and checks it by itself.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E08xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        Self::from_source(&yaml::read(path.as_ref())?)
    }

    /// Parses the text of a profile and checks it by itself; `file_name` is shown in errors.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E08xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text))
    }

    fn from_source(source: &Arc<SourceFile>) -> Result<Self, Diagnostics> {
        let tree = document::tree(source, "profile")?;
        let profile = document::convert(&tree, |profile: &Profile| profile.check(Some(&tree)))?;
        Ok(Self { profile, tree })
    }

    /// Returns all findings about the profile with this workflow, at their place in the file.
    pub fn validate_against(&self, workflow: &Workflow) -> Diagnostics {
        self.profile.check_against(workflow, Some(&self.tree))
    }

    /// Returns the file as a tree, for further findings at a place in it (see [`Value::span_at`]).
    pub fn tree(&self) -> &Value {
        &self.tree
    }
}
