//! Reading and printing workflows.
use super::{Workflow, WorkflowDirectory};
use crate::diagnostic::Diagnostics;
use crate::span::SourceFile;
use crate::{document, yaml};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Workflow {
    /// Reads and checks a workflow file.
    ///
    /// # Errors
    /// Everything that is wrong with it, `E01xx` and `E02xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        let path = path.as_ref();
        let mut workflow = Self::from_source(&yaml::read(path)?)?;
        workflow.directory = WorkflowDirectory(path.parent().map(Path::to_path_buf).unwrap_or_default());
        Ok(workflow)
    }

    /// Parses and checks the text of a workflow; `file_name` is shown in errors. Relative paths start at the
    /// current directory.
    ///
    /// # Errors
    /// Everything that is wrong with it, `E01xx` and `E02xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text))
    }

    fn from_source(source: &Arc<SourceFile>) -> Result<Self, Diagnostics> {
        let tree = document::tree(source, "workflow")?;
        document::convert(&tree)
    }

    /// A path of the workflow file, seen from the current directory.
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.0.join(path)
    }
}
