//! A name for the job of a command, and what a command line probably meant otherwise.
use std::path::Path;

/// Programs that run the program after them.
const INTERPRETERS: [&str; 14] = [
    "bash", "bun", "dash", "deno", "env", "julia", "nice", "node", "perl", "rscript", "ruby", "sh",
    "torchrun", "zsh",
];
/// Options of `tidemill job submit` that people write after `--` by mistake.
const OPTIONS: [&str; 8] = [
    "--checkpoint-within",
    "--cores",
    "--file",
    "--follow",
    "--gang",
    "--memory",
    "--not-preemptible",
    "--result",
];

/// Returns a name for a job of this command: that of its program, or of the script of an interpreter.
pub(super) fn name_of(command: &[String]) -> String {
    let Some((program, arguments)) = command.split_first() else { return "job".to_owned() };
    let name = plain(program);
    let is_interpreter = name.starts_with("python") || INTERPRETERS.contains(&name.as_str());
    match script(arguments).filter(|_| is_interpreter) {
        Some(at) => name_of(arguments.get(at..).unwrap_or_default()),
        None => name,
    }
}

/// Returns the index of the script among the arguments of an interpreter; none: its program is an argument itself.
fn script(arguments: &[String]) -> Option<usize> {
    let is_script = |argument: &String| {
        let is_plain = !argument.starts_with('-') && !argument.contains('=');
        is_plain && argument.contains(char::is_alphabetic) && !argument.contains(char::is_whitespace)
    };
    let first =
        arguments.iter().position(|argument| is_script(argument) || argument == "-c" || argument == "-e")?;
    is_script(arguments.get(first)?).then_some(first)
}

fn plain(program: &str) -> String {
    let file = Path::new(program).file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let plain: String =
        file.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).collect();
    let plain: String =
        plain.trim_start_matches(|c: char| !c.is_ascii_lowercase()).chars().take(40).collect();
    if plain.is_empty() { "job".to_owned() } else { plain }
}

/// Returns hints about a command: options that belong before `--`, and files that tasks will not find. `travels` are the paths of the
/// files of the job, `folder` is the folder of the job.
pub(super) fn hints(command: &[String], travels: &[String], folder: &Path) -> Vec<String> {
    let mut hints = Vec::new();
    let program = command.first().map_or("", String::as_str);
    for argument in command.iter().skip(1) {
        let name = argument.split('=').next().unwrap_or_default();
        if OPTIONS.contains(&name) {
            hints.push(format!(
                "`{name}` is after `--`, so `{program}` gets it; if it is for the job, write it before `--`"
            ));
        }
        let path: &Path = Path::new(argument);
        let plain: std::path::PathBuf =
            path.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect();
        let comes = travels
            .iter()
            .any(|known| plain.starts_with(Path::new(known).strip_prefix(".").unwrap_or(Path::new(known))));
        if path.is_relative() && !comes && folder.join(&plain).is_file() {
            hints.push(format!(
                "tasks do not have the file `{argument}` of this folder; add `--file {argument}` before `--`"
            ));
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::job::is_name;

    fn words(command: &str) -> Vec<String> {
        command.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_command_gives_its_job_a_name() {
        for (command, name) in [
            ("sleep 60", "sleep"),
            ("./Train_all.sh --epochs 3", "train-all"),
            ("/usr/bin/7z a", "z"),
            ("42", "job"),
            ("python3 train.py --epochs 20", "train"),
            ("/usr/bin/python3.11 -u src/train_all.py", "train-all"),
            ("python -m torch.utils", "torch"),
            ("env SEED=7 python3 sweep.py", "sweep"),
            ("nice -n 5 python3 train.py", "train"),
            ("sh -c echo", "sh"),
            ("python3", "python3"),
            ("bash", "bash"),
        ] {
            let found = name_of(&words(command));
            assert_eq!(found, name, "{command}");
            assert!(is_name(&found));
        }
        assert_eq!(name_of(&[]), "job");
        assert_eq!(name_of(&["".to_owned()]), "job");
    }

    #[test]
    fn options_after_the_command_and_missing_files_are_hinted_at() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.py"), "").unwrap();
        let command = words("python3 ./train.py --file data --device cuda");
        let found = hints(&command, &[], folder.path());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("add `--file ./train.py` before `--`"), "{found:?}");
        assert!(found[1].contains("`--file` is after `--`, so `python3` gets it"), "{found:?}");
        for travels in ["train.py", "./train.py", "."] {
            assert_eq!(hints(&words("python3 train.py"), &[travels.to_owned()], folder.path()), [""; 0]);
        }
    }
}
