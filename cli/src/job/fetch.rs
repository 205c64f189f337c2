//! `tidemill job fetch`: the files that a job left.
use crate::answer;
use crate::arguments::{FetchJobArguments, OutputForm};
use crate::cluster::{ask, client, json};
use crate::exit::Exit;
use crate::terminal::Terminal;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::bytes;
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{JobResult, JobView};
use tidemill_cluster::client::{Client, segment};
use tidemill_spec::job::JobKind;

/// Fetches files of a job.
pub(crate) fn fetch(arguments: &FetchJobArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = client(&arguments.asked.of)?;
    let job: JobView = ask(client.get(&format!("/v1/jobs/{}", segment(&arguments.job))))?;
    let is_wanted = |result: &&JobResult| {
        arguments.file.as_ref().is_none_or(|file| result.file.path == *file)
            && arguments.task.is_none_or(|rank| result.rank == rank)
    };
    let wanted: Vec<&JobResult> = job.results.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        let text = match &arguments.file {
            Some(file) => format!("job {} left no file `{file}`", job.job),
            None => format!("job {} left no files", job.job),
        };
        let known: BTreeSet<&str> = job.results.iter().map(|result| result.file.path.as_str()).collect();
        let help = match (known.is_empty(), job.state.is_over()) {
            (false, _) => format!("its files: {}", known.into_iter().collect::<Vec<_>>().join(", ")),
            (true, false) => format!("it is {}: wait for its end (`tidemill job logs --follow`)", job.state),
            (true, true) if job.kind == JobKind::Train => {
                "only a complete training leaves its model; a cancelled one leaves nothing".to_owned()
            }
            (true, true) => "name files under `results` in the job".to_owned(),
        };
        return Err(Failure::new(Kind::Missing, text).with_help(help).into());
    }
    let is_one = wanted.iter().map(|result| result.rank).collect::<BTreeSet<_>>().len() == 1;
    let mut written = Vec::new();
    for result in wanted {
        let folder = if is_one { arguments.out.clone() } else { arguments.out.join(result.rank.to_string()) };
        let to = place(&folder, &result.file.path)?;
        copy(&client, result, &to)?;
        terminal.note(&format!("{}: {}", to.display(), bytes(result.file.bytes)));
        written.push(to.display().to_string());
    }
    match arguments.asked.output {
        OutputForm::Json => json("files", &written)?,
        OutputForm::Table => written.iter().try_for_each(|path| writeln!(answer::out(), "{path}"))?,
    }
    Ok(Exit::Success)
}

/// The place of a file in a folder.
fn place(folder: &Path, path: &str) -> Result<PathBuf, Failure> {
    let is_plain =
        Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let to = folder.join(path);
    let wrong = match (is_plain, to.exists() || to.is_symlink()) {
        (false, _) => format!("`{path}` would leave the folder"),
        (true, true) => format!("{} exists already", to.display()),
        (true, false) => return Ok(to),
    };
    Err(Failure::new(Kind::Configuration, wrong).with_help("name another folder (`--out DIR`)"))
}

/// The file appears whole; nothing is left of one that was not fetched to its end.
fn copy(client: &Client, result: &JobResult, to: &Path) -> anyhow::Result<()> {
    let failed = |error: io::Error| Failure::new(Kind::Unavailable, format!("{}: {error}", to.display()));
    let parent = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed)?;
    let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let part = parent.join(format!(".{name}.part"));
    let copied = (|| {
        let mut file = File::create(&part)?;
        io::copy(&mut client.blob(&result.file.digest, result.file.bytes), &mut file)?;
        file.sync_all()?;
        fs::rename(&part, to)
    })();
    if copied.is_err() {
        drop(fs::remove_file(&part)); // the error is reported
    }
    Ok(copied.map_err(failed)?)
}
