//! Changes of users, kept in a file for the next start of the service.
use crate::protocol::PolicySpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file.
const FILE: &str = "policies.json";

/// Everything that users have changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Policies that they attached.
    pub(crate) policies: Vec<KeptPolicy>,
    /// Changes to policies of plans.
    pub(crate) changed: Vec<KeptChange>,
}

/// A policy that a user attached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptPolicy {
    pub(crate) user: u32,
    pub(crate) policy: PolicySpec,
}

/// A change to a policy of the plan of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptChange {
    pub(crate) user: u32,
    /// The run's number, which is a secret of its user: the file is readable by the user of the service only.
    #[serde(with = "number")]
    pub(crate) run: u128,
    pub(crate) id: String,
    pub(crate) change: Changed,
}

/// Change of a user to a policy of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Changed {
    Detached,
    Set(Value),
}

/// JSON has no numbers of 128 bits.
mod number {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

/// Reads what was kept.
///
/// # Errors
/// The file is there, and cannot be read.
pub(crate) fn read(folder: &Path) -> Result<Kept, String> {
    let path = folder.join(FILE);
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(&error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(error) => Err(failed(&error)),
    }
}

/// Writes what is to be kept: the file is the old one or the new one, whatever happens.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(folder: &Path, kept: &Kept) -> Result<(), String> {
    let (path, new) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
    let written = (|| {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec_pretty(kept)?)?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        std::fs::File::open(folder)?.sync_all()
    })();
    written.map_err(|error: std::io::Error| {
        format!("the policies are in force, and cannot be kept: {}: {error}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(read(folder.path()), Ok(Kept::default()));
        let policy: PolicySpec = serde_json::from_str(
            r#"{"id": "cap", "from": "a", "kind": "rate_limit", "options": {"rps": 4}}"#,
        )
        .expect("a policy");
        let change = |change| KeptChange { user: 7, run: u128::MAX - 3, id: "of-plan".into(), change };
        let changed = vec![change(Changed::Detached), change(Changed::Set(serde_json::json!({"rps": 3})))];
        let kept = Kept { policies: vec![KeptPolicy { user: 1000, policy }], changed };
        write(folder.path(), &kept).expect("it is written");
        assert_eq!(read(folder.path()), Ok(kept));
        std::fs::write(folder.path().join(FILE), "[{").expect("it is written");
        assert!(read(folder.path()).is_err_and(|error| error.contains(FILE)));
    }
}
