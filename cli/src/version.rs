//! `tidemill version`: versions of this program and of the libraries found, and the features of this build.
use crate::arguments::{OutputForm, VersionArguments};
use crate::exit::Exit;
use crate::features::{self, FEATURES};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;
use tidemill_inference::backend;

/// Prints versions and features.
pub(crate) fn version(arguments: &VersionArguments) -> anyhow::Result<Exit> {
    // Providers that are not here would be one line each on every machine.
    let here: Vec<&str> = backend::usable(Path::new(".")).into_iter().map(|(name, _)| name).collect();
    let backends: Vec<(&str, Result<String, String>)> = backend::registered()
        .filter(|registered| here.contains(&registered.name))
        .map(|registered| {
            let found = (registered.open)(Path::new("."));
            (registered.name, found.map(|backend| backend.version()).map_err(|error| error.to_string()))
        })
        .collect();
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Table => {
            writeln!(out, "tidemill {}", env!("CARGO_PKG_VERSION"))?;
            for (name, found) in backends {
                match found {
                    Ok(version) => writeln!(out, "backend {name}: {version}")?,
                    Err(error) => writeln!(out, "backend {name}: not available: {error}")?,
                }
            }
            for feature in FEATURES {
                match feature.is_here {
                    true => writeln!(out, "feature {}: {}", feature.name, feature.content)?,
                    false => {
                        let build = format!("{} --features {}", features::BUILD_ALL, feature.name);
                        writeln!(
                            out,
                            "feature {}: not in this build: {}; `{build}`",
                            feature.name, feature.content
                        )?;
                    }
                }
            }
        }
        OutputForm::Json => {
            let found: Map<String, Value> =
                backends.into_iter().map(|(name, found)| (name.to_owned(), json!(found.ok()))).collect();
            let built: Map<String, Value> =
                FEATURES.iter().map(|feature| (feature.name.to_owned(), json!(feature.is_here))).collect();
            let document = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "formats": {"workflow": 1, "infrastructure": 1, "plan": 1, "model": 1, "report": 1},
                "backends": found,
                "features": built,
            });
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
    }
    Ok(Exit::Success)
}
