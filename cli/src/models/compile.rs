//! `tidemill models compile`: an ONNX file becomes a module of Apache TVM, which `device: proxy:tvm` computes.
//!
//! ```text
//! tidemill models compile detector.yaml --tune 2min
//! ```
mod environment;
mod kept;
mod script;

use super::{facts, has_manifest_name};
use crate::arguments::CompileArguments;
use crate::exit::Exit;
use crate::terminal::Terminal;
use script::Compiled;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{bytes, milliseconds};
use tidemill_app::listener::Listener;
use tidemill_inference::facts::ModelFacts;
use tidemill_inference::{load_manifest, location};
use tidemill_spec::digest::sha256;

/// Name of the back end in manifests.
const BACKEND: &str = "tvm";
/// A difference from ONNX Runtime that is more than rounding of 32-bit floats, as a part of the largest output.
const ROUNDED: f64 = 1e-3;

/// A model to compile.
struct Model {
    facts: ModelFacts,
    /// Folder that paths of its manifest start from.
    folder: PathBuf,
    /// Back ends of its manifest, or those that a new one may have.
    backends: Vec<String>,
}

/// Executes the verb.
pub(super) fn compile(arguments: &CompileArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let model = open(&arguments.model)?;
    let kept = kept::Kept::of(&model.facts, arguments)?;
    let (compiled, was_kept) = match kept.read() {
        Some(compiled) => (compiled, true),
        None => {
            let python = environment::python(&model.folder)?;
            (
                kept.write(|file| {
                    script::run(&python, &model.facts.path, arguments, file, &kept.records(), terminal)
                })?,
                false,
            )
        }
    };
    let file = match &arguments.file {
        Some(file) => file.clone(),
        None => model.folder.join(model.facts.path.with_extension("so").file_name().unwrap_or_default()),
    };
    let module = kept.copy_to(&file)?;
    let mut out = crate::answer::out();
    write_outcome(&mut out, &compiled, &file, module.len() as u64, was_kept)?;
    write_lines(&mut out, &model, &file, &sha256(&module))?;
    out.flush()?;
    if let Some(advice) = advice(&compiled, arguments) {
        terminal.note(&advice);
    }
    Ok(Exit::Success)
}

/// Reads a manifest with its ONNX file, or an ONNX file alone.
fn open(path: &Path) -> anyhow::Result<Model> {
    if !has_manifest_name(path) {
        let folder = path.with_file_name("");
        return Ok(Model { facts: facts(path)?, folder, backends: vec!["ort".to_owned()] });
    }
    let manifest = load_manifest(path)?;
    let wrong = |message: String, help: &str| Failure::new(Kind::Configuration, message).with_help(help);
    if manifest.file.is_empty() {
        let message = format!("the manifest {} names no ONNX file", path.display());
        return Err(wrong(message, "name the file that is to be compiled under `file`").into());
    }
    if manifest.decoder.is_some() {
        let message =
            format!("the model `{}` has a decoder, so all its backends load the same files", manifest.id);
        return Err(wrong(message, "compute it by `ort` or `rten`").into());
    }
    let facts = facts(&location::file(&manifest, path))?;
    if facts.sha256 != manifest.sha256.value {
        let message = format!(
            "{} has the sha256 {}, and its manifest says {}",
            facts.path.display(),
            facts.sha256,
            manifest.sha256
        );
        return Err(wrong(message, "get the right file, or correct `sha256`").into());
    }
    let backends = manifest.backends.iter().map(ToString::to_string).collect();
    Ok(Model { facts, folder: location::folder(&manifest, path), backends })
}

fn write_outcome(
    out: &mut dyn Write,
    compiled: &Compiled,
    file: &Path,
    size: u64,
    was_kept: bool,
) -> io::Result<()> {
    let how = match was_kept {
        true => "compiled before".to_owned(),
        false => format!("compiled in {} s", compiled.seconds.round()),
    };
    writeln!(out, "{}: {}, {how}", file.display(), bytes(size))?;
    if compiled.trials > 0 {
        let (faster, all, trials) = (compiled.searched, compiled.functions, compiled.trials);
        writeln!(out, "{trials} trials found faster code for {faster} of {all} functions")?;
    }
    let records = compiled.batch.map_or_else(String::new, |batch| format!(" of {batch} {}", records(batch)));
    write!(out, "a run{records} takes {}", milliseconds(compiled.tvm_ms))?;
    match (compiled.ort_ms, compiled.difference) {
        (Some(other), Some(difference)) => {
            writeln!(out, ", {} by ONNX Runtime, each with one thread", milliseconds(other))?;
            writeln!(out, "largest difference of the outputs: {difference:.1e} of the largest one")?;
        }
        _ => writeln!(out, " with one thread")?,
    }
    Ok(())
}

fn records(count: u64) -> &'static str {
    if count == 1 { "record" } else { "records" }
}

/// Writes the lines of the manifest.
fn write_lines(out: &mut dyn Write, model: &Model, file: &Path, digest: &str) -> io::Result<()> {
    let mut backends = model.backends.clone();
    if !backends.iter().any(|backend| backend == BACKEND) {
        backends.push(BACKEND.to_owned());
    }
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (file, folder) = (absolute(file), absolute(&model.folder));
    let named = file.strip_prefix(&folder).unwrap_or(&file);
    // A text in JSON is one in YAML.
    let named = serde_json::to_string(&named.to_string_lossy()).unwrap_or_default();
    writeln!(out, "\nin the manifest:\nbackends: [{}]", backends.join(", "))?;
    writeln!(out, "artifacts:\n  {BACKEND}: {{file: {named}, sha256: {digest}}}")
}

/// Advice about a module that is slow or rounds.
fn advice(compiled: &Compiled, arguments: &CompileArguments) -> Option<String> {
    let mut lines = Vec::new();
    if compiled.difference.is_some_and(|difference| difference > ROUNDED) {
        lines.push(
            "the outputs differ by more than floats round, as those of models of 8 bits do: try the model on files of yours"
                .to_owned(),
        );
    }
    if compiled.ort_ms.is_some_and(|other| other < compiled.tvm_ms) {
        lines.push(match arguments.tune {
            None => {
                "ONNX Runtime is faster here: `--tune 2min` searches faster code by measurement".to_owned()
            }
            Some(_) => "ONNX Runtime is faster here: a longer `--tune` continues the search".to_owned(),
        });
    }
    if compiled.batch.is_none() {
        lines.push("all sizes are fixed, also the number of records: a run with others fails".to_owned());
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled() -> Compiled {
        serde_json::from_str(
            r#"{"batch": 8, "functions": 12, "seconds": 65.2, "trials": 90, "searched": 7, "tvm_ms": 4.5, "ort_ms": 2.25,
                "difference": 5e-7, "shapes": {}}"#,
        )
        .expect("a message of the script")
    }

    #[test]
    fn times_stand_beside_those_of_onnx_runtime() {
        let mut out = Vec::new();
        write_outcome(&mut out, &compiled(), Path::new("m.so"), 4096, false).expect("in memory");
        let text = String::from_utf8(out).expect("a text");
        assert!(
            text.contains("compiled in 65 s\n90 trials found faster code for 7 of 12 functions\n"),
            "{text}"
        );
        assert!(text.contains("a run of 8 records takes 4.5") && text.contains("by ONNX Runtime"), "{text}");
        assert!(text.contains("5.0e-7 of the largest one"), "{text}");
    }

    #[test]
    fn the_lines_name_the_file_as_the_manifest_does() {
        let facts = ModelFacts::of_bytes(Path::new("models/m.onnx"), b"m");
        let model = Model {
            facts,
            folder: PathBuf::from("/models"),
            backends: vec!["ort".to_owned(), "tvm".to_owned()],
        };
        let lines = |file: &str| {
            let mut out = Vec::new();
            write_lines(&mut out, &model, Path::new(file), "90ab").expect("in memory");
            String::from_utf8(out).expect("a text")
        };
        let text = lines("/models/so/m.so");
        assert!(
            text.ends_with("backends: [ort, tvm]\nartifacts:\n  tvm: {file: \"so/m.so\", sha256: 90ab}\n"),
            "{text}"
        );
        assert!(lines("/elsewhere/m.so").contains("{file: \"/elsewhere/m.so\","));
    }
}
