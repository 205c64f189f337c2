//! Fetches the outputs of a run's sinks from the workers that have them.
use super::asking::{ask, json};
use super::connect::{client, failure};
use crate::answer;
use crate::arguments::{OutputForm, ResultsArguments};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::bytes;
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{ResultView, RunView};
use tidemill_cluster::client::{Client, ClientError, segment};

/// Bytes that are written at once.
const PART: usize = 256 << 10;
/// Tries to continue a transfer for which the controller has no place at the moment, one each [`LOOK`].
const TRIES: u32 = 20;
/// Interval of looks for more rows.
const LOOK: Duration = Duration::from_millis(500);

/// Fetches results, or says which there are.
pub(crate) fn results(arguments: &ResultsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    let mut all: Vec<ResultView> = ask(client.get(&format!("/v1/runs/{}/results", segment(&arguments.run))))?;
    if let Some(sink) = &arguments.sink {
        let known: BTreeSet<String> = all.iter().map(|one| one.sink.clone()).collect();
        all.retain(|one| one.sink == *sink);
        if all.is_empty() {
            let text = format!("run {} has no sink `{sink}` that writes a file", arguments.run);
            let names = known.into_iter().collect::<Vec<_>>().join(", ");
            return Err(Failure::new(Kind::Missing, text)
                .with_help(format!("sinks that write files: {names}"))
                .into());
        }
    }
    match (&arguments.out, &arguments.sink) {
        (Some(folder), _) => into_folder(&client, &arguments.run, &all, folder, terminal),
        (None, Some(_)) => match &all[..] {
            [one] => to_stdout(&client, &arguments.run, one, arguments.follow),
            _ => Err(Failure::new(Kind::Configuration, "the sink writes several files")
                .with_help("fetch them with `--out DIR`")
                .into()),
        },
        (None, None) => {
            list(&all, arguments.output)?;
            Ok(Exit::Success)
        }
    }
}

fn list(all: &[ResultView], form: OutputForm) -> anyhow::Result<()> {
    if form == OutputForm::Json {
        return json("results", &all);
    }
    if all.is_empty() {
        return Ok(writeln!(answer::out(), "no sink of this run writes a file")?);
    }
    let columns =
        [("sink", Side::Left), ("file", Side::Left), ("worker", Side::Left), ("committed", Side::Right)];
    let mut table = Table::new(&columns);
    for one in all {
        let committed = match (one.committed_bytes, one.is_final) {
            (Some(committed), _) => bytes(committed),
            (None, true) => "all".to_owned(),
            (None, false) => "at the end".to_owned(),
        };
        let worker = one.worker.clone().unwrap_or_else(|| "no worker yet".to_owned());
        table.row([one.sink.clone(), one.path.clone(), worker, committed]);
    }
    Ok(table.write(&mut answer::out())?)
}

/// Writes the available bytes from an offset on; returns the offset after them. Requests the rest after a cut.
fn copy(
    client: &Client,
    run: &str,
    of: &ResultView,
    mut offset: u64,
    to: &mut impl Write,
) -> anyhow::Result<u64> {
    let (run, sink, path) = (segment(run), segment(&of.sink), segment(&of.path));
    let path = format!("/v1/runs/{run}/results/{sink}?path={path}");
    let (mut part, mut tries) = (vec![0; PART], 0);
    loop {
        let mut reply = match client.open(&path, offset) {
            Ok(reply) => reply,
            // Much is there already, and the rest is worth a wait.
            Err(ClientError::Refused { status: 503, .. }) if offset > 0 && tries < TRIES => {
                tries += 1;
                std::thread::sleep(LOOK);
                continue;
            }
            Err(error) => return Err(failure(&error).into()),
        };
        tries = 0;
        let begun = offset;
        let cut = loop {
            match reply.read(&mut part) {
                Ok(0) if offset == begun => return Ok(offset),
                Ok(0) => break None,
                Ok(count) => {
                    to.write_all(&part[..count])?;
                    offset += count as u64;
                }
                Err(error) => break Some(error),
            }
        };
        if let Some(cut) = cut.filter(|_| offset == begun) {
            let text = format!("cannot read the results of sink `{}`: {cut}", of.sink);
            return Err(Failure::new(Kind::Unavailable, text).with_help("try again").into());
        }
    }
}

fn to_stdout(client: &Client, run: &str, of: &ResultView, follows: bool) -> anyhow::Result<Exit> {
    let mut offset = 0;
    loop {
        // Rows committed after this request are fetched in the next round, or there are none.
        let is_over = !follows || {
            let view: RunView = ask(client.get(&format!("/v1/runs/{}", segment(run))))?;
            view.state.is_over()
        };
        {
            let mut out = answer::out();
            offset = copy(client, run, of, offset, &mut out.bytes())?;
            out.flush()?;
        }
        if is_over || !answer::is_read() {
            return Ok(Exit::Success);
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns the paths of the files: those of the workflow where they stay in the folder, else the names alone.
fn places(all: &[ResultView], folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut taken = BTreeSet::new();
    let place = |of: &ResultView| {
        let path = Path::new(&of.path);
        let is_plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let name = if is_plain { path } else { Path::new(path.file_name().unwrap_or_default()) };
        let to = folder.join(name);
        let wrong = match (name.as_os_str().is_empty(), to.exists() || to.is_symlink()) {
            (true, _) => {
                Some(format!("sink `{}` writes to `{}`, which is not a file name", of.sink, of.path))
            }
            (_, true) => Some(format!("{} exists already", to.display())),
            _ if !taken.insert(to.clone()) => Some(format!("two sinks would write to {}", to.display())),
            _ => None,
        };
        match wrong {
            None => Ok(to),
            Some(text) => Err(Failure::new(Kind::Configuration, text)
                .with_help("name another folder, or fetch one with `--sink NAME`")),
        }
    };
    all.iter().map(place).collect()
}

fn into_folder(
    client: &Client,
    run: &str,
    all: &[ResultView],
    folder: &Path,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    let places = places(all, folder)?;
    for (of, to) in all.iter().zip(&places) {
        let written = fetch(client, run, of, to);
        let size = written?;
        let what = if of.is_final { "" } else { ", up to the last commit" };
        terminal.note(&format!("{}: {}{what}", to.display(), bytes(size)));
    }
    if all.is_empty() {
        terminal.note("no sink of this run writes a file");
    }
    Ok(Exit::Success)
}

/// The file appears whole; nothing is left of one that was not fetched to its end.
fn fetch(client: &Client, run: &str, of: &ResultView, to: &Path) -> anyhow::Result<u64> {
    let unwritable =
        |error: std::io::Error| Failure::new(Kind::Unavailable, format!("{}: {error}", to.display()));
    let parent = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(unwritable)?;
    let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let part = parent.join(format!(".{name}.part"));
    let fetched = (|| -> anyhow::Result<u64> {
        let mut file: File =
            OpenOptions::new().write(true).create(true).truncate(true).open(&part).map_err(unwritable)?;
        let size = copy(client, run, of, 0, &mut file)?;
        file.sync_all().map_err(unwritable)?;
        fs::rename(&part, to).map_err(unwritable)?;
        Ok(size)
    })();
    if fetched.is_err() {
        drop(fs::remove_file(&part)); // the error is told
    }
    fetched
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(sink: &str, path: &str) -> ResultView {
        let (sink, path) = (sink.to_owned(), path.to_owned());
        ResultView { sink, path, worker: None, committed_bytes: None, is_final: true }
    }

    #[test]
    fn files_stay_in_the_folder_and_replace_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let place = |all: &[ResultView]| places(all, folder.path());
        let found = place(&[result("a", "out/a.csv"), result("b", "/data/b.csv"), result("c", "../c.csv")]);
        let expected = ["out/a.csv", "b.csv", "c.csv"].map(|path| folder.path().join(path));
        assert_eq!(found.unwrap(), expected);
        assert!(place(&[result("a", "/x/b.csv"), result("b", "../b.csv")]).is_err(), "the same twice");
        assert!(place(&[result("a", "..")]).is_err());
        fs::write(folder.path().join("a.csv"), "").unwrap();
        let message = place(&[result("a", "a.csv")]).unwrap_err().to_string();
        assert!(message.contains("exists already"), "{message}");
    }
}
