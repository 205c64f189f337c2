//! People and their access tokens.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidemill_identity::Role;

/// Names of roles, for the document of the API.
#[derive(JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Role")]
#[expect(dead_code, reason = "it stands for the type of another crate")]
pub(super) enum RoleName {
    /// Looks.
    Viewer,
    /// Runs workflows, and drains workers.
    Operator,
    /// Says who belongs to the cluster.
    Admin,
}

/// An access token is wanted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonRequest {
    /// Whose it is.
    pub name: String,
    /// What the person may do with it.
    #[schemars(with = "RoleName")]
    pub role: Role,
    /// Days that it counts; none: until it is removed.
    #[serde(default)]
    pub days: Option<u32>,
}

/// An access token.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct PersonAnswer {
    /// Whose it is.
    pub name: String,
    /// What the person may do with it.
    #[schemars(with = "RoleName")]
    pub role: Role,
    /// Its text, which is told this once.
    pub token: String,
    /// Until when it counts.
    pub expires: Option<String>,
    /// What the person logs in to.
    pub address: String,
}

impl std::fmt::Debug for PersonAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the token.
        f.debug_struct("PersonAnswer")
            .field("name", &self.name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// An access token, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PersonView {
    /// Whose it is.
    pub name: String,
    /// What the person may do with it.
    #[schemars(with = "RoleName")]
    pub role: Role,
    /// What it is called in logs.
    pub token_id: String,
    /// When it was made.
    pub made: String,
    /// Until when it counts.
    pub expires: Option<String>,
    /// Whether it counts now.
    pub is_valid: bool,
    /// When and by whom it was removed.
    pub removed: Option<String>,
}
