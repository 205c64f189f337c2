//! A deployment in its folder, removed when the test ends.
use crate::cluster::slow_down;
use crate::command::{Outcome, Place, command, free_port, root};
use crate::processes::place;
use serde_json::Value;
use std::process::{Command, Output};
use std::time::Duration;

/// Whether there is an engine and a Compose program; otherwise prints a note.
pub(crate) fn is_there() -> bool {
    let succeeds = |words: &[&str]| {
        Command::new(words[0]).args(&words[1..]).output().is_ok_and(|told| told.status.success())
    };
    let reads = |words: &[&str]| {
        Command::new(words[0])
            .args(&words[1..])
            .output()
            .is_ok_and(|told| told.stdout.iter().any(u8::is_ascii_digit))
    };
    let missing = if !succeeds(&["docker", "info"]) {
        "no container engine answers"
    } else if !reads(&["docker", "compose", "version", "--short"])
        && !succeeds(&["docker-compose", "version"])
    {
        "there is no Compose program"
    } else {
        return true;
    };
    eprintln!("skipped: {missing}");
    assert!(std::env::var_os("TIDEMILL_TEST_ENGINE").is_none(), "TIDEMILL_TEST_ENGINE is set, and {missing}");
    false
}

pub(super) fn docker(words: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new("docker").args(words).output().unwrap();
    assert!(status.success(), "docker {words:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().trim().to_owned()
}

/// An image, removed with this.
pub(super) struct Image(pub(super) String);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["image", "rm", "--force", &self.0]).output();
    }
}

impl Image {
    /// The program under test.
    pub(super) fn of_program(name: &str) -> Self {
        Self::made(name, &[])
    }

    /// The program under test, without and with ffmpeg.
    pub(super) fn with_ffmpeg(name: &str) -> [Self; 2] {
        let plain = Self::made(name, &["--ffmpeg"]);
        let with = Self(format!("{}-ffmpeg", plain.0));
        [plain, with]
    }

    fn made(name: &str, more: &[&str]) -> Self {
        let image = Self(format!("tidemill-test:{name}-{}", std::process::id()));
        let made = Command::new(root().join("scripts/image.sh"))
            .args(["--program", env!("CARGO_BIN_EXE_tidemill"), "--tag", &image.0, "--no-sbom"])
            .args(more)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}{}",
            String::from_utf8_lossy(&made.stdout),
            String::from_utf8_lossy(&made.stderr)
        );
        image
    }

    /// This image with a further line.
    pub(super) fn with(&self, name: &str, line: &str) -> Self {
        let image = Self(format!("{}-{name}", self.0));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("Dockerfile"), format!("FROM {}\n{line}\n", self.0)).unwrap();
        let mut build = Command::new("docker");
        // The builder that every engine has.
        build.env("DOCKER_BUILDKIT", "0").args(["build", "--quiet", "--tag", &image.0]).arg(folder.path());
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        image
    }
}

/// A deployment of the workflow with three locations.
pub(super) struct Deployed {
    pub(super) place: Place,
    /// Name of the workflow and its run.
    name: String,
    /// Name prefix of everything in the engine.
    pub(super) project: String,
    pub(super) image: Image,
    /// The port of the controller on this machine.
    port: u16,
}

impl Drop for Deployed {
    fn drop(&mut self) {
        let _ = self.call(&["down"]);
        // Remains of a failed command.
        let filter = format!("name={}", self.project);
        let names = |words: &[&str]| {
            let told = Command::new("docker").args(words).args(["--filter", &filter]).output();
            String::from_utf8(told.map(|told| told.stdout).unwrap_or_default()).unwrap_or_default()
        };
        for (find, remove) in [
            (&["ps", "--all", "--quiet"][..], &["rm", "--force", "--volumes"][..]),
            (&["volume", "ls", "--quiet"], &["volume", "rm"]),
            (&["network", "ls", "--quiet"], &["network", "rm"]),
        ] {
            for name in names(find).split_whitespace() {
                let _ = Command::new("docker").args(remove).arg(name).output();
            }
        }
    }
}

impl Deployed {
    /// Its files, for an image of the program under test. Each test has its own names in the engine.
    pub(super) fn written(name: &str, more: &[&str]) -> Self {
        Self::written_for(Image::of_program(name), name, more)
    }

    pub(super) fn written_for(image: Image, name: &str, more: &[&str]) -> Self {
        let place = place();
        slow_down(&place);
        Self::written_at(place, image, name, more)
    }

    /// With limits that follow the load.
    pub(super) fn elastic(name: &str) -> Self {
        let place = place();
        slow_down(&place);
        let resources = "resources: {mode: elastic, processors: 0.4, memory: 256MiB}\nrun: {";
        place.change("workflow.yaml", "run: {", resources);
        let (workflow, image) = (place.argument("workflow.yaml"), Image::of_program(name));
        Self::written_at(place, image, name, &["--workflow", &workflow])
    }

    /// A deployment with one worker at one location.
    pub(super) fn small(name: &str) -> Self {
        let place = place();
        slow_down(&place);
        for other in ["hub", "cloud"] {
            place.change(
                "plan.yaml",
                &format!("  - {{id: {other}, tier: {other}, worker_type: small}}\n"),
                "",
            );
        }
        let plan = place
            .read("plan.yaml")
            .replace("worker: hub", "worker: edge")
            .replace("worker: cloud", "worker: edge");
        place.write("plan.yaml", plan);
        Self::written_at(place, Image::of_program(name), name, &[])
    }

    /// In this folder, whose workflow and plan are named `spread`, and whose plan has a worker `edge`.
    pub(super) fn written_at(place: Place, image: Image, name: &str, more: &[&str]) -> Self {
        let name = format!("{name}-{}", std::process::id());
        for file in ["workflow.yaml", "plan.yaml"] {
            place.change(file, "name: spread", &format!("name: {name}"));
        }
        let mut deployed =
            Self { project: format!("tidemill-{name}"), name, place, image, port: free_port() };
        let (plan, out) = (deployed.place.argument("plan.yaml"), deployed.place.argument("deployment"));
        let own = ["deploy", &plan, "--out", &out, "--image", &deployed.image.0];
        command_told(&[&own, more].concat()).expect(0);
        let document = deployed.document();
        document["project"].as_str().unwrap().clone_into(&mut deployed.project);
        deployed.use_port(deployed.port);
        deployed
    }

    /// Sets another port of the controller.
    pub(super) fn use_port(&self, port: u16) {
        let document = self.document();
        let location = document["controller"]["location"].as_str().unwrap();
        self.place.write(&format!("deployment/{location}/.env"), format!("TIDEMILL_PORT={port}\n"));
    }

    /// The deployment's description for programs.
    pub(super) fn document(&self) -> Value {
        serde_json::from_str(&self.place.read("deployment/deployment.json")).unwrap()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn folder(&self) -> String {
        self.place.argument("deployment")
    }

    /// A verb of the deployment.
    pub(super) fn call(&self, words: &[&str]) -> Outcome {
        let (verb, rest) = words.split_first().unwrap();
        command_told(&[&["deployment", verb, &self.folder()][..], rest].concat())
    }

    /// A verb that runs while others are called.
    pub(super) fn begin(&self, words: &[&str]) -> std::process::Child {
        let (verb, rest) = words.split_first().unwrap();
        command(&[&["deployment", verb, &self.folder()][..], rest].concat()).spawn().unwrap()
    }

    /// A verb of its cluster.
    pub(super) fn ask(&self, words: &[&str]) -> Outcome {
        let port = self.port;
        let join = self.place.read("deployment/edge/secrets/join-edge");
        let address = join.lines().next().unwrap();
        let fingerprint = address.rsplit('/').next().unwrap();
        let mut command = command(words);
        command.args(["--token-file", &self.place.argument("deployment/admin.token")]);
        command.env("TIDEMILL_CONTROLLER", format!("tidemill://127.0.0.1:{port}/{fingerprint}"));
        told(&mut command)
    }

    pub(super) fn run(&self) -> Value {
        self.ask(&["status", self.name(), "--output", "json"]).expect(0).json()["run"].clone()
    }

    /// A container as `ps` shows it.
    pub(super) fn service(&self, name: &str) -> Value {
        let all = self.call(&["ps", "--output", "json"]).json();
        let services = all["deployment"]["services"].as_array().unwrap();
        services
            .iter()
            .find(|one| one["service"] == name)
            .unwrap_or_else(|| panic!("no {name} in {all}"))
            .clone()
    }

    #[track_caller]
    pub(super) fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..200 {
            if is_so(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let logs = self.call(&["logs", "--tail", "5"]).stdout;
        panic!("{what}: not in time\n{}{logs}", self.ask(&["events"]).stdout);
    }

    pub(super) fn until_arrived(&self, records: u64) {
        self.until(&format!("{records} records"), |deployed| {
            let run = deployed.run();
            run["arrived"].as_u64().unwrap() >= records || run["state"] == "complete"
        });
    }

    pub(super) fn until_complete(&self) {
        self.until("it is complete", |deployed| deployed.run()["state"] == "complete");
    }

    /// Content of its sinks, fetched through the controller.
    pub(super) fn results(&self) -> Vec<(&'static str, Vec<u8>)> {
        self.fetched(["pairs.jsonl", "counted.csv"]).into()
    }

    /// Files of its sinks with these names.
    pub(super) fn fetched<const N: usize>(&self, files: [&'static str; N]) -> [(&'static str, Vec<u8>); N] {
        let out = self.place.argument("results");
        self.ask(&["results", self.name(), "--out", &out]).expect(0);
        files.map(|file| (file, self.found(file)))
    }

    /// The only file of this name below the folder of results.
    fn found(&self, name: &str) -> Vec<u8> {
        let mut waiting = vec![self.place.path("results")];
        while let Some(folder) = waiting.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                match entry.path().is_dir() {
                    true => waiting.push(entry.path()),
                    false if entry.file_name() == *name => return std::fs::read(entry.path()).unwrap(),
                    false => {}
                }
            }
        }
        panic!("there is no {name} among the results")
    }

    /// Describes its remains in the engine.
    pub(super) fn left(&self) -> String {
        let filter = format!("name={}", self.project);
        [
            &["ps", "--all", "--format", "{{.Names}}"][..],
            &["volume", "ls", "--quiet"],
            &["network", "ls", "--format", "{{.Name}}"],
        ]
        .map(|words| docker(&[words, &["--filter", &filter]].concat()))
        .join("")
    }
}

pub(super) fn told(command: &mut Command) -> Outcome {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

pub(super) fn command_told(words: &[&str]) -> Outcome {
    told(&mut command(words))
}

/// Outputs of one process, in the order of [`Deployed::results`].
pub(super) fn undisturbed() -> Vec<(&'static str, Vec<u8>)> {
    let all = crate::cluster::undisturbed();
    let name = |file: &'static str| file.trim_start_matches("out/");
    all.into_iter()
        .map(|(file, content)| (name(file), content))
        .filter(|(file, _)| *file != "dead.jsonl")
        .collect()
}
