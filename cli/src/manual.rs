//! `tidemill completions` and `tidemill man`: what shells and `man` want to know of the command line.
use crate::arguments::{Arguments, CompletionsArguments, ManArguments};
use crate::exit::{Exit, Failure};
use clap::CommandFactory;
use std::io::{self, Write};

/// Prints a completion script.
pub(crate) fn completions(arguments: &CompletionsArguments) -> anyhow::Result<Exit> {
    // Into memory first: the generator takes a closed pipe for a defect.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "tidemill", &mut script);
    print(&script)
}

/// Prints the page of the whole command, or writes one for each verb.
pub(crate) fn manual(arguments: &ManArguments) -> anyhow::Result<Exit> {
    let Some(folder) = &arguments.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Arguments::command()).render(&mut page)?;
        return print(&page);
    };
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Arguments::command(), folder));
    written.map_err(|error| {
        Failure::new(
            Exit::Configuration,
            format!("cannot write manual pages to {}: {error}", folder.display()),
        )
    })?;
    Ok(Exit::Success)
}

fn print(text: &[u8]) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()?;
    Ok(Exit::Success)
}
