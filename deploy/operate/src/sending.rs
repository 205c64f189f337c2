//! Sends files and images to other machines.
use crate::cause::{Cause, OperateError};
use crate::control::Control;
use crate::diagnosis::diagnose;
use crate::machine::{Call, Machine};
use crate::process::Owned;
use crate::site::Place;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

/// Timeout of sending files, which are small.
const FILES: Duration = Duration::from_secs(120);
/// Interval of checks whether an image has arrived.
const LOOK: Duration = Duration::from_millis(100);

/// Unpacks an archive in place of a folder. A running container keeps its mounted old file; a restarted one has the new
/// one.
const REPLACE: &str = concat!(
    r#"umask 077 && rm -rf -- "$1.next" "$1.last" && mkdir -p "$1.next" && tar -C "$1.next" -xpf - && "#,
    r#"{ [ ! -e "$1" ] || mv -- "$1" "$1.last"; } && mv -- "$1.next" "$1" && rm -rf -- "$1.last""#
);

/// Sends the folder of a location to its machine: afterwards its content there equals that here. Other users there cannot
/// read it.
pub(crate) fn folder(place: &Place, control: Control<'_>) -> Result<(), OperateError> {
    if place.machine.is_here() {
        return Ok(());
    }
    let own = place.own_folder.display().to_string();
    let packed = Machine::Here.run(
        &Call { words: &["tar", "-cf", "-", "."], folder: Some(&own), input: b"", patience: FILES },
        control,
    )?;
    if !packed.is_ok() {
        return Err(diagnose(&Machine::Here.name(), "tar", &packed.complaint()).into());
    }
    let words = ["sh", "-c", REPLACE, "sh", &place.folder];
    let told = place
        .machine
        .run(&Call { words: &words, folder: None, input: &packed.stdout, patience: FILES }, control)?;
    match told.is_ok() {
        true => Ok(()),
        false => Err(diagnose(&place.machine.name(), "unpacking its files", &told.complaint()).into()),
    }
}

/// Removes the folder of a location from another machine.
pub(crate) fn remove_folder(
    machine: &Machine,
    folder: &str,
    control: Control<'_>,
) -> Result<(), OperateError> {
    if machine.is_here() {
        return Ok(());
    }
    // The folder above is that of the deployment, which other locations of this machine may use.
    let script = "rm -rf -- \"$1\" && { rmdir -- \"$(dirname -- \"$1\")\" 2>/dev/null || true; }";
    let told = machine.run(&Call::look(&["sh", "-c", script, "sh", folder]), control)?;
    match told.is_ok() {
        true => Ok(()),
        false => Err(diagnose(&machine.name(), "removing its files", &told.complaint()).into()),
    }
}

/// Sends an image of this machine to another one.
pub(crate) fn image(place: &Place, name: &str, control: Control<'_>) -> Result<(), OperateError> {
    let failed = |text: String| {
        let cause = Cause::Other { machine: place.machine.name(), what: format!("sending {name}"), text };
        OperateError::from(cause)
    };
    let mut save = Machine::Here.command(None, &["docker", "save", name]);
    save.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut save = Owned(save.spawn().map_err(|error| failed(error.to_string()))?);
    let Some(bytes) = save.0.stdout.take() else { return Err(failed("no pipe".to_owned())) };
    // Drops the command at once: it holds our end of the pipe, which would keep the first process waiting for readers after
    // an early end of the second.
    let mut load = {
        let mut command = place.machine.command(None, &["docker", "load", "--quiet"]);
        command.stdin(bytes).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        Owned(command.spawn().map_err(|error| failed(error.to_string()))?)
    };
    let status = loop {
        if let Some(status) = load.0.try_wait().map_err(|error| failed(error.to_string()))? {
            break status;
        }
        control.pause(LOOK)?;
    };
    let saved = save.0.wait().map_err(|error| failed(error.to_string()))?;
    if status.success() && saved.success() {
        return Ok(());
    }
    let mut text = String::new();
    if let Some(mut pipe) = load.0.stderr.take() {
        let _ = pipe.read_to_string(&mut text);
    }
    Err(diagnose(&place.machine.name(), "docker load", &text).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::{NOBODY, scripted};
    use crate::site::{Site, tests::written};
    use std::fs;

    #[test]
    fn what_was_removed_here_is_removed_there() {
        let (folder, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        written(folder.path(), Some("ssh://ada@gate"));
        let site = Site::load(folder.path()).unwrap().on("edge", &scripted(there.path(), &[]));
        let (own, place) = (folder.path().join("edge"), &site.places()[0]);
        fs::write(own.join(".env"), "TIDEMILL_IMAGE=t:2\n").unwrap();
        fs::write(own.join("secrets/join-former"), "x").unwrap();
        super::folder(place, NOBODY).unwrap();
        let far = there.path().join(&place.folder);
        assert!(far.join(".env").exists() && far.join("secrets/join-former").exists());
        fs::remove_file(own.join(".env")).unwrap();
        fs::remove_file(own.join("secrets/join-former")).unwrap();
        super::folder(place, NOBODY).unwrap();
        assert!(far.join("compose.yaml").exists() && far.join("secrets").exists());
        assert!(!far.join(".env").exists() && !far.join("secrets/join-former").exists());
        remove_folder(&place.machine, &place.folder, NOBODY).unwrap();
        assert!(!far.parent().unwrap().exists());
    }
}
