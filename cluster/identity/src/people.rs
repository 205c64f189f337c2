//! Roles and what they may do.
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The permissions of a person in a cluster. Each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks.
    Viewer,
    /// Runs workflows.
    Operator,
    /// Decides who belongs to the cluster.
    Admin,
}

/// Something that a person wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// See workers, runs, plans and metrics.
    View,
    /// Start a run.
    Submit,
    /// End a run.
    Cancel,
    /// Let a run continue by another plan.
    ApplyPlan,
    /// Take the work from a worker, and give it back.
    Drain,
    /// Revoke workers and their certificates.
    ManageWorkers,
    /// Make and revoke join tokens.
    ManageTokens,
    /// Make and revoke access tokens of people.
    ManagePeople,
}

impl Role {
    /// All roles, the least first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Returns whether people with this role may do it.
    pub fn may(self, action: Action) -> bool {
        self >= action.needs()
    }
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 8] = [
        Self::View,
        Self::Submit,
        Self::Cancel,
        Self::ApplyPlan,
        Self::Drain,
        Self::ManageWorkers,
        Self::ManageTokens,
        Self::ManagePeople,
    ];

    /// The least role that may do it.
    pub fn needs(self) -> Role {
        match self {
            Self::View => Role::Viewer,
            Self::Submit | Self::Cancel | Self::ApplyPlan | Self::Drain => Role::Operator,
            Self::ManageWorkers | Self::ManageTokens | Self::ManagePeople => Role::Admin,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::View => "look",
            Self::Submit => "start a run",
            Self::Cancel => "cancel a run",
            Self::ApplyPlan => "apply a plan",
            Self::Drain => "drain a worker",
            Self::ManageWorkers => "manage workers",
            Self::ManageTokens => "manage join tokens",
            Self::ManagePeople => "manage people",
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        })
    }
}

/// A text that is no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a role: write viewer, operator or admin")]
pub struct RoleError {
    found: String,
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let role = Self::ALL.into_iter().find(|role| role.to_string() == text);
        role.ok_or_else(|| RoleError { found: text.chars().take(20).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_may_do_more() {
        let count = |role: Role| Action::ALL.into_iter().filter(|action| role.may(*action)).count();
        assert_eq!(Role::ALL.map(count), [1, 5, 8]);
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        let error = "root".parse::<Role>().unwrap_err().to_string();
        assert_eq!(error, "\"root\" is not a role: write viewer, operator or admin");
    }
}
