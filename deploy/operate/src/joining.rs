//! Join material of a worker or a device: a file with the controller's address and a token for its name, which only its container
//! reads.
use crate::cause::OperateError;
use crate::connection::Connection;
use crate::site::Place;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use tidemill_cluster::api::{TokenAnswer, TokenRequest, WorkerView};
use tidemill_deploy::deployment::{DeployedService, ServiceRole};

/// Validity of a token in seconds; the deployment must be up within it.
const LIFETIME: u64 = 3_600;

/// Whether the join files of all services of a location with a role exist, and there is one.
pub(crate) fn is_prepared(place: &Place, role: ServiceRole) -> bool {
    let services = || place.location.services.iter().filter(|service| service.role == role);
    let mut joins = services().map(|service| service.join.as_ref());
    services().next().is_some()
        && joins.all(|join| join.is_some_and(|join| place.own_folder.join(join).exists()))
}

/// Writes the join files of a location's workers that are not in the cluster; returns their number.
///
/// # Errors
/// The controller gives no token; the file cannot be written.
pub(crate) fn prepare(
    place: &Place,
    connection: &Connection,
    known: &[WorkerView],
) -> Result<usize, OperateError> {
    let mut prepared = 0;
    for (service, worker) in place.workers() {
        let (Some(join), known) = (&service.join, known.iter().find(|one| one.name == worker)) else {
            continue;
        };
        let path = place.own_folder.join(join);
        if known.is_some_and(|one| one.is_alive) && path.exists() {
            continue;
        }
        // A known worker has its certificate, or has lost it with its volume: then it needs the token.
        write(&path, connection, worker, known.is_some())?;
        prepared += 1;
    }
    Ok(prepared)
}

/// Writes the join file of a device that does not serve. It may have its certificate, or have lost it with its volume.
///
/// # Errors
/// The controller gives no token; the file cannot be written.
pub(crate) fn prepare_device(
    place: &Place,
    connection: &Connection,
    service: &DeployedService,
    name: &str,
) -> Result<(), OperateError> {
    let Some(join) = &service.join else { return Ok(()) };
    write(&place.own_folder.join(join), connection, name, true)
}

fn write(path: &Path, connection: &Connection, name: &str, replaces: bool) -> Result<(), OperateError> {
    let request =
        TokenRequest { uses: Some(1), seconds: Some(LIFETIME), name: Some(name.to_owned()), replaces };
    let answer: TokenAnswer = connection.client.post("/v1/join-tokens", &request)?;
    keep(path, &format!("{}\n{}\n", connection.for_workers, answer.token))
}

/// Writes a secret. Compose passes the file to a container with its permissions here, and the user in there is another one.
/// So the file is readable by all, and the folder only by its owner. An existing file is overwritten in place, because a
/// container may have it mounted.
pub(crate) fn keep(path: &Path, text: &str) -> Result<(), OperateError> {
    let written = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
            fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        }
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())
    };
    written().map_err(|source| OperateError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_secret_is_read_by_its_container_and_no_other_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets/join-a");
        keep(&path, "one, and longer").unwrap();
        let before = fs::metadata(&path).unwrap();
        keep(&path, "two").unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_eq!((before.ino(), after.mode() & 0o777), (after.ino(), 0o644));
        assert_eq!(fs::metadata(folder.path().join("secrets")).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    }
}
