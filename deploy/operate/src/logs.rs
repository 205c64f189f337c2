//! Logs of a deployment's containers.
use crate::cause::{Cause, OperateError};
use crate::control::Control;
use crate::engine::Engine;
use crate::equipment::causes;
use crate::process::Owned;
use crate::site::{Place, Site};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;
use tidemill_deploy::deployment::DeployedService;

/// Interval of checks for an interruption.
const LOOK: Duration = Duration::from_millis(100);
/// Lines buffered for the reader.
const WAITING: usize = 1_000;

/// Ends a remote program when its input is closed: sshd by itself does not.
const WHILE_WANTED: &str =
    r#"exec 3<&0; "$@" 3<&- & program=$!; (cat; kill $program) <&3 >/dev/null 2>&1 & wait $program"#;

/// Selection of lines.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Services or workers; empty: all.
    pub services: Vec<String>,
    /// Number of last lines per container.
    pub tail: u32,
    /// Follow new output.
    pub follow: bool,
}

/// A line and its writer: location and service.
type Line = (String, String);

/// Reads the log of a container.
struct Reader {
    child: Owned,
    machine: String,
    who: String,
}

/// Passes lines to `line`, prefixed by location and service, until they end or it returns false. A failure is reported at
/// once, and does not stop the others.
///
/// # Errors
/// The failures, after everything else was passed on; an interruption.
pub fn logs(
    site: &Site,
    options: &LogOptions,
    control: Control<'_>,
    mut line: impl FnMut(&str, &str) -> bool,
) -> Result<(), OperateError> {
    let (sender, receiver) = mpsc::sync_channel::<Line>(WAITING);
    let (mut readers, mut wrong) = (Vec::new(), Vec::new());
    for (place, service) in site.chosen(&options.services)? {
        let before = wrong.len();
        if let Some(Some(reader)) = causes(begin(place, service, options, &sender, control), &mut wrong)? {
            readers.push(reader);
        }
        wrong[before..]
            .iter()
            .for_each(|cause: &Cause| (control.tell)(&format!("{}: {cause}", service.service)));
    }
    drop(sender);
    loop {
        control.check()?;
        match receiver.recv_timeout(LOOK) {
            Ok((who, text)) if line(&who, &text) => {}
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Ok(_) => return Ok(()),
        }
    }
    for Reader { mut child, machine, who } in readers {
        let failed = |text: String| Cause::Other { machine, what: format!("docker logs of {who}"), text };
        match child.0.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => wrong.push(failed(format!("it ended with {status}; see the last lines"))),
            Err(error) => wrong.push(failed(error.to_string())),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(OperateError::of(wrong)) }
}

/// Starts to read the log of a service; `None` if it has no container.
fn begin(
    place: &Place,
    service: &DeployedService,
    options: &LogOptions,
    sender: &SyncSender<Line>,
    control: Control<'_>,
) -> Result<Option<Reader>, OperateError> {
    let found = Engine::of(&place.machine, control).container(&place.location.project, &service.service)?;
    let Some(container) = found else { return Ok(None) };
    let tail = options.tail.to_string();
    let mut words = vec!["docker", "logs", "--tail", &tail];
    if options.follow {
        words.push("--follow");
    }
    words.push(&container.id);
    if options.follow && !place.machine.is_here() {
        words.splice(0..0, ["sh", "-c", WHILE_WANTED, "sh"]);
    }
    let mut command = place.machine.command(None, &words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let machine = place.machine.name();
    let failed = |error: std::io::Error| Cause::Other {
        machine: machine.clone(),
        what: "docker logs".to_owned(),
        text: error.to_string(),
    };
    let mut child = Owned(command.spawn().map_err(failed)?);
    let who = format!("{}/{}", place.location.name, service.service);
    read(child.0.stdout.take(), &who, sender).map_err(failed)?;
    read(child.0.stderr.take(), &who, sender).map_err(failed)?;
    Ok(Some(Reader { child, machine, who }))
}

/// Reads lines of a pipe in a thread, until they end or the receiver is gone.
fn read(pipe: Option<impl Read + Send + 'static>, who: &str, to: &SyncSender<Line>) -> std::io::Result<()> {
    let Some(pipe) = pipe else { return Ok(()) };
    let (who, to) = (who.to_owned(), to.clone());
    let reader = move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while pipe.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            if to.send((who.clone(), text)).is_err() {
                return;
            }
            bytes.clear();
        }
    };
    thread::Builder::new().name("tm-logs".into()).spawn(reader).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::{NOBODY, scripted};
    use crate::site::tests::written;

    /// An engine with a container of each service.
    const DOCKER: &str = r#"case "$1" in
 ps) echo abc ;;
 inspect) for one in controller worker-hub-1 worker-edge-1; do
   list="$list${list:+,}{\"Id\": \"$one\", \"Config\": {\"Labels\": {\"com.docker.compose.service\": \"$one\"}}}"; done
   echo "[$list]" ;;
 logs) for word in "$@"; do last=$word; done; echo "words of $last"; [ "$last" != worker-hub-1 ] ;;
esac"#;

    #[test]
    fn one_that_is_away_keeps_nobody_from_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let (near, away) = (folder.path().join("near"), folder.path().join("away"));
        std::fs::create_dir_all(&away).unwrap();
        std::fs::create_dir_all(&near).unwrap();
        written(folder.path(), Some("ssh://ada@gate"));
        std::fs::write(away.join("unreached"), "").unwrap();
        let site = Site::load(folder.path())
            .unwrap()
            .on("edge", &scripted(&away, &[]))
            .on("hub", &scripted(&near, &[("docker", DOCKER)]));
        let options = LogOptions { services: Vec::new(), tail: 5, follow: false };
        let mut lines = Vec::new();
        let message = logs(&site, &options, NOBODY, |who, text| {
            lines.push(format!("{who} {text}"));
            true
        });
        lines.sort();
        let expected = ["hub/controller words of controller", "hub/worker-hub-1 words of worker-hub-1"];
        assert_eq!(lines, expected);
        let message = message.unwrap_err().to_string();
        assert!(
            message.contains("No route to host") && message.contains("docker logs of hub/worker-hub-1"),
            "{message}"
        );
    }
}
