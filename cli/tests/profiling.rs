//! `tidemill profile` measures, resumes after an end of any kind, and leaves nothing.
use crate::command::{Place, command, root, tidemill};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;
use tempfile::TempDir;
use tidemill_spec::profile::{How, Profile, Service};
use tidemill_spec::units::{Percent, TimeSpan};

const INFRASTRUCTURE: &str = "version: 1
name: two-kinds
tiers:
  - id: edge
    workers:
      - {type: half, vcpu: 0.5, price: 0.01 $/h}
      - {type: huge, vcpu: 4096, price: 9 $/h}
      - {type: other, price: 3 $/h, accelerators: [{type: a100}]}
";

/// A new project with an infrastructure.
struct Project {
    folder: TempDir,
}

impl Project {
    fn new(template: &str) -> Self {
        let project = Self { folder: tempfile::tempdir().unwrap() };
        tidemill(&["init", project.path("").to_str().unwrap(), "--template", template]).expect(0);
        std::fs::write(project.path("infrastructure.yaml"), INFRASTRUCTURE).unwrap();
        project
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn argument(&self, file: &str) -> String {
        self.path(file).to_str().unwrap().to_owned()
    }

    /// The command with a budget.
    fn arguments(&self, budget: &str) -> Vec<String> {
        let fixed = ["profile", "--budget", budget, "--backend", "rten", "--output", "json", "--infra"];
        let mut all: Vec<String> = fixed.map(str::to_owned).to_vec();
        all.extend([self.argument("infrastructure.yaml"), self.argument("workflow.yaml")]);
        all
    }

    fn profile(&self) -> Profile {
        Profile::load(self.path("profile/profile.yaml")).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Files with samples so far; all of them can be read.
    fn states(&self) -> usize {
        let entries = std::fs::read_dir(self.path("profile/measured")).into_iter().flatten().flatten();
        let files =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
        files
            .map(|path| {
                let text = std::fs::read_to_string(&path).unwrap();
                serde_json::from_str::<serde_json::Value>(&text)
                    .unwrap_or_else(|error| panic!("{error}: {text}"));
            })
            .count()
    }

    fn start(&self, budget: &str) -> Child {
        let arguments = self.arguments(budget);
        command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap()
    }
}

fn run(arguments: &[String]) -> crate::command::Outcome {
    tidemill(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Control groups of this process that are still there.
fn groups_of(process: u32) -> Vec<PathBuf> {
    fn look(folder: &Path, depth: usize, name: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(name) {
                    found.push(entry.path());
                } else if depth > 0 {
                    look(&entry.path(), depth - 1, name, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    look(Path::new("/sys/fs/cgroup"), 3, &format!("tidemill-profile-{process}-"), &mut found);
    found
}

/// Waits for a condition; the test runner's limit is the timeout.
fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_new_project_is_profiled() {
    let project = Project::new("quickstart");
    let document = run(&project.arguments("1s")).expect(0).json();
    assert!(document["figures"].as_u64().unwrap() >= 8, "{document}");
    assert!(document["not_measured"][0].as_str().unwrap().contains("other has an accelerator"), "{document}");
    let profile = project.profile();
    let how = |name: &str| profile.machine(name).unwrap().how;
    assert_eq!((how("half"), how("huge")), (How::Limited, How::Predicted));
    assert!(profile.machine("other").is_none());
    for operator in ["readings", "valid", "per_sensor", "warm"] {
        for worker in ["half", "huge"] {
            let service = profile.service(operator, None, None, worker);
            let times = service
                .and_then(|service| service.batch(1))
                .unwrap_or_else(|| panic!("{operator} on {worker}"));
            assert!(times.samples.unwrap() >= 5 && times.mean.unwrap().0 > 0, "{times:?}");
        }
    }
    // The file has 201 readings, some of them invalid.
    let ratio = profile.output_per_input("valid", &Default::default());
    assert!(ratio > 0.8 && ratio < 1.0, "{ratio}");
    assert!(profile.output_per_input("per_sensor", &Default::default()) < 0.5);
    assert!(profile.bytes_per_record(("readings", "valid", 0), &Default::default()).unwrap().0 > 50);
    let files =
        ["workflow.yaml", "infrastructure.yaml", "profile/profile.yaml"].map(|file| project.argument(file));
    let checked = tidemill(&["validate", &files[0], &files[1], &files[2]]).expect(0);
    assert!(checked.stdout.contains("profile ok (of the workflow `quickstart`)"), "{}", checked.stdout);
    assert!(checked.stderr.is_empty(), "{}", checked.stderr);
    let shown = tidemill(&["profile", "show", &files[2]]).expect(0).stdout;
    assert!(shown.contains("per_sensor") && shown.contains("half"), "{shown}");
    assert!(!project.path("out").exists(), "sinks write nothing");
    // Only the workflow's name and its digest have changed: it is still that profile, made more certain.
    let again = run(&project.arguments("1ms")).expect(0).json();
    assert_eq!(again["figures"], document["figures"]);
    let difference = tidemill(&["profile", "diff", &files[2], &files[2]]).expect(0).stdout;
    assert_eq!(difference, "no differences\n");
}

/// A device of this machine at a socket; it ends with the test.
struct Served(Child);

impl Served {
    fn start(socket: &Path, kind: &str) -> (Self, String) {
        let (address, cache) = (format!("unix://{}", socket.display()), socket.with_extension("cache"));
        let cache = cache.to_str().unwrap().to_owned();
        let serve = ["device", "serve", "--listen", &address, "--kind", kind, "--backend", "rten"];
        let mut device = command(&[&serve[..], &["--cache", &cache]].concat()).spawn().unwrap();
        let mut told = BufReader::new(device.stderr.take().unwrap());
        let device = Self(device);
        let mut line = String::new();
        while !line.contains("serves at") {
            line.clear();
            assert!(told.read_line(&mut line).unwrap() > 0, "it ended");
        }
        // What else it says must not block it.
        std::thread::spawn(move || std::io::copy(&mut told, &mut std::io::sink()));
        (device, address)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let process = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        let _ = kill_process(process, Signal::INT);
        let _ = self.0.wait();
    }
}

const SEEN: &str = "version: 1
name: seen
sources:
  - {id: images, kind: image_directory, key: key, options: {path: pictures}}
operators:
  - {id: features, kind: ml, input: images, variants: [../../models/vqa/scene-features-tiny.yaml], batching: {max_batch: 2}}
sinks:
  - {id: seen, kind: jsonl, input: features, options: {path: seen.jsonl}}
";

#[test]
fn a_model_is_measured_here_and_on_a_device() {
    let place = Place::empty("seen");
    place.write("workflow.yaml", SEEN);
    let worker = "{type: here, price: 0.01 $/h, devices: [{kind: card}, {kind: other}]}";
    let infrastructure = format!("version: 1\nname: i\ntiers: [{{id: edge, workers: [{worker}]}}]\n");
    place.write("infrastructure.yaml", infrastructure);
    std::fs::create_dir_all(place.path("pictures")).unwrap();
    for number in 0..4 {
        let picture = image::RgbImage::from_fn(320, 240, |x, y| image::Rgb([x as u8, y as u8, number]));
        picture.save(place.path(&format!("pictures/{number}.png"))).unwrap();
    }
    let [workflow, infra, profile] =
        ["workflow.yaml", "infrastructure.yaml", "profile/profile.yaml"].map(|file| place.argument(file));
    let profile_by = |device: &str| {
        tidemill(&["profile", "--budget", "1s", "--infra", &infra, &workflow, "--device", device])
    };
    let wrong = profile_by("cart=unix:///nowhere").expect(2).stderr;
    assert!(wrong.contains("did you mean `card`?"), "{wrong}");
    let wrong = profile_by("card").expect(2).stderr;
    assert!(wrong.contains("the infrastructure has no address of the device `card`"), "{wrong}");
    let wrong = profile_by("card=unix:///nowhere/device").expect(69).stderr;
    assert!(wrong.contains("the device `card` cannot be measured"), "{wrong}");

    let wrong = profile_by("card=oip:http://127.0.0.1:1").expect(2).stderr;
    assert!(wrong.contains("`card` is a server of models"), "{wrong}");

    let (_device, address) = Served::start(&place.path("device.socket"), "card");
    let left = profile_by(&format!("card={address}")).expect(0).stderr;
    assert!(left.contains("other is a device") && !left.contains("card is a device"), "{left}");
    tidemill(&["validate", &workflow, &infra, &profile]).expect(0);
    let found = Profile::load(place.path("profile/profile.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    let machine = found.machine("card").unwrap();
    assert_eq!((machine.how, machine.cores), (How::Measured, None));
    assert!(machine.source.as_ref().unwrap().contains(&address), "{machine:?}");
    let of = |kind: &str| found.service("features", Some("scene-features-tiny"), Some("rten"), kind).unwrap();
    let (here, there) = (of("here"), of("card"));
    // Decoding and scaling a picture is a part of the call here, and none of the device's time.
    let part = here.model_part.unwrap().0;
    assert!(part > 0.0 && part < 100.0, "{here:?}");
    assert_eq!(there.model_part, Some(Percent(100.0)));
    let file = std::fs::metadata(root().join("models/vqa/scene-features-tiny.onnx")).unwrap().len();
    assert_eq!((there.peak_memory.unwrap().0, there.load_time, &there.after_pause), (file, None, &None));
    assert!(here.peak_memory.unwrap().0 > file && here.load_time.is_some());
    assert!(there.batch(1).unwrap().samples.unwrap() >= 5 && there.batch(1).unwrap().mean.unwrap().0 > 0);
    // Sources and operators without models stay where they are.
    assert!(
        found.services.iter().all(|service| service.worker_type == "here" || service.operator == "features")
    );
}

#[test]
#[ignore = "long: make test-long"]
fn models_are_measured_and_scored() {
    let project = Project::new("vqa");
    let document = run(&project.arguments("20s")).expect(0).json();
    assert_eq!(document["accuracies"], 1, "{document}");
    let profile = project.profile();
    let accuracy = profile.accuracy.as_ref().unwrap();
    assert_eq!(accuracy.end_to_end[0].samples, Some(10));
    assert!(!accuracy.models.is_empty() && !accuracy.response.is_empty());
    let model = profile.services.iter().find(|service| service.variant.is_some()).unwrap();
    assert_eq!((model.backend.as_deref(), model.model.as_ref().map(String::len)), (Some("rten"), Some(64)));
    assert!(model.load_time.is_some() && model.peak_memory.is_some_and(|memory| memory.0 > 1 << 20));
    let sizes: Vec<u32> = model.batches.iter().map(|times| times.batch).collect();
    assert!(sizes.len() > 1 && sizes.is_sorted(), "{sizes:?}");
    // The accuracy is that of a run.
    let report = tidemill(&["run", &project.argument("workflow.yaml"), "--rate", "max", "--output", "json"]);
    let percent = report.expect(0).json()["sinks"][0]["accuracy_percent"].as_f64().unwrap();
    assert!((percent - accuracy.end_to_end[0].accuracy.0).abs() < 0.01, "{percent}");

    // A profile of a machine that is a hundred times slower does not fit, and is corrected.
    let mut slow = profile.clone();
    for times in slow.services.iter_mut().flat_map(|service| &mut service.batches) {
        for time in [&mut times.mean, &mut times.p50, &mut times.p75, &mut times.p90, &mut times.p99] {
            *time = time.map(|time| TimeSpan(time.0 * 100));
        }
        times.points.clear();
    }
    std::fs::write(project.path("slow.yaml"), slow.to_yaml().unwrap()).unwrap();
    let files =
        ["slow.yaml", "workflow.yaml", "infrastructure.yaml", "here.yaml"].map(|f| project.argument(f));
    let fit = ["profile", "fit", &files[0], &files[1], "--infra", &files[2], "--out", &files[3]];
    let document = tidemill(&[&fit[..], &["--output", "json"]].concat()).expect(0).json();
    assert_eq!(document["fits"], false);
    let factor = document["overall"].as_f64().unwrap();
    assert!(factor > 0.0 && factor < 0.5, "{document}");
    let corrected = Profile::load(project.path("here.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(corrected.services.iter().all(|service| service.how == How::Predicted));
    let mean = |profile: &Profile| profile.services.last().unwrap().batches[0].mean.unwrap().0;
    assert!(mean(&corrected) < mean(&slow));
    assert!(tidemill(&fit).expect(0).stdout.contains("does not fit this machine"));
}

#[test]
fn a_back_end_whose_program_is_missing_is_left_out_with_what_builds_it() {
    let project = Project::new("vqa");
    let changes = [
        ("models/scene-features-tiny.yaml", "[rten, ort]", "[rten, torch]"),
        ("workflow.yaml", "backend: rten # built in.", "backend: auto #"),
    ];
    for (file, from, to) in changes {
        let text = std::fs::read_to_string(project.path(file)).unwrap();
        assert!(text.contains(from), "{file}: {text}");
        std::fs::write(project.path(file), text.replace(from, to)).unwrap();
    }
    let mut arguments = project.arguments("1s");
    arguments.extend(["--backend".to_owned(), "torch".to_owned()]);
    let mut command = command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let output = command.env("PATH", "").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("scene-features-tiny with torch is left out: "), "{said}");
    assert!(said.contains("scripts/backends.sh torch builds it"), "{said}");
    let services = project.profile().services;
    let backends: Vec<&str> = services.iter().filter_map(|service| service.backend.as_deref()).collect();
    assert!(!backends.is_empty() && backends.iter().all(|backend| *backend == "rten"), "{backends:?}");
}

#[test]
fn a_profile_that_nothing_can_be_compared_with_is_refused() {
    let project = Project::new("vqa");
    std::fs::write(project.path("none.yaml"), "version: 1\nworkflow: {name: vqa}\n").unwrap();
    let files =
        ["none.yaml", "workflow.yaml", "infrastructure.yaml", "here.yaml"].map(|f| project.argument(f));
    let refused =
        tidemill(&["profile", "fit", &files[0], &files[1], "--infra", &files[2], "--out", &files[3]])
            .expect(78);
    assert!(refused.stderr.contains("this machine cannot measure any of its times"), "{}", refused.stderr);
    // The profile of another workflow is reported as such, once, before any computation.
    let other = root().join("examples/vqa/profile.yaml");
    let text = std::fs::read_to_string(other).unwrap();
    let text = text.replace("workflow: {name: vqa,", "workflow: {name: other,");
    let text = text.replace("operator: speech", "operator: hearing");
    std::fs::write(project.path("none.yaml"), text).unwrap();
    for verb in ["fit", "predict"] {
        let refused =
            tidemill(&["profile", verb, &files[0], &files[1], "--infra", &files[2], "--out", &files[3]])
                .expect(78);
        let said = &refused.stderr;
        assert!(said.contains("the profile is of the workflow `other`"), "{said}");
        assert_eq!(said.matches("error[").count(), 1, "{said}");
        assert!(!said.contains("computing outputs"), "{said}");
    }
    assert!(!project.path("here.yaml").exists());
}

#[test]
#[ignore = "long: make test-long"]
fn what_was_measured_survives_a_kill() {
    let project = Project::new("quickstart");
    let mut child = project.start("1min");
    until(|| project.states() >= 2);
    let children =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap_or_default();
    child.kill().unwrap();
    let process = child.id();
    child.wait().unwrap();
    until(|| children.split_whitespace().all(|id| !Path::new("/proc").join(id).exists()));
    let kept = project.states();
    assert!(kept >= 2);
    run(&project.arguments("1ms")).expect(0);
    assert!(project.states() > kept);
    assert_eq!(project.profile().services.len(), 8);
    assert_eq!(groups_of(process), Vec::<PathBuf>::new(), "the next one removes what a killed one left");
}

#[test]
#[ignore = "long: make test-long"]
fn an_interrupt_of_the_whole_group_is_one_too() {
    let project = Project::new("quickstart");
    let mut arguments = project.arguments("1min");
    arguments.push("--fresh".to_owned());
    let mut command = command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let child = command.process_group(0).spawn().unwrap();
    until(|| project.states() >= 2);
    kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("without `--fresh` continues") && !said.contains("it ended"), "{said}");
    assert!(project.states() >= 2, "they are kept");
}

#[test]
fn an_interrupt_ends_it_in_order() {
    let project = Project::new("quickstart");
    let child = project.start("1min");
    until(|| project.states() >= 1);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let process = child.id();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("the same command continues"), "{said}");
    assert!(!project.path("profile/profile.yaml").exists());
    assert_eq!(groups_of(process), Vec::<PathBuf>::new());
}

#[test]
fn profiles_are_shown_and_merged() {
    let golden = root().join("spec/tests/golden/profile.yaml");
    let golden = golden.to_str().unwrap();
    let shown = tidemill(&["profile", "show", golden]).expect(0).stdout;
    let path = root().join("cli/tests/golden/profile.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &shown).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(shown == expected, "{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{shown}", path.display());
    let document = tidemill(&["profile", "show", golden, "--output", "json"]).expect(0).json();
    assert_eq!(document["profile"]["services"][0]["batches"][0]["p75"], "6ms");
    assert_eq!(document["digest"].as_str().map(str::len), Some(64));

    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.yaml");
    let text = std::fs::read_to_string(golden).unwrap().replace("mean: 5.5ms", "mean: 11ms");
    std::fs::write(&other, text.replace("cores: 2", "cores: 4")).unwrap();
    let other = other.to_str().unwrap();
    let difference = tidemill(&["profile", "diff", golden, other]).expect(0).stdout;
    assert!(difference.contains("+100.0 %") && difference.lines().count() == 2, "{difference}");
    // A folder stands for its profile; entries of only one of them are counted.
    std::fs::write(folder.path().join("profile.yaml"), &text).unwrap();
    let folder_name = folder.path().to_str().unwrap();
    let shown = tidemill(&["profile", "show", folder_name]).expect(0).stdout;
    assert!(shown.starts_with("Profile of the workflow"), "{shown}");
    let empty = format!("version: 1\nworkflow: {{name: {}}}\n", Profile::load(golden).unwrap().workflow.name);
    std::fs::write(folder.path().join("empty.yaml"), empty).unwrap();
    let empty = folder.path().join("empty.yaml");
    let counted = tidemill(&["profile", "diff", folder_name, empty.to_str().unwrap()]).expect(0).stdout;
    assert!(counted.starts_with("no common figure differs\n"), "{counted}");
    assert!(counted.contains("figures are only in the first, 0 only in the second"), "{counted}");
    let listed =
        tidemill(&["profile", "diff", folder_name, empty.to_str().unwrap(), "--all"]).expect(0).stdout;
    assert!(listed.lines().count() > 3 && listed.contains(" none"), "{listed}");
    let both = folder.path().join("both.yaml");
    let merged = tidemill(&["profile", "merge", golden, other, "--out", both.to_str().unwrap()]).expect(0);
    assert!(merged.stderr.contains("`medium` is not the same machine as before"), "{}", merged.stderr);
    assert_eq!(Profile::load(&both), Profile::load(other));
    let written = ["profile", "merge", golden, other, "--out", both.to_str().unwrap(), "--output", "json"];
    let document = tidemill(&written).expect(0).json();
    assert_eq!(document["profile"]["services"][0]["batches"][0]["mean"], "11ms", "{document}");
    let printed = tidemill(&["profile", "merge", golden]).expect(0).stdout;
    assert_eq!(Profile::parse(&printed, "printed"), Profile::load(golden));
    std::fs::write(other, "version: 1\nworkflow: {name: another}\n").unwrap();
    let refused = tidemill(&["profile", "merge", golden, other]).expect(78);
    assert!(refused.stderr.contains("error[E0806]"), "{}", refused.stderr);
}

#[test]
fn wrong_arguments_are_told() {
    let project = Project::new("quickstart");
    let workflow = project.argument("workflow.yaml");
    tidemill(&["profile", &workflow]).expect(2);
    tidemill(&["profile"]).expect(2);
    let mut arguments = project.arguments("1s");
    arguments.extend(["--factor".to_owned(), "hlaf=2".to_owned()]);
    let outcome = run(&arguments).expect(2);
    assert!(outcome.stderr.contains("did you mean `half`?"), "{}", outcome.stderr);
    let backend = tidemill(&["profile", &workflow, "--infra", "i.yaml", "--backend", "onnx"]).expect(2);
    assert!(backend.stderr.contains("[possible values: ort, rten, ort:cuda, "), "{}", backend.stderr);
    let minutes = tidemill(&["profile", &workflow, "--infra", "i.yaml", "--budget", "1m"]).expect(2);
    assert!(
        minutes.stderr.contains("write `1min` for minutes, `1ms` for milliseconds"),
        "{}",
        minutes.stderr
    );
}

/// Models with published figures only: everything is valid, but nothing can run.
#[test]
fn published_models_can_be_checked_but_not_run() {
    let file = |name: &str| root().join("examples/published-vqa").join(name).to_str().unwrap().to_owned();
    let files = ["workflow.yaml", "infrastructure.yaml", "profiles.yaml", "models/resnet18.yaml"].map(file);
    let mut arguments = vec!["validate"];
    arguments.extend(files.iter().map(String::as_str));
    let outcome = tidemill(&arguments).expect(0);
    assert!(outcome.stderr.is_empty(), "{}", outcome.stderr);
    let outcome = tidemill(&["run", &files[0]]).expect(78);
    assert!(
        outcome.stderr.contains("error[E0562]: the model `resnet18` is not available"),
        "{}",
        outcome.stderr
    );
    let outcome = tidemill(&["profile", &files[0], "--infra", &files[1]]).expect(78);
    assert!(outcome.stderr.contains("only published figures"), "{}", outcome.stderr);
    assert!(!root().join("examples/published-vqa/out").exists());
}

/// The example's profile, without the figures of one model and one machine, gets them back as predictions.
#[test]
#[ignore = "long: make test-long"]
fn what_was_not_measured_is_predicted_and_marked() {
    let example = |name: &str| root().join("examples/vqa").join(name).to_str().unwrap().to_owned();
    let mut profile = Profile::load(example("profile.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    let is_left = |service: &Service| {
        service.worker_type != "large" && service.variant.as_deref() != Some("scene-features-large")
    };
    let all = profile.services.len();
    profile.services.retain(is_left);
    profile.machines.retain(|machine| machine.worker_type != "large");
    let missing = all - profile.services.len();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let part = profile.to_yaml().unwrap();
    std::fs::write(file("part.yaml"), &part).unwrap();
    let predict = [
        "profile",
        "predict",
        &file("part.yaml"),
        &example("workflow.yaml"),
        "--infra",
        &example("infrastructure.yaml"),
        "--out",
        &file("all.yaml"),
    ];
    let document = tidemill(&[&predict[..], &["--output", "json"]].concat()).expect(0).json();
    // The fetched models are predicted too, on every worker type.
    assert!(document["added"].as_u64().unwrap() as usize >= missing, "{document}");
    let left_out = document["left_out_models"].as_array().unwrap();
    assert!(
        left_out.len() >= 9 && left_out.iter().all(|one| one["factor"].as_f64().unwrap() >= 1.0),
        "{document}"
    );
    assert_eq!(document["left_out_machines"].as_array().map(Vec::len), Some(2));
    let completed = Profile::load(file("all.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    let large =
        completed.service("scene_features", Some("scene-features-large"), Some("ort"), "large").unwrap();
    assert_eq!(large.how, How::Predicted);
    assert!(large.within.unwrap() > 1.0 && large.batches[0].p99.is_some());
    let shown = tidemill(&["profile", "show", &file("all.yaml")]).expect(0).stdout;
    assert!(shown.contains("a factor of"), "{shown}");
    // Earlier predictions are not reported as new.
    let again =
        ["profile", "predict", &file("all.yaml"), predict[3], "--infra", predict[5], "--output", "json"];
    let again = tidemill(&again).expect(0).json();
    assert_eq!((again["added"].as_u64(), again["predicted"].as_array().map(Vec::len)), (Some(0), Some(0)));
    // A corrected profile is used for fitting; one without figures gives an error.
    for service in &mut profile.services {
        service.how = How::Predicted;
    }
    for machine in &mut profile.machines {
        (machine.how, machine.cpu) = (How::Predicted, None);
    }
    std::fs::write(file("part.yaml"), profile.to_yaml().unwrap()).unwrap();
    let corrected = tidemill(&[&predict[..], &["--output", "json"]].concat()).expect(0).json();
    assert_eq!(corrected["added"], document["added"]);
    let new = corrected["predicted"].as_array().unwrap().len() as u64;
    assert_eq!(Some(new), corrected["added"].as_u64());
    std::fs::write(file("part.yaml"), "version: 1\nworkflow: {name: vqa}\n").unwrap();
    let nothing = tidemill(&predict).expect(0).stdout;
    assert!(nothing.contains("no measured times to predict from: `tidemill profile"), "{nothing}");
    std::fs::write(file("part.yaml"), part).unwrap();
    let table = tidemill(&predict).expect(0).stdout;
    assert!(table.contains("machine, predicted from the others"), "{table}");
}
