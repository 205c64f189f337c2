//! Reading and printing profiles.
use super::{Profile, ProfileFile, ProfileWorkflow};
use crate::diagnostic::Diagnostics;
use crate::digest::sha256;
use crate::yaml;
use std::path::Path;

impl Profile {
    /// Creates an empty profile; merging it with another gives the other.
    pub fn empty(workflow: impl Into<String>) -> Self {
        Self {
            version: 1,
            workflow: ProfileWorkflow { name: workflow.into(), digest: None },
            machines: Vec::new(),
            services: Vec::new(),
            ratios: Vec::new(),
            messages: Vec::new(),
            accuracy: None,
        }
    }

    /// Reads a profile and checks it by itself; see also [`Profile::validate_against`].
    ///
    /// # Errors
    /// All findings, `E01xx` and `E08xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        ProfileFile::load(path).map(|file| file.profile)
    }

    /// Parses the text of a profile and checks it by itself; `file_name` is shown in errors.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E08xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        ProfileFile::parse(text, file_name).map(|file| file.profile)
    }

    /// Returns the YAML text, one row per figure; parsing it gives an equal profile.
    ///
    /// # Errors
    /// None for anything that was parsed; see [`yaml::print_in_rows`].
    pub fn to_yaml(&self) -> Result<String, Diagnostics> {
        yaml::print_in_rows(self)
    }

    /// Returns the sha256 of the profile, 64 hexadecimal digits, independent of comments and layout. Plans name it.
    pub fn digest(&self) -> String {
        let canonical = serde_json::to_vec(self).expect("a profile has only text keys and finite numbers");
        sha256(&canonical)
    }
}
