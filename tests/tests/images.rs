//! The image is identical for every build method.
use crate::repository::root;

fn dockerfile(name: &str) -> String {
    let path = root().join("deploy/images").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text from the last `FROM` on.
fn last_stage(text: &str) -> &str {
    let begin = text.rfind("\nFROM ").expect("a stage");
    &text[begin..]
}

#[test]
fn both_dockerfiles_end_with_the_same_stage() {
    let (source, prebuilt) = (dockerfile("Dockerfile"), dockerfile("prebuilt.Dockerfile"));
    assert_eq!(last_stage(&source), last_stage(&prebuilt));
    let base =
        |text: &str| text.lines().find(|line| line.starts_with("ARG RUNTIME_BASE=")).map(str::to_owned);
    assert_eq!(base(&source), base(&prebuilt));
    assert!(base(&source).is_some());
}

/// Parent folders of copied files get the time of the copy, and layers would differ: everything goes to `/`. Instructions
/// of the newer builder are not used.
#[test]
fn layers_can_be_the_same_each_time_and_every_builder_takes_the_files() {
    for name in ["Dockerfile", "prebuilt.Dockerfile", "onnxruntime.Dockerfile", "ffmpeg.Dockerfile"] {
        let text = dockerfile(name);
        for line in last_stage(&text).lines().filter(|line| line.starts_with("COPY ")) {
            assert!(line.ends_with(" /"), "{name}: {line}");
        }
        for word in ["# syntax", "--mount", "--link", "<<", "ADD http"] {
            assert!(!text.contains(word), "{name} has {word}");
        }
    }
}

/// The user, the folders and the entry of images are those that deployments expect.
#[test]
fn images_and_deployments_agree() {
    let text = dockerfile("Dockerfile");
    let user = tidemill_deploy::USER;
    assert!(
        text.contains(&format!("USER {user}:{user}\n")) && text.contains(&format!("--chown={user}:{user} ")),
        "{text}"
    );
    let (controller, worker) =
        (tidemill_deploy::CONTROLLER_METRICS_PORT, tidemill_deploy::WORKER_METRICS_PORT);
    let asked = format!("CMD [\"tidemill\", \"health\", \"127.0.0.1:{controller}\", \"127.0.0.1:{worker}\"]");
    assert!(text.contains("HEALTHCHECK ") && text.contains(&asked), "{text}");
    let layout = dockerfile("lay_out.sh");
    for folder in [tidemill_deploy::STATE_FOLDER, tidemill_deploy::RESULTS_FOLDER] {
        assert!(layout.contains(&format!("\"$folder/state{folder}\"")), "{folder} is not laid out");
    }
}

/// The addition of a second tag is at the path in its variable, and the program reads this variable.
#[test]
fn additions_are_found_in_their_images() {
    let layout = dockerfile("lay_out.sh");
    for (name, variable, reads, file) in [
        (
            "onnxruntime",
            "TIDEMILL_ONNXRUNTIME",
            "operators/inference/src/backend/library.rs",
            "libonnxruntime.so",
        ),
        ("ffmpeg", "TIDEMILL_FFMPEG", "operators/src/video/program.rs", "ffmpeg"),
    ] {
        let text = dockerfile(&format!("{name}.Dockerfile"));
        let place = format!("/usr/lib/tidemill/{file}");
        assert!(text.ends_with(&format!("COPY addition/ /\nENV {variable}={place}\n")), "{text}");
        assert!(layout.contains(&format!("cp \"$addition\" \"$folder/addition{place}\"\n")), "{layout}");
        let source = std::fs::read_to_string(root().join(reads)).expect("it is there");
        assert!(source.contains(&format!("\"{variable}\"")), "{reads} does not read {variable}");
    }
}

/// Redistributing the image with ffmpeg includes its licence.
#[test]
fn the_licence_of_ffmpeg_is_in_its_image() {
    assert!(dockerfile("lay_out.sh").contains("cp \"$here/deploy/images/GPL-3\" \"$documents/GPL-3\"\n"));
    assert!(dockerfile("GPL-3").contains("GNU GENERAL PUBLIC LICENSE"));
}
