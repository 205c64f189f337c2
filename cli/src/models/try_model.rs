//! `tidemill models try`: one model on files, texts or rows of a table, and the results.
//!
//! ```text
//! tidemill models try detector.yaml street.jpg --save found.png
//! ```
mod boxes;
mod comparison;
mod given;
mod opened;
mod records;
mod results;
mod runs;
mod shown;
mod tables;

use super::print;
use crate::arguments::TryArguments;
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_inference::backend::placement::Placed;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::{backend, choice};

use self::boxes::Pictures;
use self::records::Record;
use self::results::Results;
use self::runs::Outcome;

/// Executes the verb.
pub(super) fn try_model(arguments: &TryArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let path = &arguments.manifest;
    let opened = opened::open(path)?;
    let blueprint = &opened.blueprint;
    let pictures = Pictures::of(blueprint);
    if let Some(file) = &arguments.save {
        pictures.are_drawn_into(file, &blueprint.manifest.id)?;
    }
    let records = records::collect(arguments, blueprint)?;
    // Libraries of backends are looked for as by `verify`.
    let directory = path.with_file_name("");
    let loaded = choice::load(blueprint, &arguments.backend, &directory);
    let (mut model, choice) = loaded.map_err(|error| opened.refused(path, error))?;
    let version = backend::backend(&choice.backend, &directory).map(|backend| backend.version());
    let version = version.unwrap_or_default();
    if opened.is_draft {
        terminal.note(&format!(
            "by a draft of the manifest, with its guesses: `tidemill models inspect {} --manifest` shows it",
            path.display()
        ));
    }
    if let Some(state) = blueprint.manifest.states.first() {
        terminal.note(&format!(
            "the model keeps `{}` from record to record: the first record here starts with its first values, each other \
             one follows the record before it",
            state.input
        ));
    }
    let outcomes = runs::run(&mut model, &records);
    let compared = arguments
        .compare
        .then(|| comparison::compare(blueprint, model.backend(), &outcomes, &records, &directory));
    let results: Vec<Results> = outcomes
        .iter()
        .zip(&records)
        .map(|(outcome, record)| Results::of(blueprint, record, outcome))
        .collect();
    let saved = match &arguments.save {
        Some(file) => pictures.save(file, &records, &results)?,
        None => Vec::new(),
    };
    let document = document(&Answer {
        blueprint,
        path,
        backend: (&choice.backend, &version, &choice.why()),
        placement: &choice.placement,
        records: &records,
        outcomes: &outcomes,
        results: &results,
        compared: compared.as_deref(),
        saved: &saved,
    });
    let title = format!("{} on {} {version} ({})", blueprint.manifest.id, choice.backend, choice.why());
    print(arguments.output, &document, |out| {
        writeln!(out, "{title}")?;
        for ((record, outcome), result) in records.iter().zip(&outcomes).zip(&results) {
            shown::write(out, record, outcome, result)?;
        }
        if let Some(compared) = &compared {
            comparison::write(out, model.backend(), compared)?;
        }
        saved.iter().try_for_each(|file| writeln!(out, "\nboxes drawn into {}", file.display()))
    })?;
    let is_well =
        outcomes.iter().all(Result::is_ok) && compared.iter().flatten().all(comparison::Compared::is_well);
    Ok(if is_well { Exit::Success } else { Exit::No })
}

/// Everything that is shown.
struct Answer<'a> {
    blueprint: &'a Blueprint,
    path: &'a Path,
    /// Its name, its version, and the reason for its choice.
    backend: (&'a str, &'a str, &'a str),
    /// Providers that compute the model's operators, where its backend has several.
    placement: &'a [Placed],
    records: &'a [Record],
    outcomes: &'a [Outcome],
    results: &'a [Results],
    compared: Option<&'a [comparison::Compared]>,
    saved: &'a [PathBuf],
}

fn document(answer: &Answer<'_>) -> Value {
    let (name, version, why) = answer.backend;
    let records = answer.records.iter().zip(answer.outcomes).zip(answer.results);
    let records: Vec<Value> =
        records.map(|((record, outcome), results)| shown::json(record, outcome, results)).collect();
    let saved: Vec<String> = answer.saved.iter().map(|file| file.display().to_string()).collect();
    json!({
        "version": 1,
        "manifest": answer.path.display().to_string(),
        "id": answer.blueprint.manifest.id,
        "backend": {"name": name, "version": version, "why": why, "placement": answer.placement},
        "records": records,
        "comparison": answer.compared.map(comparison::json),
        "saved": saved,
    })
}

/// A mistake in the arguments.
fn usage(message: impl Into<String>, help: impl Into<String>) -> Failure {
    Failure::new(Kind::Usage, message).with_help(help)
}
