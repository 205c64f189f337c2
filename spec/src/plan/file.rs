//! A plan with the file it came from, for errors with positions.
use super::Plan;
use crate::diagnostic::Diagnostics;
use crate::span::SourceFile;
use crate::value::Value;
use crate::workflow::Workflow;
use crate::{document, yaml};
use std::path::Path;
use std::sync::Arc;

/// A plan that remembers its file.
#[derive(Debug, Clone)]
pub struct PlanFile {
    /// The plan.
    pub plan: Plan,
    tree: Value,
}

impl PlanFile {
    /// Reads a plan file and checks it by itself.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E04xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        Self::from_source(&yaml::read(path.as_ref())?)
    }

    /// Parses the text of a plan and checks it by itself; `file_name` is shown in errors.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E04xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text))
    }

    fn from_source(source: &Arc<SourceFile>) -> Result<Self, Diagnostics> {
        let tree = document::tree(source, "plan")?;
        let plan = document::convert(&tree, |plan: &Plan| plan.check(Some(&tree)))?;
        Ok(Self { plan, tree })
    }

    /// Returns all findings about the plan with this workflow, at their place in the plan file.
    pub fn validate_against(&self, workflow: &Workflow) -> Diagnostics {
        self.plan.check_against(workflow, Some(&self.tree))
    }

    /// Returns the file as a tree, for further findings at a place in it (see [`Value::span_at`]).
    pub fn tree(&self) -> &Value {
        &self.tree
    }
}
