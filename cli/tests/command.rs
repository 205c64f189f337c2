//! The binary, and folders to run it in.
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// The example that plans are made for.
pub(crate) const VQA: &str = "examples/vqa/workflow.yaml";

/// Files and service levels of its planning problem in tests.
pub(crate) const FILES: [&str; 8] = [
    "--infra",
    "cli/tests/planning/infrastructure.yaml",
    "--profiles",
    "cli/tests/planning/profile.yaml",
    "--slo",
    "latency=none",
    "--slo",
    "accuracy=70",
];

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Checks the exit code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Everything on stdout as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

/// The binary with these arguments, isolated from the user's settings.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    command
        .args(arguments)
        .current_dir(root())
        .env_remove("TIDEMILL_LOG_LEVEL")
        .env_remove("TIDEMILL_LOG_FORMAT")
        .env_remove("COLUMNS")
        .env_remove("TIDEMILL_CACHE")
        .env_remove("TIDEMILL_NET")
        .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs it to its end.
pub(crate) fn tidemill(arguments: &[&str]) -> Outcome {
    let output = command(arguments).output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A separate folder that resembles the repository: `examples/NAME` and `models`.
pub(crate) struct Place {
    folder: TempDir,
    name: String,
}

impl Place {
    /// Creates it with the files of an example; its data and the models are links.
    pub(crate) fn example(name: &str) -> Self {
        let place = Self::empty(name);
        for entry in std::fs::read_dir(root().join("examples").join(name)).unwrap() {
            let entry = entry.unwrap();
            let target = place.path("").join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                if entry.file_name() != "out" {
                    std::os::unix::fs::symlink(entry.path(), target).unwrap();
                }
            } else {
                std::fs::copy(entry.path(), target).unwrap();
            }
        }
        place
    }

    /// Creates it with the models only.
    pub(crate) fn empty(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("examples").join(name)).unwrap();
        std::os::unix::fs::symlink(root().join("models"), folder.path().join("models")).unwrap();
        Self { folder, name: name.to_owned() }
    }

    /// A path in the example's folder.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join("examples").join(&self.name).join(file)
    }

    /// The path as an argument.
    pub(crate) fn argument(&self, file: &str) -> String {
        self.path(file).to_str().unwrap().to_owned()
    }

    /// Writes a file.
    pub(crate) fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Replaces a text in a file; it must be there.
    #[track_caller]
    pub(crate) fn change(&self, file: &str, from: &str, to: &str) {
        let text = self.read(file);
        assert!(text.contains(from), "{file} has no `{from}`");
        self.write(file, text.replace(from, to));
    }

    /// Reads a file.
    #[track_caller]
    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// The JSON objects of a file, one per line.
    #[track_caller]
    pub(crate) fn rows(&self, file: &str) -> Vec<Value> {
        rows(&self.read(file))
    }

    /// Names of the files in a folder, sorted.
    pub(crate) fn files(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A port for a program that cannot choose one itself. It is below the ports that the system gives out, and follows from the
/// number of this process: a port that the system gave out and took back goes to another test before the program has it.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 10_000;
    let own = std::process::id().wrapping_mul(16);
    let ports = (0..COUNT).map(|_| FIRST + own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT);
    let mut ports = ports.map(|port| u16::try_from(port).unwrap());
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port is free")
}

/// JSON objects, one per line; every line is whole.
#[track_caller]
pub(crate) fn rows(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is cut off: {text:?}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Whether these programs are on this machine; otherwise prints a note with their Debian packages.
pub(crate) fn are_there(programs: &[&str], packages: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&&str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    match programs.iter().find(|program| !is_there(program)) {
        None => true,
        Some(missing) => {
            eprintln!("skipped: {missing} is not on this machine: apt-get install {packages}");
            false
        }
    }
}
