//! Cameras that ffmpeg reads, in a child for each: those that encrypt, and those that the session of this program
//! ([`crate::session`]) does not understand.
//!
//! The address, which may have a password, is no argument of the child, because every user of the machine can read these: the
//! child reads it from a file without a name. The supervisor is that of all cameras.
use crate::address::Address;
use crate::camera::{Noted, Origin};
use crate::capture::{Capture, Captures};
use crate::decoder::PictureForm;
use crate::ffmpeg::{Piped, read_all};
use crate::session::Transport;
use crate::supervision::Fault;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};

/// Arguments before the list of addresses.
const INPUT: &str = "-hide_banner -nostdin -nostats -loglevel error -fflags nobuffer -flags low_delay -threads 1 \
                     -probesize 65536 -analyzeduration 500000 -f concat -safe 0 \
                     -protocol_whitelist pipe,rtsp,rtsps,rtp,udp,tcp,tls,crypto -i pipe:0";

/// Reads cameras by children.
pub(crate) struct Streams {
    pub(crate) program: PathBuf,
    pub(crate) transport: Transport,
    pub(crate) form: PictureForm,
}

impl Streams {
    /// A list of one address, in ffmpeg's format.
    fn list(&self, address: &Address) -> String {
        let url = address.secret_url().replace('\'', "%27").replace('\\', "%5C");
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        format!(
            "ffconcat version 1.0\nfile '{url}'\noption rtsp_transport {transport}\noption allowed_media_types video\n"
        )
    }
}

/// A file in memory without a name, to be read from its begin.
fn in_memory(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("tidemill-camera", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

impl Captures for Streams {
    fn start(&self, origin: &Origin, to: Noted) -> Result<Capture, Fault> {
        let Origin::Network(address) = origin else {
            return Err(Fault::Missing(format!("`{origin}` is no address")));
        };
        let no_file = |error: io::Error| Fault::Gone(format!("no memory for the address: {error}"));
        let input = in_memory(&self.list(address)).map_err(no_file)?;
        let piped = Piped::of(None, &self.form);
        let mut command = Command::new(&self.program);
        command.args(INPUT.split_whitespace()).args(piped.arguments(&self.form).split_whitespace());
        let most = self.form.most_bytes();
        let read = move |output: ChildStdout| read_all(output, piped, most, || Some(to.now()), &to);
        let address = address.clone();
        Capture::start_with(command, Stdio::from(input), read, move |messages| explain(&address, messages))
    }
}

/// Explains the end of ffmpeg by its last messages, without any part of the address that is secret.
fn explain(address: &Address, messages: &str) -> Fault {
    let has = |text: &str| messages.contains(text);
    if has("401 Unauthorized") {
        return Fault::unauthorized(address.has_login());
    }
    if has("403 Forbidden") {
        return Fault::forbidden();
    }
    if has("404 Not Found") {
        return Fault::no_path();
    }
    let is_about_it = |line: &&str| !line.is_empty() && !line.contains("pipe:0");
    let line = messages.lines().rfind(is_about_it).unwrap_or("it gave no cause");
    // `[tcp @ 0x55d0c8f4a8c0] Connection refused`: the address in memory says nothing.
    let line = line.split_once("] ").map_or(line, |(_, rest)| rest);
    Fault::Gone(format!("ffmpeg ended: {}", address.redact(line)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::io::Read;

    fn streams(transport: Transport) -> Streams {
        let form = PictureForm { size: None, jpeg: false, max_pixels: 1 };
        Streams { program: PathBuf::new(), transport, form }
    }

    #[test]
    fn the_address_is_in_the_list_and_nothing_else_can_be() {
        let address = Address::parse("rtsps://u'x:p%0aq%27@host:322/a'b?c=\\d");
        // A line break is refused where the address is read.
        assert!(address.is_err());
        let address = Address::parse("rtsps://u'x:p@host:322/a'b?c=\\d").unwrap();
        let list = streams(Transport::Udp).list(&address);
        let lines: Vec<&str> = list.lines().collect();
        assert_eq!(lines[1], "file 'rtsps://u%27x:p@host:322/a%27b?c=%5Cd'");
        assert_eq!(lines[2], "option rtsp_transport udp");
        let mut read = String::new();
        in_memory(&list).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, list);
    }

    #[test]
    fn messages_are_explained_without_secrets() {
        let address = Address::parse("rtsp://viewer:s3cret@10.0.0.7/a").unwrap();
        for (messages, expected) in [
            ("[rtsp @ 0x1] method DESCRIBE failed: 401 Unauthorized\n[in#0] Error", "(401)"),
            ("[rtsp @ 0x1] method DESCRIBE failed: 403 Forbidden", "(403)"),
            ("[rtsp @ 0x1] method DESCRIBE failed: 404 Not Found", "(404)"),
            ("[tcp @ 0x1] Connection to tcp://10.0.0.7:554 failed: Connection refused", "Connection refused"),
            ("Impossible to open 'rtsp://viewer:s3cret@10.0.0.7/a'", "left out"),
            ("[in#0 @ 0x1] Error opening input file pipe:0.", "it gave no cause"),
        ] {
            let fault = explain(&address, messages).to_string();
            assert!(fault.contains(expected), "{fault}");
            assert!(!fault.contains("s3cret") && !fault.contains("viewer"), "{fault}");
        }
    }
}
