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
    /// Sees everything.
    Viewer,
    /// Also runs workflows and drains workers.
    Operator,
    /// Also adds and removes people and workers.
    Admin,
}

/// Request for an access token.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonRequest {
    /// Name of the person.
    pub name: String,
    /// Role of the person.
    #[schemars(with = "RoleName")]
    pub role: Role,
    /// Days until it expires; none: never.
    #[serde(default)]
    pub days: Option<u32>,
}

/// An access token.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct PersonAnswer {
    /// Name of the person.
    pub name: String,
    /// Role of the person.
    #[schemars(with = "RoleName")]
    pub role: Role,
    /// Its text, which no later answer contains.
    pub token: String,
    /// Time at which it expires.
    pub expires: Option<String>,
    /// Address of the controller, for the login.
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
    /// Name of the person.
    pub name: String,
    /// Role of the person.
    #[schemars(with = "RoleName")]
    pub role: Role,
    /// Its id in logs.
    pub token_id: String,
    /// Time of its creation.
    pub made: String,
    /// Time at which it expires.
    pub expires: Option<String>,
    /// Whether it is valid now.
    pub is_valid: bool,
    /// Time and author of its removal.
    pub removed: Option<String>,
}
