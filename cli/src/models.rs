//! `tidemill models`: list, fetch, verify, inspect, try, compile.
mod compile;
mod try_model;

use crate::arguments::{ModelsVerb, OutputForm};
use crate::exit::Exit;
use crate::fetch::fetch;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidemill_app::choice::metric_text;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{bytes, grouped, short};
use tidemill_app::listener::Listener;
use tidemill_app::skeleton;
use tidemill_inference::backend;
use tidemill_inference::error::ModelError;
use tidemill_inference::facts::{ModelFacts, Port};
use tidemill_inference::{inspect, load_manifest, location, verify};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::yaml;

/// Executes one of the verbs.
pub(crate) fn models(verb: &ModelsVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        ModelsVerb::Ls { folder, output } => list(folder, *output, terminal),
        ModelsVerb::Fetch { names, output } => fetch(names, *output, terminal),
        ModelsVerb::Verify { paths, output } => verify_all(paths, *output, terminal),
        ModelsVerb::Inspect { file, manifest: true, .. } => print_skeleton(file),
        ModelsVerb::Inspect { file, output, .. } => inspect_file(file, *output),
        ModelsVerb::Try(arguments) => try_model::try_model(arguments, terminal),
        ModelsVerb::Compile(arguments) => compile::compile(arguments, terminal),
    }
}

/// Advice if there are no manifests to list or check.
const FOLDERS: &str = "lists manifests (YAML) in a folder, by default in `models` of the current folder; \
                       name another one, such as `tidemill models ls my-project/models`; `tidemill init \
                       pictures --template vqa` starts a project with two models";

/// A manifest file, and its content.
type Found = (PathBuf, Result<Manifest, Diagnostics>);

/// Returns manifests in a folder and its subfolders, by path; other YAML files are left out.
fn manifests(folder: &Path) -> Result<Vec<Found>, Failure> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|error| {
            Failure::new(Kind::Configuration, format!("cannot read the folder {}: {error}", folder.display()))
                .with_help(FOLDERS)
        })?;
        for entry in entries.flatten() {
            let path = entry.path();
            // Links are not followed: a cycle would never end.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "yaml" || end == "yml") && is_manifest(&path)
            {
                let manifest = load_manifest(&path);
                found.push((path, manifest));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    if found.is_empty() {
        return Err(Failure::new(Kind::Configuration, format!("no model manifest in {}", folder.display()))
            .with_help(FOLDERS));
    }
    Ok(found)
}

fn is_manifest(path: &Path) -> bool {
    let tree = yaml::read(path).and_then(|source| yaml::parse(&source));
    tree.is_ok_and(|tree| ["sha256", "backends", "licence"].iter().any(|key| tree.get(key).is_some()))
}

fn list(folder: &Path, output: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut table = Table::new(&[
        ("model", Side::Left),
        ("from -> to", Side::Left),
        ("weights", Side::Right),
        ("FLOP", Side::Right),
        ("size", Side::Right),
        ("metric (95 % interval)", Side::Left),
        ("here", Side::Left),
    ]);
    let (mut documents, mut absent, mut wrong) = (Vec::new(), Vec::new(), Diagnostics::new());
    for (path, manifest) in manifests(folder)? {
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(findings) => {
                terminal.findings(&findings);
                wrong.append(findings);
                continue;
            }
        };
        let from: Vec<&str> = manifest.inputs.iter().map(|input| input.column.value.as_str()).collect();
        let mut to: Vec<&str> = manifest.outputs.iter().map(|output| output.column.value.as_str()).collect();
        to.extend(manifest.repeat.iter().map(|repeat| repeat.collect.column.value.as_str()));
        to.extend(manifest.decoder.iter().map(|decoder| decoder.column.value.as_str()));
        to.extend(manifest.generate.iter().map(|generate| generate.column.value.as_str()));
        let size = location::bytes(&manifest, &path);
        let command = location::command(&manifest).filter(|_| size.is_none());
        let missing = location::obtained(&manifest).map_or("missing".to_owned(), |how| format!("not {how}"));
        if command.is_some() {
            absent.push(manifest.clone());
        }
        let here: Vec<String> = manifest
            .backends
            .iter()
            .map(ToString::to_string)
            .filter(|name| size.is_some() && backend::backend(name, &path.with_file_name("")).is_ok())
            .collect();
        table.row([
            manifest.id.value.clone(),
            format!("{} -> {}", from.join(", "), to.join(", ")),
            manifest.parameters.map(short).unwrap_or_default(),
            manifest.flops.map(short).unwrap_or_default(),
            size.map_or(missing, bytes),
            manifest.metric.as_ref().map(metric_text).unwrap_or_default(),
            if here.is_empty() { "none".to_owned() } else { here.join(", ") },
        ]);
        documents.push(json!({
            "id": manifest.id.value, "manifest": path.display().to_string(), "from": from, "to": to,
            "parameters": manifest.parameters, "flops": manifest.flops, "bytes": size,
            "metric": manifest.metric, "backends": manifest.backends.value, "backends_here": here,
            "fetch": command,
        }));
    }
    let document = json!({"version": 1, "models": documents, "findings": wrong});
    print(output, &document, |out| table.write(out))?;
    if !absent.is_empty() {
        let commands = location::commands(&absent).join("\n");
        terminal.note(&format!("\nto get the missing models: {commands}"));
    }
    Ok(if wrong.is_empty() { Exit::Success } else { Exit::Configuration })
}

/// A model in a folder that was not fetched or exported, which is no error.
fn is_absent(file: &Path) -> Option<Manifest> {
    let manifest = Manifest::load(file).ok()?;
    (location::command(&manifest).is_some() && location::bytes(&manifest, file).is_none()).then_some(manifest)
}

fn verify_all(paths: &[PathBuf], output: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    // Models of a folder that were not fetched are skipped; one named explicitly is checked.
    let (mut files, mut seen) = (Vec::new(), HashSet::new());
    for path in paths {
        let is_folder = path.is_dir();
        let found = match is_folder {
            true => manifests(path)?.into_iter().map(|(path, _)| path).collect(),
            false => vec![path.clone()],
        };
        files
            .extend(found.into_iter().filter(|file| seen.insert(file.clone())).map(|file| (file, is_folder)));
    }
    let mut table = Table::new(&[("model", Side::Left), ("", Side::Left), ("backends", Side::Left)]);
    let (mut documents, mut all_usable) = (Vec::new(), true);
    let mut reasons = Diagnostics::new();
    for (file, of_folder) in files {
        if of_folder && let Some(manifest) = is_absent(&file) {
            let obtained = location::obtained(&manifest).unwrap_or("here");
            table.row([manifest.id.value.clone(), format!("not {obtained}"), String::new()]);
            documents.push(
                json!({"manifest": file.display().to_string(), "id": manifest.id.value, "fetched": false}),
            );
            continue;
        }
        match verify(&file, &file.with_file_name("")) {
            Ok(report) => {
                let runs = report.is_usable();
                // Parsed before, or there would be no report.
                let blanks = load_manifest(&file).map(|manifest| manifest.blanks()).unwrap_or_default();
                let usable = runs && blanks.is_empty();
                all_usable &= usable;
                let texts = report.backends.iter().map(|backend| match &backend.result {
                    Ok(()) => format!("{} ok", backend.backend),
                    Err(ModelError::Backend(backend::BackendError::Unavailable { .. })) => {
                        format!("{} not here", backend.backend)
                    }
                    Err(_) => format!("{} FAILED", backend.backend),
                });
                let verdict = match (usable, runs) {
                    (true, _) => "ok",
                    (false, true) => "to fill in",
                    (false, false) => "FAILED",
                };
                table.row([report.id.clone(), verdict.to_owned(), texts.collect::<Vec<_>>().join(", ")]);
                let backends: Vec<Value> = report
                    .backends
                    .iter()
                    .map(|b| json!({"backend": b.backend, "error": b.result.as_ref().err().map(ToString::to_string)}))
                    .collect();
                documents.push(json!({
                    "manifest": file.display().to_string(), "id": report.id, "usable": usable,
                    "backends": backends, "output": report.output.to_string(), "findings": &blanks,
                }));
                reasons.append(blanks);
                let absent = |error: &ModelError| {
                    matches!(error, ModelError::Backend(backend::BackendError::Unavailable { .. }))
                };
                let (absent, failed): (Vec<_>, Vec<_>) =
                    report.backends.into_iter().filter_map(|backend| backend.result.err()).partition(absent);
                // A missing backend proves nothing about the model, unless there is no other.
                if !runs {
                    reasons.append(ModelError::collect(if failed.is_empty() { absent } else { failed }));
                }
            }
            Err(errors) => {
                all_usable = false;
                let name =
                    file.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                table.row([name, "FAILED".to_owned(), String::new()]);
                let found = ModelError::collect(errors);
                documents.push(
                    json!({"manifest": file.display().to_string(), "usable": false, "findings": found}),
                );
                reasons.append(found);
            }
        }
    }
    print(output, &json!({"version": 1, "models": documents}), |out| table.write(out))?;
    if !reasons.is_empty() {
        terminal.findings(&reasons);
    }
    Ok(if all_usable { Exit::Success } else { Exit::Configuration })
}

fn has_manifest_name(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "yaml" || end == "yml")
}

fn facts(model: &Path) -> Result<ModelFacts, Failure> {
    inspect(model).map_err(|error| Failure::new(Kind::Configuration, error.to_string()))
}

fn print_skeleton(file: &Path) -> anyhow::Result<Exit> {
    if has_manifest_name(file) {
        return Err(Failure::new(Kind::Usage, format!("{} is already a manifest", file.display()))
            .with_help("name the ONNX file")
            .into());
    }
    let text = skeleton::manifest(&facts(file)?, &file.with_file_name(""));
    let mut out = crate::answer::out();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Success)
}

fn inspect_file(file: &Path, output: OutputForm) -> anyhow::Result<Exit> {
    let manifest = if has_manifest_name(file) { Some(load_manifest(file)?) } else { None };
    let model = match &manifest {
        Some(manifest) => match location::command(manifest).filter(|_| is_absent(file).is_some()) {
            Some(command) => {
                let obtained = location::obtained(manifest).unwrap_or("here");
                let message = format!("the model `{}` is not {obtained}", manifest.id);
                return Err(Failure::new(Kind::Configuration, message).with_help(command).into());
            }
            None => location::file(manifest, file),
        },
        None => file.to_path_buf(),
    };
    let facts = facts(&model)?;
    // Those that can be used here, with the providers of a library; of a manifest those that it allows.
    let here = backend::usable(&file.with_file_name("")).into_iter();
    let is_allowed = |name: &str| manifest.as_ref().is_none_or(|manifest| manifest.allows(name));
    let here: Vec<&str> =
        here.filter(|(name, is_usable)| *is_usable && is_allowed(name)).map(|(name, _)| name).collect();
    let port = |port: &Port| {
        let shape = port.shape.as_ref().map(|s| s.iter().map(ToString::to_string).collect::<Vec<_>>());
        json!({"name": port.name, "dtype": port.element.to_string(), "shape": shape})
    };
    let document = json!({
        "version": 1, "file": facts.path.display().to_string(), "bytes": facts.file_bytes,
        "sha256": facts.sha256, "parameters": facts.parameters, "nodes": facts.nodes, "opset": facts.opset,
        "producer": facts.producer,
        "inputs": facts.inputs.iter().map(port).collect::<Vec<_>>(),
        "outputs": facts.outputs.iter().map(port).collect::<Vec<_>>(),
        "metadata": facts.metadata, "manifest": manifest, "backends_here": here,
    });
    print(output, &document, |out| {
        write_facts(out, &facts)?;
        writeln!(out, "\nbackends here: {}", here.join(", "))?;
        match &manifest {
            Some(manifest) => {
                writeln!(out, "\n{}: {}", manifest.id, manifest.description)?;
                let same = manifest.sha256.value == facts.sha256;
                writeln!(
                    out,
                    "sha256 {}",
                    if same { "as in the manifest" } else { "DIFFERS from the manifest" }
                )
            }
            None => Ok(()),
        }
    })?;
    Ok(Exit::Success)
}

fn write_facts(out: &mut dyn Write, facts: &ModelFacts) -> io::Result<()> {
    let opset = facts.opset.map_or_else(String::new, |opset| format!(", opset {opset}"));
    let producer = facts.producer.as_ref().map_or_else(String::new, |name| format!(", by {name}"));
    writeln!(out, "{}", facts.path.display())?;
    writeln!(
        out,
        "{}, {} weights, {} nodes{opset}{producer}\nsha256 {}\n",
        bytes(facts.file_bytes),
        grouped(facts.parameters),
        grouped(facts.nodes as u64),
        facts.sha256
    )?;
    let mut table = Table::new(&[("", Side::Left), ("name", Side::Left), ("shape and type", Side::Left)]);
    for (what, ports) in [("input", &facts.inputs), ("output", &facts.outputs)] {
        for port in ports {
            let is_map = facts.maps.contains(&port.name);
            let read = if is_map { "sequence of maps, read as " } else { "" };
            table.row([what.to_owned(), port.name.clone(), format!("{read}{}", port.type_text())]);
        }
    }
    for (key, text) in &facts.metadata {
        let lines = text.lines().count();
        let shown: String = text.chars().take(40).collect();
        let shown = if lines > 1 { format!("{} lines", grouped(lines as u64)) } else { shown };
        let what = if facts.maps.contains(key) { "labels" } else { "metadata" };
        table.row([what.to_owned(), key.clone(), shown]);
    }
    table.write(out)
}

fn print(
    form: OutputForm,
    document: &Value,
    table: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut out = crate::answer::out();
    match form {
        OutputForm::Table => table(&mut out)?,
        OutputForm::Json => {
            serde_json::to_writer_pretty(&mut out, document)?;
            writeln!(out)?;
        }
    }
    Ok(out.flush()?)
}
