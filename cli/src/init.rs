//! `tidemill init`: creates a project that runs unchanged.
use crate::arguments::{InitArguments, OutputForm};
use crate::exit::Exit;
use crate::manual::unwritable_folder;
use crate::templates::{self, ProjectFile};
use clap::ValueEnum;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};

/// Writes the files of a template; existing files are left alone.
pub(crate) fn init(arguments: &InitArguments) -> anyhow::Result<Exit> {
    let directory = &arguments.directory;
    let mut files = templates::files(arguments.template);
    let has_readme = directory.join(templates::README).symlink_metadata().is_ok();
    files.retain(|file| file.path != templates::README || !has_readme);
    let in_the_way: Vec<String> = files
        .iter()
        .map(|file| directory.join(&file.path))
        .filter(|path| path.symlink_metadata().is_ok())
        .map(|path| path.display().to_string())
        .collect();
    if !in_the_way.is_empty() {
        let message =
            format!("these files exist already, so nothing was written:\n  {}", in_the_way.join("\n  "));
        return Err(Failure::new(Kind::Configuration, message)
            .with_help("move them away, or name another folder: `tidemill init DIR`")
            .into());
    }
    let mut made = Made::default();
    for file in &files {
        if let Err(error) = made.write(directory, file) {
            made.undo();
            return Err(unwritable_folder(&file.path, directory, &error, "tidemill init DIR").into());
        }
    }
    tell(arguments, &files)?;
    Ok(Exit::Success)
}

/// Created files so far, so that a failure leaves nothing half done.
#[derive(Debug, Default)]
struct Made {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Made {
    fn write(&mut self, directory: &Path, file: &ProjectFile) -> io::Result<()> {
        let path = directory.join(&file.path);
        if let Some(folder) = path.parent() {
            self.folder(folder)?;
        }
        // `create_new`: a file created meanwhile by another process is not replaced either.
        let mut out = OpenOptions::new().write(true).create_new(true).open(&path)?;
        self.files.push(path);
        out.write_all(&file.content)
    }

    fn folder(&mut self, folder: &Path) -> io::Result<()> {
        if folder.as_os_str().is_empty() || folder.is_dir() {
            return Ok(());
        }
        if let Some(above) = folder.parent() {
            self.folder(above)?;
        }
        match std::fs::create_dir(folder) {
            Ok(()) => self.folders.push(folder.to_owned()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Best effort: the caller needs the failure itself.
    fn undo(&self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        for folder in self.folders.iter().rev() {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

fn tell(arguments: &InitArguments, files: &[ProjectFile]) -> io::Result<()> {
    let directory = &arguments.directory;
    let mut next = Vec::new();
    if directory != Path::new(".") {
        next.push(format!("cd {}", quoted(&directory.display().to_string())));
    }
    next.push("tidemill run workflow.yaml".to_owned());
    let template =
        arguments.template.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Table => {
            let bytes: usize = files.iter().map(|file| file.content.len()).sum();
            writeln!(
                out,
                "{}: {} files of the template {template}, {}\n\nnext:\n  {}",
                directory.display(),
                files.len(),
                tidemill_app::figures::bytes(bytes as u64),
                next.join(" && ")
            )?;
        }
        OutputForm::Json => {
            let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
            let document = json!({
                "version": 1, "template": template, "directory": directory.display().to_string(),
                "files": paths, "next": next,
            });
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
    }
    out.flush()
}

/// Quotes a word for a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./+@%:,".contains(c);
    match text.chars().all(plain) && !text.is_empty() {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_quoted_where_they_must_be() {
        assert_eq!(quoted("a/b-1"), "a/b-1");
        assert_eq!(quoted("my project"), "'my project'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
