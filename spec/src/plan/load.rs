//! Reading and printing plans.
use super::{Plan, PlanFile};
use crate::diagnostic::Diagnostics;
use crate::yaml;
use std::path::Path;

impl Plan {
    /// Reads a plan file and checks it by itself; see also [`Plan::validate_against`].
    ///
    /// # Errors
    /// All findings, `E01xx` and `E04xx`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        PlanFile::load(path).map(|file| file.plan)
    }

    /// Parses the text of a plan and checks it by itself; `file_name` is shown in errors.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E04xx`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        PlanFile::parse(text, file_name).map(|file| file.plan)
    }

    /// Returns the YAML text; parsing it gives an equal plan.
    ///
    /// # Errors
    /// None for anything that was parsed; see [`yaml::print`].
    pub fn to_yaml(&self) -> Result<String, Diagnostics> {
        yaml::print(self)
    }
}
