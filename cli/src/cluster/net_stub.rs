//! `tidemill net stub`: Rust code for services from .proto files.
use crate::answer;
use crate::arguments::StubArguments;
use crate::exit::Exit;
use std::io::Write;
use std::path::PathBuf;
use tidemill_app::failure::{Failure, Kind};

/// Compiles .proto files to a set of descriptors.
pub(super) fn compile(protos: &[PathBuf], includes: &[PathBuf]) -> Result<Vec<u8>, Failure> {
    if let Some(missing) = protos.iter().find(|proto| !proto.is_file()) {
        return Err(Failure::new(Kind::Missing, format!("{} is no file", missing.display())));
    }
    let mut folders = includes.to_vec();
    if folders.is_empty() {
        for proto in protos {
            let folder = proto.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.map_or_else(|| PathBuf::from("."), PathBuf::from);
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    tidemill_stub::compile(protos, &folders)
        .map_err(|error| Failure::new(Kind::Configuration, error.to_string()))
}

/// Writes stubs.
pub(super) fn stub(arguments: &StubArguments) -> anyhow::Result<Exit> {
    let descriptors = compile(&arguments.proto, &arguments.include)?;
    let code = tidemill_stub::rust(&descriptors)
        .map_err(|error| Failure::new(Kind::Configuration, error.to_string()))?;
    match &arguments.out {
        Some(file) => std::fs::write(file, code)
            .map_err(|error| Failure::new(Kind::Unavailable, format!("{}: {error}", file.display())))?,
        None => answer::out().write_all(code.as_bytes())?,
    }
    Ok(Exit::Success)
}
