//! `tidemill completions` and `tidemill man`: what shells and `man` want to know of the command line.
use crate::arguments::{self, CompletionsArguments, ManArguments};
use crate::exit::Exit;
use clap::Command;
use std::io::{self, Write};
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};

/// Prints a completion script.
pub(crate) fn completions(asked: &CompletionsArguments) -> anyhow::Result<Exit> {
    // Into memory first: the generator takes a closed pipe for a defect.
    let mut script = Vec::new();
    clap_complete::generate(asked.shell, &mut arguments::command(), "tidemill", &mut script);
    print(&script)
}

/// Prints the page of the whole command, or writes one for each verb.
pub(crate) fn manual(arguments: &ManArguments) -> anyhow::Result<Exit> {
    let Some(folder) = &arguments.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(described()).render(&mut page)?;
        return print(&page);
    };
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(described(), folder));
    written.map_err(|error| unwritable_folder("manual pages", folder, &error, "tidemill man --out DIR"))?;
    Ok(Exit::Success)
}

/// Returns the error of a folder into which a command was to write `what`.
pub(crate) fn unwritable_folder(what: &str, folder: &Path, error: &io::Error, command: &str) -> Failure {
    // The first existing ancestor that is not a folder.
    let file = folder.ancestors().find(|path| path.symlink_metadata().is_ok()).filter(|path| !path.is_dir());
    let why = match file {
        Some(file) => format!("{} is not a folder", file.display()),
        None => error.to_string(),
    };
    Failure::new(Kind::Unavailable, format!("cannot write {what} to {}: {why}", folder.display()))
        .with_help(format!("name another folder, in which you may write: `{command}`"))
}

/// The command line with its usage in words: the manual's own synopsis would list the options without their values.
fn described() -> Command {
    let mut command = arguments::described_command().disable_help_subcommand(true);
    command.build();
    with_usage(command)
}

fn with_usage(mut command: Command) -> Command {
    let usage = command.render_usage().to_string();
    let verbs: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for verb in verbs {
        command = command.mut_subcommand(verb, with_usage);
    }
    command.override_usage(usage.trim_start_matches("Usage:").trim().to_owned())
}

fn print(text: &[u8]) -> anyhow::Result<Exit> {
    let mut out = crate::answer::out();
    out.write_all(text)?;
    out.flush()?;
    Ok(Exit::Success)
}
