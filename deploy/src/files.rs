//! Files before they are written.
use crate::error::DeployError;
use serde::Serialize;
use std::collections::BTreeMap;

/// Texts by their path below the folder of the deployment, with `/` between folders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files(BTreeMap<String, String>);

impl Files {
    /// The text of a file.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// All of them, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(crate) fn add(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.0.insert(path.into(), text.into());
    }

    /// Adds a file as YAML, after comment lines.
    pub(crate) fn add_yaml(
        &mut self,
        path: impl Into<String>,
        comment: &str,
        documents: &[impl Serialize],
    ) -> Result<(), DeployError> {
        let mut text: String = comment.lines().map(|line| format!("# {line}\n")).collect();
        for (number, document) in documents.iter().enumerate() {
            if number > 0 {
                text.push_str("---\n");
            }
            text.push_str(&tidemill_spec::yaml::print(document).map_err(DeployError::Yaml)?);
            if !text.ends_with('\n') {
                text.push('\n');
            }
        }
        self.add(path, text);
        Ok(())
    }
}
