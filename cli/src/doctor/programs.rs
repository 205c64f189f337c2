//! Libraries and programs.
use super::Finding;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidemill_inference::backend::library::{self, Found, ONNXRUNTIME};
use tidemill_inference::backend::onnxruntime::OnnxRuntime;
use tidemill_operators::video;

pub(super) fn look() -> Vec<Finding> {
    let mut findings = vec![Finding::ok("rten", "built in: needs no library"), onnxruntime(Path::new("."))];
    findings.push(highs(Path::new(".")));
    findings.extend(python());
    findings.push(program(
        "espeak-ng",
        "only needed to generate the training data of the shipped speech models again",
        "sudo apt-get install espeak-ng",
    ));
    findings.push(ffmpeg(Path::new(".")));
    findings.push(avcodec(Path::new(".")));
    findings
}

fn onnxruntime(directory: &Path) -> Finding {
    let name = "ONNX Runtime";
    let found = library::find(&ONNXRUNTIME, directory);
    match (OnnxRuntime::open(directory), found) {
        (Ok(runtime), _) => {
            let version = tidemill_inference::backend::Backend::version(&runtime);
            let path = runtime.library().display().to_string();
            Finding::ok(name, format!("{version}, {path}; providers: {}", providers(&runtime)))
        }
        // The user requested exactly this file, so no other is tried.
        (Err(error), Found::Named { variable, .. }) => {
            Finding::problem(name, error.to_string()).fix(format!("unset {variable}, or name another file"))
        }
        (Err(error), Found::Searched { candidates, folders }) => {
            let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            let why = match candidates.is_empty() {
                true => format!("not found in {}", looked.join(", ")),
                false => error.to_string(),
            };
            Finding::note(name, format!("{why}. Models run on `rten`, which is slower"))
                .fix("tidemill doctor --fix")
        }
    }
}

/// The providers of the library, which compute on other processors: `cuda` is the backend `ort:cuda`.
fn providers(runtime: &OnnxRuntime) -> String {
    let told = runtime.providers().into_iter().map(|(name, fault)| match fault {
        Some(fault) => format!("{name} (does not start: {fault})"),
        None => name.to_owned(),
    });
    std::iter::once("cpu".to_owned()).chain(told).collect::<Vec<_>>().join(", ")
}

fn highs(directory: &Path) -> Finding {
    match tidemill_app::highs::find(directory) {
        Ok(highs) => Finding::ok("HiGHS", format!("{}, {}", highs.version(), highs.path().display())),
        Err(why) => {
            let without = "Planners use `microlp`, which proves less if memory or latency is scarce";
            Finding::note("HiGHS", format!("{why}. {without}")).fix("tidemill doctor --fix")
        }
    }
}

fn ffmpeg(directory: &Path) -> Finding {
    match video::program::find(directory) {
        Ok(path) => match first_line(&path, &["-version"]) {
            Some(version) => {
                let version = version.strip_prefix("ffmpeg version ").unwrap_or(&version);
                let version = version.split_whitespace().next().unwrap_or_default();
                Finding::ok("ffmpeg", format!("{version}, {}", path.display()))
            }
            None => Finding::note("ffmpeg", format!("{} does not run", path.display()))
                .fix("tidemill doctor --fix"),
        },
        Err(missing) => Finding::note("ffmpeg", format!("{missing}. Sources and sinks of videos need it"))
            .fix("tidemill doctor --fix, or sudo apt-get install ffmpeg"),
    }
}

/// The libraries of ffmpeg, which decode videos in this process.
fn avcodec(directory: &Path) -> Finding {
    let name = "ffmpeg's libraries";
    match video::library::load(directory) {
        Ok(library) => {
            let codec = library.versions().codec;
            Finding::ok(name, format!("libavcodec {codec}, {}", library.folder().display()))
        }
        // The user requested exactly this folder, so no other is tried.
        Err(error) if std::env::var_os(video::library::VARIABLE).is_some_and(|value| !value.is_empty()) => {
            let variable = video::library::VARIABLE;
            Finding::problem(name, error).fix(format!("unset {variable}, or name another folder"))
        }
        Err(error) => {
            Finding::note(name, format!("{error}. Only sources of videos with `decoder: library` need them"))
                .fix("tidemill doctor --fix")
        }
    }
}

fn python() -> Vec<Finding> {
    let purpose = "only needed to fetch models, ONNX Runtime, HiGHS, ffmpeg and its libraries";
    let install = "sudo apt-get install python3 python3-venv python3-pip";
    let Some(path) = in_path("python3") else {
        return vec![Finding::note("python3", format!("not in PATH; {purpose}")).fix(install)];
    };
    let mut findings = vec![match first_line(&path, &["--version"]) {
        Some(version) => Finding::ok("python3", format!("{version}, {}", path.display())),
        None => Finding::note("python3", format!("{} does not run; {purpose}", path.display())).fix(install),
    }];
    // Debian ships the module `venv` without the parts that it needs.
    let complete = runs(&path, &["-c", "import venv, ensurepip"]);
    findings.push(match complete {
        true => Finding::ok("python3 venv", "there"),
        false => Finding::note("python3 venv", format!("missing; {purpose}")).fix(install),
    });
    findings
}

fn program(name: &'static str, purpose: &str, install: &str) -> Finding {
    match in_path(name) {
        Some(path) => Finding::ok(name, path.display().to_string()),
        None => Finding::note(name, format!("not in PATH; {purpose}")).fix(install),
    }
}

/// Searches a program as a shell does.
fn in_path(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(executable)
}

fn runs(program: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn first_line(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.lines().next().map(str::to_owned)).flatten()
}
