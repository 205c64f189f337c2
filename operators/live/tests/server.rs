//! The server of test pictures: a child that ends when its standard input is closed.
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Python of the system, which has the bindings of GStreamer.
const PYTHON: &str = "/usr/bin/python3";
/// Password of the user `viewer`.
pub(crate) const PASSWORD: &str = "s3cr@t/ÄX:7";
/// Longest wait for an answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    pub(crate) port: u16,
    /// What it told meanwhile.
    told: RefCell<Vec<String>>,
}

impl Server {
    /// Starts the server; `None`, with a remark, if its packages are missing and may be.
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        Self::at(0, arguments)
    }

    /// Starts the server at a port, 0 for any.
    pub(crate) fn at(port: u16, arguments: &[&str]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rtsp_server.py");
        let child = Command::new(PYTHON)
            .arg(script)
            .arg(port.to_string())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let missing = |why: String| {
            let is_required = std::env::var("TIDEMILL_TEST_SERVERS").is_ok_and(|value| value == "required");
            assert!(!is_required, "{why}");
            eprintln!("skipped: {why}");
            None
        };
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return missing(format!("cannot start {PYTHON}: {error}")),
        };
        let (orders, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let mut server = Self { child, orders, lines, port, told: RefCell::default() };
        match server.lines.recv_timeout(LIMIT) {
            Ok(line) => {
                server.port = line.strip_prefix("port ").unwrap().parse().unwrap();
                Some(server)
            }
            Err(error) => missing(format!(
                "the server of test pictures gave no port ({error}): install gir1.2-gst-rtsp-server-1.0, python3-gi and \
                 gstreamer1.0-plugins-base, -good, -bad and -ugly"
            )),
        }
    }

    /// Gives an order and waits until it is done.
    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
        loop {
            match self.lines.recv_timeout(LIMIT).unwrap() {
                line if line == "done" => return,
                line => self.told.borrow_mut().push(line),
            }
        }
    }

    /// Returns how often a description of this path was requested so far.
    pub(crate) fn attempts(&self, path: &str) -> usize {
        let mut told = self.told.borrow_mut();
        told.extend(self.lines.try_iter());
        told.iter().filter(|line| line.strip_prefix("describe ") == Some(path)).count()
    }

    /// Returns the address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("rtsp://127.0.0.1:{}/{path}", self.port)
    }

    /// Kills it, as a power cut does. Returns its port.
    pub(crate) fn kill(mut self) -> u16 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
