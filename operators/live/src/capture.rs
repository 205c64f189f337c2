//! A child process that reads a device of this machine, or a camera of the network, and how it ended.
//!
//! The system ends it with this program, also if that is killed.
use crate::camera::{Noted, Origin};
use crate::supervision::Fault;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use tidemill_machine::children;
use tokio::sync::oneshot;

/// Lines of its messages that are kept.
const LINES: usize = 8;
/// Longest of these lines, bytes.
const LINE: u64 = 512;

/// Starts children that read devices or cameras.
pub(crate) trait Captures: Send + Sync {
    /// Starts reading a device or a camera; records go to `to`.
    ///
    /// # Errors
    /// The fault, if it cannot be started.
    fn start(&self, origin: &Origin, to: Noted) -> Result<Capture, Fault>;
}

/// A child that reads a device. Dropping it ends the child and waits for its threads.
pub(crate) struct Capture {
    child: Child,
    reader: Option<JoinHandle<()>>,
    ended: oneshot::Receiver<Fault>,
}

impl Capture {
    /// Starts a command without input whose output `read` takes until its end. `explain` makes a fault of its last messages.
    pub(crate) fn start(
        command: Command,
        read: impl FnOnce(ChildStdout) + Send + 'static,
        explain: impl FnOnce(&str) -> Fault + Send + 'static,
    ) -> Result<Self, Fault> {
        Self::start_with(command, Stdio::null(), read, explain)
    }

    /// Starts a command that reads `input`; as [`Self::start`].
    pub(crate) fn start_with(
        mut command: Command,
        input: Stdio,
        read: impl FnOnce(ChildStdout) + Send + 'static,
        explain: impl FnOnce(&str) -> Fault + Send + 'static,
    ) -> Result<Self, Fault> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |error: io::Error| Fault::Gone(format!("cannot start {program}: {error}"));
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = children::start(command, Vec::new()).map_err(failed)?;
        let (output, messages) = (child.stdout.take(), child.stderr.take());
        let (tell, ended) = oneshot::channel();
        // From here on dropping it ends the child.
        let mut capture = Self { child, reader: None, ended };
        let (Some(output), Some(messages)) = (output, messages) else {
            return Err(failed(ErrorKind::BrokenPipe.into()));
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work)
        };
        let (last, words) = std::sync::mpsc::sync_channel(1);
        let listen = move || drop(last.send(last_lines(messages)));
        spawn("device-messages", Box::new(listen)).map_err(failed)?;
        let work = move || {
            read(output);
            // The child has closed its output, so it ends.
            let _ = tell.send(explain(&words.recv().unwrap_or_default()));
        };
        capture.reader = Some(spawn("device", Box::new(work)).map_err(failed)?);
        Ok(capture)
    }

    /// Waits for its end. May be cancelled.
    pub(crate) async fn ended(&mut self) -> Fault {
        let gone = |_| Fault::Gone("the reader of the device ended".to_owned());
        (&mut self.ended).await.unwrap_or_else(gone)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // It may have ended by itself and must still be reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Reads messages to their end; returns the last lines.
fn last_lines(messages: impl Read) -> String {
    let (mut reader, mut kept) = (BufReader::new(messages), VecDeque::new());
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return Vec::from(kept).join("\n"),
            Ok(_) => kept.push_back(String::from_utf8_lossy(&line).trim().to_owned()),
        }
        if kept.len() > LINES {
            kept.pop_front();
        }
    }
}

/// Explains the end of a program that reads the device, by its last messages. `noun`: a camera, a microphone.
pub(crate) fn explain(device: &str, noun: &str, group: &str, messages: &str) -> Fault {
    let has = |text: &str| messages.contains(text);
    if has("No such file") || has("No such device") || has("cannot find card") {
        Fault::Gone(format!("there is no {noun} `{device}`: connect it, or check its name"))
    } else if has("Permission denied") || has("Operation not permitted") {
        Fault::Rejected(format!(
            "this user may not open `{device}`: add it to the group `{group}`, then resume the {noun}"
        ))
    } else if has("busy") {
        Fault::Gone(format!("another program uses `{device}`"))
    } else if has("Inappropriate ioctl") || has("Not a video capture device") {
        Fault::Missing(format!("`{device}` is no {noun}"))
    } else {
        let last = messages.lines().rfind(|line| !line.is_empty()).unwrap_or("it gave no cause");
        Fault::Gone(format!("the reader of `{device}` ended: {last}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn wait(capture: &mut Capture) -> Fault {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(capture.ended())
    }

    #[test]
    fn its_output_is_read_and_its_end_explained() {
        let (give, given) = channel();
        let read = move |mut output: ChildStdout| {
            let mut all = String::new();
            output.read_to_string(&mut all).unwrap();
            give.send(all).unwrap();
        };
        let script = "echo data; for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i >&2; done; echo last >&2";
        let said = |messages: &str| Fault::Missing(messages.to_owned());
        let mut capture = Capture::start(shell(script), read, said).unwrap();
        let Fault::Missing(messages) = wait(&mut capture) else { panic!() };
        assert_eq!(given.recv().unwrap(), "data\n");
        assert!(messages.starts_with("line 4\n") && messages.ends_with("\nlast"), "{messages}");
    }

    #[test]
    fn it_ends_when_dropped() {
        let (give, given) = channel();
        let read = move |output: ChildStdout| {
            let mut line = String::new();
            let mut output = BufReader::new(output);
            output.read_line(&mut line).unwrap();
            give.send(line).unwrap();
            assert_eq!(output.read(&mut [0]).unwrap(), 0);
        };
        let capture = Capture::start(shell("echo $$; exec sleep 1000"), read, |text: &str| {
            Fault::Gone(text.to_owned())
        })
        .unwrap();
        let child: u32 = given.recv().unwrap().trim().parse().unwrap();
        // Its end is told to nobody, but explained.
        drop(capture);
        assert!(!std::path::Path::new(&format!("/proc/{child}")).exists());
    }

    #[test]
    fn messages_of_ffmpeg_are_explained() {
        for (messages, expected) in [
            (
                "[in#0 @ 0x1] Error opening input: No such file or directory",
                "there is no camera `/dev/video9`",
            ),
            ("/dev/video9: Permission denied", "add it to the group `video`"),
            ("ioctl(VIDIOC_STREAMON): Device or resource busy", "another program uses `/dev/video9`"),
            ("ioctl(VIDIOC_G_INPUT): Inappropriate ioctl for device", "`/dev/video9` is no camera"),
            ("a\nInvalid argument\n", "ended: Invalid argument"),
            ("", "it gave no cause"),
        ] {
            let fault = explain("/dev/video9", "camera", "video", messages).to_string();
            assert!(fault.contains(expected), "{fault}");
        }
    }
}
