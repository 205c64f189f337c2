//! Reading and printing workflows.
use super::{Workflow, WorkflowDirectory, late};
use crate::diagnostic::Diagnostics;
use crate::digest::sha256;
use crate::span::SourceFile;
use crate::value::Value;
use crate::variables::{self, Lookup};
use crate::{document, yaml};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Workflow {
    /// Reads and checks a workflow file.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E02xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        Self::load_with(path, &variables::environment)
    }

    /// As [`Workflow::load`], with variables from `lookup`.
    ///
    /// # Errors
    /// As [`Workflow::load`].
    pub fn load_with(path: impl AsRef<Path>, lookup: Lookup<'_>) -> Result<Self, Diagnostics> {
        let path = path.as_ref();
        let mut workflow = Self::from_source(&yaml::read(path)?, lookup)?;
        workflow.directory = WorkflowDirectory(path.parent().map(Path::to_path_buf).unwrap_or_default());
        Ok(workflow)
    }

    /// As [`Workflow::load_with`]; where only keys are unknown or units wrong, the error includes the rest of the
    /// workflow, for further checks.
    ///
    /// # Errors
    /// All findings.
    pub fn load_or_rest(
        path: impl AsRef<Path>,
        lookup: Lookup<'_>,
    ) -> Result<Self, (Diagnostics, Option<Box<Self>>)> {
        let path = path.as_ref();
        let directory = WorkflowDirectory(path.parent().map(Path::to_path_buf).unwrap_or_default());
        let tree = yaml::read(path).and_then(|source| Self::tree(&source, lookup));
        let tree = tree.map_err(|found| (found, None))?;
        match document::convert_partly(&tree, |workflow: &Self| workflow.check_in(&tree)) {
            Ok(workflow) => Ok(Self { directory, ..workflow }),
            Err((found, rest)) => Err((found, rest.map(|rest| Box::new(Self { directory, ..rest })))),
        }
    }

    /// As [`Workflow::check`]; an empty list is reported at its place in the file.
    fn check_in(&self, tree: &Value) -> Diagnostics {
        let key = |code: &str| match code {
            "E0201" => tree.entry("sources"),
            "E0202" => tree.entry("sinks"),
            _ => None,
        };
        let found = self.check().into_iter();
        found
            .map(|finding| match key(finding.code) {
                Some(entry) => finding.at(entry.key.span.clone()),
                None => finding,
            })
            .collect()
    }

    fn tree(source: &Arc<SourceFile>, lookup: Lookup<'_>) -> Result<Value, Diagnostics> {
        let mut tree = document::tree(source, "workflow")?;
        variables::fill_in(&mut tree, lookup)?;
        late::add(&mut tree);
        Ok(tree)
    }

    /// Parses and checks the text of a workflow; `file_name` is shown in errors. Relative paths start at the current
    /// directory.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E02xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::parse_with(text, file_name, &variables::environment)
    }

    /// As [`Workflow::parse`], with variables from `lookup`.
    ///
    /// # Errors
    /// As [`Workflow::parse`].
    pub fn parse_with(text: &str, file_name: &str, lookup: Lookup<'_>) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text), lookup)
    }

    fn from_source(source: &Arc<SourceFile>, lookup: Lookup<'_>) -> Result<Self, Diagnostics> {
        let tree = Self::tree(source, lookup)?;
        document::convert(&tree, |workflow: &Self| workflow.check_in(&tree))
    }

    /// Resolves a path of the workflow file against its folder.
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.0.join(path)
    }

    /// Returns the YAML text; parsing it gives an equal workflow. Variables in options stay variables.
    ///
    /// # Errors
    /// None for anything that was parsed; see [`yaml::print`].
    pub fn to_yaml(&self) -> Result<String, Diagnostics> {
        yaml::print_with_variables(self)
    }

    /// Returns the sha256 of the canonical workflow, 64 hexadecimal digits, independent of comments, layout, short
    /// forms and defaults. Variables in options count as written, so that the digest reveals no credentials.
    pub fn digest(&self) -> String {
        let canonical = serde_json::to_vec(self).expect("a workflow has only text keys and finite numbers");
        sha256(&canonical)
    }

    /// Returns the sha256 of the parts of the canonical workflow that its profile depends on: sources without their rates, operators and
    /// the truths of sinks, with paths as from the folder above. Service levels, and how it runs, change no figure of a profile.
    pub fn profiled_digest(&self) -> String {
        let mut parts = serde_json::json!({
            "sources": &self.sources,
            "operators": &self.operators,
            "truths": self.sinks.iter().map(|sink| (&sink.input, &sink.ground_truth)).collect::<Vec<_>>(),
        });
        for source in parts["sources"].as_array_mut().into_iter().flatten() {
            if let Some(source) = source.as_object_mut() {
                source.retain(|key, _| key != "rate" && key != "repeat");
            }
        }
        without_parents(&mut parts);
        sha256(parts.to_string().as_bytes())
    }
}

/// Removes the leading `../` of all texts: workflows in different folders may name the same files.
fn without_parents(value: &mut serde_json::Value) {
    use serde_json::Value::{Array, Object, String};
    match value {
        String(text) => *text = text.trim_start_matches("../").to_owned(),
        Array(values) => values.iter_mut().for_each(without_parents),
        Object(values) => values.values_mut().for_each(without_parents),
        _ => {}
    }
}
