//! Groups of programs in Python, through `tidemill net serve`. The interpreter is that of TIDEMILL_TEST_PYTHON, else `python3`.
use crate::command::{command, root};
use crate::python::interpreter;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time after which a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// The name of the host.
const HOST: &str = "tower";

/// `tidemill net serve`, and programs that use it. All end with this.
struct Served {
    folder: tempfile::TempDir,
    python: String,
    service: Child,
    programs: Vec<Child>,
}

impl Served {
    /// None: there is no Python, or it lacks one of these packages.
    #[expect(clippy::disallowed_methods, reason = "how long people wait is real time")]
    fn start(packages: &[&str]) -> Option<Self> {
        let python = interpreter()?;
        for package in packages {
            let has = Command::new(&python).args(["-c", &format!("import {package}")]).output().unwrap();
            if !has.status.success() {
                eprintln!("skipped: {python} has no {package}");
                return None;
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let service = Self::service(folder.path());
        let served = Self { folder, python, service, programs: Vec::new() };
        let end = Instant::now() + PATIENCE;
        while !served.path("net.groups").exists() {
            assert!(Instant::now() < end, "the service has no socket for groups");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(served)
    }

    fn service(folder: &Path) -> Child {
        let socket = folder.join("net.sock");
        command(&["net", "serve", "--host", HOST, "--socket", socket.to_str().unwrap()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program in Python, without a rank.
    fn program(&self, script: PathBuf, arguments: &[&str]) -> Command {
        let mut program = Command::new(&self.python);
        program
            .arg(script)
            .args(arguments)
            .current_dir(self.folder.path())
            .env("PYTHONPATH", root().join("operators/python/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONWARNINGS", "ignore")
            .env("TIDEMILL_NET", self.path("net.sock"))
            .env("TEST_HOST", HOST);
        program
    }

    fn script(name: &str) -> PathBuf {
        root().join("cli/tests/python_groups").join(name)
    }

    /// Runs a script at as many ranks, and checks that all but `killed` end well. Returns what they wrote.
    #[track_caller]
    fn run(&mut self, script: &str, ranks: usize, arguments: &[&str], killed: Option<usize>) -> String {
        for rank in 0..ranks {
            let mut program = self.program(Self::script(script), arguments);
            program.env("TIDEMILL_GROUP", "test").env("TIDEMILL_SIZE", ranks.to_string());
            program.env("TIDEMILL_RANK", rank.to_string());
            let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            self.programs.push(child);
        }
        let mut all = String::new();
        let mut faults = Vec::new();
        for (rank, child) in self.programs.drain(..).enumerate() {
            let output = child.wait_with_output().unwrap();
            let text =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            all.push_str(&text.concat());
            if output.status.success() == (killed == Some(rank)) {
                faults.push(format!("rank {rank}: {}", output.status));
            }
        }
        assert!(faults.is_empty(), "{faults:?}\n{all}");
        all
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for child in self.programs.iter_mut().chain([&mut self.service]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn operations_of_all_types_give_what_numpy_computes() {
    let Some(mut served) = Served::start(&["numpy"]) else { return };
    served.run("operations.py", 4, &[], None);
}

#[test]
fn calls_wait_where_they_should_and_wrong_ones_disturb_nothing() {
    let Some(mut served) = Served::start(&[]) else { return };
    served.run("calls.py", 2, &[], None);
}

#[test]
fn a_killed_rank_is_named_and_the_others_continue() {
    let Some(mut served) = Served::start(&[]) else { return };
    let file = served.path("child").display().to_string();
    let text = served.run("failures.py", 3, &[&file], Some(1));
    assert_eq!(text.matches("lost after").count(), 2, "{text}");
}

#[test]
fn a_killed_rank_that_is_started_again_is_waited_for() {
    let Some(mut served) = Served::start(&[]) else { return };
    served.run("rejoin.py", 3, &[], Some(1));
}

#[test]
fn a_service_that_is_killed_is_an_error_of_all_calls_until_it_is_back() {
    let Some(mut served) = Served::start(&[]) else { return };
    let mut program = served.program(Served::script("gone.py"), &[]);
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    served.programs.push(program.spawn().unwrap());
    let mut lines = BufReader::new(served.programs[0].stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "joined\n");
    served.service.kill().unwrap();
    served.service.wait().unwrap();
    served.programs[0].stdin.take().unwrap().write_all(b"\n").unwrap();
    line.clear();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "lost\n");
    served.service = Served::service(served.folder.path());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "again\n");
    assert!(served.programs[0].wait().unwrap().success());
}

#[test]
fn pytorch_trains_over_the_backend_and_over_a_group() {
    let Some(mut served) = Served::start(&["torch"]) else { return };
    let store = served.path("store").display().to_string();
    served.run("torch_training.py", 3, &[&store], None);
}

#[test]
fn pytorch_divides_parameters_among_ranks() {
    let Some(mut served) = Served::start(&["torch.distributed.fsdp"]) else { return };
    let store = served.path("store").display().to_string();
    served.run("torch_sharded.py", 2, &[&store], None);
}

#[test]
fn the_example_ends_with_the_weights_of_a_single_process() {
    let Some(served) = Served::start(&["numpy"]) else { return };
    let mut example = served.program(root().join("examples/collective/logistic.py"), &["--ranks", "4"]);
    let output = example.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let losses: Vec<f64> = text.lines().filter_map(|line| line.split_once("loss ")?.1.parse().ok()).collect();
    assert!(losses.len() == 5 && losses[0] > 0.69 && losses.is_sorted_by(|a, b| a > b), "{text}");
    assert!(text.contains("4 ranks have the same weights"), "{text}");
}

/// A workflow with a step that is a group of its own.
const WORKFLOW: &str = "
version: 1
name: step
sources:
  - {id: rows, kind: csv, options: {path: rows.csv, columns: {n: int64}}}
operators:
  - {id: step, kind: python, input: rows, options: {module: ops.py, class: Step, output: {n: int64}}}
sinks:
  - {id: out, kind: jsonl, input: step, options: {path: out.jsonl}}
";
const STEP: &str = "
import array
import tidemill.collective

class Step:
    def __init__(self):
        self.group = tidemill.collective.init('step', 0, 1)

    def process(self, record):
        return {'n': self.group.all_gather(array.array('q', [record['n']]))[0]}
";

#[test]
fn a_step_may_join_a_group() {
    let Some(served) = Served::start(&[]) else { return };
    for (name, text) in [("workflow.yaml", WORKFLOW), ("ops.py", STEP), ("rows.csv", "n\n5\n7\n")] {
        std::fs::write(served.path(name), text).unwrap();
    }
    let mut run = command(&["run", served.path("workflow.yaml").to_str().unwrap()]);
    run.env("TIDEMILL_PYTHON", &served.python).env("TIDEMILL_NET", served.path("net.sock"));
    let output = run.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = std::fs::read_to_string(served.path("out.jsonl")).unwrap();
    assert!(rows.contains("\"n\":5") && rows.contains("\"n\":7"), "{rows}");
}
