//! Policies that users attached, kept in a file for the next start of the service.
use crate::protocol::PolicySpec;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;

/// The file.
const FILE: &str = "policies.json";

#[derive(Serialize, Deserialize)]
struct Kept {
    user: u32,
    policy: PolicySpec,
}

/// Reads the policies with the users who attached them.
///
/// # Errors
/// The file is there, and cannot be read.
pub(crate) fn read(folder: &Path) -> Result<Vec<(PolicySpec, u32)>, String> {
    let path = folder.join(FILE);
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&error)),
    };
    let kept: Vec<Kept> = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
    Ok(kept.into_iter().map(|kept| (kept.policy, kept.user)).collect())
}

/// Writes the policies: the file is the old one or the new one, whatever happens.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(folder: &Path, policies: &[(PolicySpec, u32)]) -> Result<(), String> {
    let (path, new) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
    let kept: Vec<Kept> =
        policies.iter().map(|(policy, user)| Kept { user: *user, policy: policy.clone() }).collect();
    let written = (|| {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(&kept)?)?;
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
        assert_eq!(read(folder.path()), Ok(Vec::new()));
        let policy: PolicySpec = serde_json::from_str(
            r#"{"id": "cap", "from": "a", "kind": "rate_limit", "options": {"rps": 4}}"#,
        )
        .expect("a policy");
        write(folder.path(), &[(policy.clone(), 1000)]).expect("it is written");
        assert_eq!(read(folder.path()), Ok(vec![(policy, 1000)]));
        std::fs::write(folder.path().join(FILE), "[{").expect("it is written");
        assert!(read(folder.path()).is_err_and(|error| error.contains(FILE)));
    }
}
