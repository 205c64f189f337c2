//! C programs, built as users build theirs, as ranks of groups of a service.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::service::{Collectives, Options};
use tidemill_collective::topology::Host;

const PAGE: &str = include_str!("../../../../docs/collectives-c.md");

/// Returns the folder of the library, which lies beside the test program.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let places = [folder, folder.parent().unwrap()];
    let place = places.into_iter().find(|place| place.join("libtidemill_group.so").exists());
    place.unwrap_or_else(|| panic!("no libtidemill_group.so in {places:?}")).to_owned()
}

/// A service in a folder, which also has the programs.
struct Place {
    folder: TempDir,
    _service: Collectives,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = Host { name: "a".to_owned(), ..Host::default() };
        let service = Collectives::start(Options::new(folder.path().join("net.sock"), host)).unwrap();
        Self { folder, _service: service }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    /// Builds a program.
    fn build(&self, source: &Path) -> PathBuf {
        let program = self.folder.path().join("program");
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let library = library();
        let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .arg(source)
            .arg("-I")
            .arg(package.join("include"))
            .arg("-L")
            .arg(&library)
            .arg(format!("-Wl,-rpath,{}", library.display()))
            .arg("-ltidemill_group")
            .output()
            .expect("a C compiler, which the workspace needs anyway");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    fn build_test(&self, name: &str) -> PathBuf {
        self.build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name))
    }

    /// Starts the ranks of a group.
    fn ranks(&self, program: &Path, group: &str, size: u32) -> Vec<Program> {
        let start = |rank: u32| {
            let mut command = Command::new(program);
            command.arg(self.socket()).args([group, &rank.to_string(), &size.to_string()]);
            Program::start(command)
        };
        (0..size).map(start).collect()
    }
}

/// A program that runs. It is killed when this is dropped.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for its end, and returns what it has written.
    fn finish(mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {text}");
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_operation_gives_two_and_four_ranks_what_it_should() {
    let place = Place::new();
    let program = place.build_test("sums.c");
    for size in [2, 4] {
        for rank in place.ranks(&program, &format!("of-{size}"), size) {
            assert_eq!(rank.finish(), "right\n");
        }
    }
}

#[test]
fn a_rank_that_is_killed_is_named_and_the_others_continue() {
    let place = Place::new();
    let program = place.build_test("lost.c");
    let mut ranks = place.ranks(&program, "loses", 4);
    for rank in &mut ranks {
        assert_eq!(rank.line(), "ready");
    }
    ranks[2].child.kill().unwrap();
    let lost = ranks.remove(2);
    for rank in ranks {
        let text = rank.finish();
        assert!(text.starts_with("2 a rank 2 on host a is gone"), "{text}");
    }
    drop(lost);
}

#[test]
fn ranks_that_move_elements_of_different_types_learn_it() {
    let place = Place::new();
    let program = place.build_test("types.c");
    for rank in place.ranks(&program, "types", 2) {
        assert_eq!(rank.finish(), "");
    }
}

#[test]
fn misuse_gives_a_status() {
    let place = Place::new();
    let program = place.build_test("misuse.c");
    for rank in place.ranks(&program, "misused", 1) {
        assert_eq!(rank.finish(), "survived\n");
    }
}

#[test]
fn the_program_of_the_page_sums_also_with_a_rank_in_rust() {
    let place = Place::new();
    let source = place.folder.path().join("mean.c");
    let code = PAGE.split_once("```c\n").unwrap().1.split_once("```").unwrap().0;
    std::fs::write(&source, code).unwrap();
    let program = place.build(&source);
    let start = |rank: &str, place: &Place| {
        let mut command = Command::new(&program);
        command.args([rank, "2"]).env("TIDEMILL_NET", place.socket());
        Program::start(command)
    };
    for rank in [start("0", &place), start("1", &place)] {
        assert_eq!(rank.finish(), "the mean of 2 ranks is 0.5\n");
    }
    // The group has the same name: its service knows nothing of the one before.
    let other = Place::new();
    let first = start("0", &other);
    let options = JoinOptions { service: other.socket(), ..JoinOptions::new("means", 1, 2) };
    let group = Group::join(&options).unwrap();
    let mut buffer = group.buffer(Element::F32, 1_000_000).unwrap();
    buffer.elements_mut().unwrap().fill(5.0_f32);
    group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
    assert_eq!(first.finish(), "the mean of 2 ranks is 2.5\n");
    assert_eq!(buffer.elements_mut::<f32>().unwrap()[999_999], 5.0);
}
