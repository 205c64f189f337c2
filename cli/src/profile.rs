//! `tidemill profile`: measures a workflow's operators, and shows the results.
mod devices;
mod difference;
mod fit;
mod measure;
mod predict;
mod prepare;
mod show;

use crate::arguments::{DeviceCertificateArguments, OutputForm, ProfileArguments, ProfileVerb};
use crate::device::certificate;
use crate::exit::Exit;
use crate::terminal::Terminal;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidemill_app::listener::Listener;
use tidemill_app::output_file::OutputFile;
use tidemill_app::planning::profile_in;
use tidemill_app::preparation::registry;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::profile::{Note, Profile};

/// Name of the hidden verb of a measuring process.
pub(crate) const WORKER: &str = "profile-worker";

/// Executes the verb.
pub(crate) fn profile(arguments: &ProfileArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    match &arguments.verb {
        None => measure::measure(arguments, terminal),
        Some(ProfileVerb::Show { file, output }) => {
            let profile = read(file)?;
            print(*output, &show::document(&profile), |out| show::tables(&profile, out))
        }
        Some(ProfileVerb::Diff { before, after, above, all, output }) => {
            let changes = difference::changes(&read(before)?, &read(after)?, *above);
            print(*output, &difference::document(&changes), |out| difference::table(&changes, *all, out))
        }
        Some(ProfileVerb::Fit(arguments)) => fit::fit(arguments, terminal),
        Some(ProfileVerb::Predict(arguments)) => predict::predict(arguments, terminal),
        Some(ProfileVerb::Merge { files, out, output }) => merge(files, out.as_deref(), *output, terminal),
    }
}

/// The process that measures; see [`tidemill_profiler::worker`].
pub(crate) fn worker(arguments: &DeviceCertificateArguments) -> anyhow::Result<Exit> {
    certificate::hold(arguments)?;
    tidemill_profiler::worker::serve(&registry(), &devices::open)?;
    Ok(Exit::Success)
}

/// Reads a profile, or that of a folder.
fn read(path: &Path) -> Result<Profile, Diagnostics> {
    Profile::load(profile_in(path))
}

fn merge(
    files: &[PathBuf],
    out: Option<&Path>,
    output: OutputForm,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    let mut merged: Option<Profile> = None;
    for file in files {
        let next = read(file)?;
        merged = Some(match merged {
            None => next,
            Some(before) => {
                let both = before.merge(&next)?;
                for note in both.notes {
                    terminal.warning(&match note {
                        Note::OtherWorkflow => {
                            format!("{}: the workflow has changed since the last profile", file.display())
                        }
                        Note::OtherMachine(name) => {
                            format!("{}: `{name}` is not the same machine as before", file.display())
                        }
                    });
                }
                both.profile
            }
        });
    }
    let Some(profile) = merged else { return Ok(Exit::Usage) };
    let text = written(&profile)?;
    match out {
        Some(path) => {
            OutputFile::create(path)?.write(|out| out.write_all(text.as_bytes()))?;
            terminal.note(&format!("{} profiles in {}", files.len(), path.display()));
            match output {
                OutputForm::Table => Ok(Exit::Success),
                OutputForm::Json => print(output, &show::document(&profile), |_| Ok(())),
            }
        }
        None => print(output, &show::document(&profile), |out| out.write_all(text.as_bytes())),
    }
}

/// The text of a profile file.
fn written(profile: &Profile) -> anyhow::Result<String> {
    Ok(format!(
        "# Made by tidemill profile; `tidemill profile show` prints it as tables.\n{}",
        profile.to_yaml()?
    ))
}

fn print(
    output: OutputForm,
    document: &serde_json::Value,
    table: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<Exit> {
    let mut out = crate::answer::out();
    match output {
        OutputForm::Table => table(&mut out)?,
        OutputForm::Json => writeln!(out, "{document:#}")?,
    }
    out.flush()?;
    Ok(Exit::Success)
}
