//! Problems are reported with advice, before anything is started.
use super::engine::{Deployed, Image, command_told, docker, is_there};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn a_folder_without_a_deployment_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for verb in [&["up"][..], &["down"], &["ps"], &["deployment", "logs"]] {
        let told = command_told(&[verb, &[path]].concat()).expect(78).stderr;
        assert!(told.contains("there is no deployment") && told.contains("tidemill deploy PLAN"), "{told}");
    }
}

/// Programs of a machine that lacks some.
fn written_without_engine() -> Deployed {
    Deployed::written_for(Image("tidemill-test:none".to_owned()), "nothing", &[])
}

/// `up` with a program `docker` that is this script.
fn up_with(deployed: &Deployed, docker: Option<&str>) -> String {
    let bin = deployed.place.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    if let Some(script) = docker {
        let path = bin.join("docker");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let folder = deployed.folder();
    let mut command = crate::command::command(&["up", &folder]);
    super::engine::told(command.env("PATH", &bin)).expect(69).stderr
}

#[test]
fn what_a_machine_lacks_is_told_with_how_to_get_it() {
    let deployed = written_without_engine();
    let none = up_with(&deployed, None);
    assert!(none.contains("has no program `docker`") && none.contains("apt-get install docker.io"), "{none}");
    let stopped = up_with(
        &deployed,
        Some(
            "echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?' >&2; exit 1",
        ),
    );
    assert!(stopped.contains("does not answer") && stopped.contains("systemctl start docker"), "{stopped}");
    let closed = up_with(
        &deployed,
        Some("echo 'Got permission denied while trying to connect to the Docker daemon socket' >&2; exit 1"),
    );
    assert!(closed.contains("group docker"), "{closed}");
    let info = r#"[ "$1" = info ] && echo '{"ServerVersion":"28","Architecture":"x86_64","DockerRootDir":"/"}' && exit 0"#;
    let bare = up_with(&deployed, Some(&format!("{info}\nexit 1")));
    assert!(bare.contains("neither `docker compose` nor `docker-compose`"), "{bare}");
}

#[test]
fn logs_of_a_deployment_are_another_verb() {
    let deployed = written_without_engine();
    let told = command_told(&["logs", &deployed.folder()]).expect(2).stderr;
    assert!(told.contains("not a run") && told.contains("tidemill deployment logs"), "{told}");
}

#[test]
fn one_at_a_time_changes_a_deployment() {
    let deployed = written_without_engine();
    let folder = deployed.folder();
    let other = std::fs::File::open(&folder).unwrap();
    other.lock().unwrap();
    for verb in [&["up"][..], &["down"], &["deployment", "upgrade"]] {
        let image = &["--image", "tidemill-test:other"][..];
        let more = if verb.contains(&"upgrade") { image } else { &[] };
        let told = command_told(&[verb, &[&folder], more].concat()).expect(69).stderr;
        assert!(told.contains("works on") && told.contains("tidemill ps"), "{told}");
    }
    drop(other);
    let told = up_with(&deployed, None);
    assert!(told.contains("has no program `docker`"), "{told}");
}

#[test]
fn all_that_is_in_the_way_is_told_at_once() {
    if !is_there() {
        return;
    }
    let deployed = written_without_engine();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    deployed.use_port(port);
    let told = deployed.call(&["up"]).expect(69).stderr;
    assert!(told.contains(&format!("port {port} of this machine is taken")), "{told}");
    assert!(
        told.contains("this machine has no image tidemill-test:none") && told.contains("make image"),
        "{told}"
    );
    assert_eq!(deployed.left(), "", "something was started");
}

#[test]
fn an_image_for_other_processors_is_told() {
    if !is_there() {
        return;
    }
    let other = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
    let image = Image(format!("tidemill-test:other-{}", std::process::id()));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let run = |words: &[&str]| {
        let done = Command::new(words[0]).args(&words[1..]).current_dir(folder.path()).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    // An image without a file, in the format of `docker save`.
    run(&["tar", "-cf", "layer.tar", "-T", "/dev/null"]);
    let digest = run(&["sha256sum", "layer.tar"]);
    let digest = digest.split_whitespace().next().unwrap();
    let layers = format!("{{\"type\": \"layers\", \"diff_ids\": [\"sha256:{digest}\"]}}");
    write(
        "config.json",
        &format!(
            "{{\"architecture\": \"{other}\", \"os\": \"linux\", \"config\": {{}}, \"rootfs\": {layers}}}"
        ),
    );
    let name = &image.0;
    write(
        "manifest.json",
        &format!(
            "[{{\"Config\": \"config.json\", \"RepoTags\": [\"{name}\"], \"Layers\": [\"layer.tar\"]}}]"
        ),
    );
    run(&["tar", "-cf", "image.tar", "layer.tar", "config.json", "manifest.json"]);
    docker(&["load", "--quiet", "--input", folder.path().join("image.tar").to_str().unwrap()]);
    let deployed = Deployed::written_for(image, "foreign", &[]);
    let told = deployed.call(&["up"]).expect(69).stderr;
    assert!(told.contains(&format!("is for {other}, but this machine is")), "{told}");
    assert_eq!(deployed.left(), "", "something was started");
}

/// A container that ends at once is reported with its last words, and `down` removes it.
#[test]
#[ignore = "long: make test-long"]
fn a_container_that_does_not_stay_up_is_told_with_its_words() {
    if !is_there() {
        return;
    }
    let image = Image::of_program("ends");
    let bad = image.with("bad", "ENV TIDEMILL_LOG_LEVEL=nonsense");
    let deployed = Deployed::written_for(bad, "ends", &[]);
    let told = deployed.call(&["up", "--wait", "30s"]).expect(69).stderr;
    assert!(
        told.contains("controller at cloud ended with exit code 2") && told.contains("nonsense"),
        "{told}"
    );
    let shown = deployed.call(&["ps"]).expect(1).stdout;
    assert!(shown.contains("not there") && shown.contains("the controller does not answer"), "{shown}");
    deployed.call(&["down"]).expect(0);
    assert_eq!(deployed.left(), "");
    drop(image);
}
