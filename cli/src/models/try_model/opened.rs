//! The model to try: a manifest with its file, or an ONNX file by a draft of its manifest.
use super::super::{facts, has_manifest_name};
use std::path::Path;
use std::sync::Arc;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::skeleton;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::manifest::{BLANK_COLUMN, BLANK_DESCRIPTION, BLANK_LICENCE, BLANK_ORIGIN, Manifest};

/// A model whose manifest and file agree.
pub(super) struct Opened {
    pub(super) blueprint: Arc<Blueprint>,
    /// Whether the manifest is a draft.
    pub(super) is_draft: bool,
}

impl Opened {
    /// Returns the error of a model that cannot be loaded: of a draft, with the command that writes the manifest.
    pub(super) fn refused(&self, path: &Path, error: ModelError) -> anyhow::Error {
        let findings = error.into_diagnostics();
        if self.is_draft { incomplete(path, &findings).into() } else { findings.into() }
    }
}

/// Opens a manifest, or an ONNX file if the draft of its manifest has everything that a run needs.
///
/// # Errors
/// Every mistake of the manifest; what the draft lacks.
pub(super) fn open(path: &Path) -> anyhow::Result<Opened> {
    if has_manifest_name(path) {
        let blueprint = Blueprint::read(path).map_err(ModelError::collect)?;
        return Ok(Opened { blueprint, is_draft: false });
    }
    let draft = skeleton::manifest(&facts(path)?, &path.with_file_name(""));
    let manifest = Manifest::parse(&draft, &format!("{} (draft)", path.display()))
        .map_err(|findings| incomplete(path, &findings))?;
    let manifest = filled(manifest).map_err(|findings| incomplete(path, &findings))?;
    let blueprint = Blueprint::check(manifest, &path.with_extension("yaml"))
        .map_err(|errors| incomplete(path, &ModelError::collect(errors)))?;
    Ok(Opened { blueprint, is_draft: true })
}

/// Replaces the placeholders of columns by the names of the model's inputs and outputs; others that a run does not need
/// stay.
///
/// # Errors
/// Placeholders that a run needs.
fn filled(mut manifest: Manifest) -> Result<Manifest, Diagnostics> {
    let is_needed = |text: &str| {
        ![BLANK_DESCRIPTION, BLANK_LICENCE, BLANK_ORIGIN].contains(&text) && !text.starts_with(BLANK_COLUMN)
    };
    let blanks = manifest.blanks();
    let needed: Diagnostics = blanks
        .iter()
        .filter(|blank| blank.message.split('`').nth(1).is_none_or(is_needed))
        .cloned()
        .collect();
    needed.into_result(())?;
    let mut taken = Vec::new();
    let inputs = manifest.inputs.iter_mut().map(|input| (&input.name.value, &mut input.column.value));
    name_columns(inputs, &mut taken);
    let outputs = manifest.outputs.iter_mut().map(|output| (&output.name.value, &mut output.column.value));
    name_columns(outputs, &mut taken);
    Ok(manifest)
}

/// Replaces placeholders of columns by the names of their ports. Ports with one placeholder stay together, and no two
/// columns get one of the names that are `taken`.
fn name_columns<'a>(ports: impl Iterator<Item = (&'a String, &'a mut String)>, taken: &mut Vec<String>) {
    let mut known: Vec<(String, String)> = Vec::new();
    for (name, column) in ports.filter(|(_, column)| column.starts_with(BLANK_COLUMN)) {
        match known.iter().find(|(blank, _)| blank == column) {
            Some((_, name)) => column.clone_from(name),
            None if !taken.contains(name) => {
                taken.push(name.clone());
                known.push((std::mem::replace(column, name.clone()), name.clone()));
            }
            None => {}
        }
    }
}

fn incomplete(path: &Path, findings: &Diagnostics) -> Failure {
    let mut found: Vec<&str> = findings.iter().map(|finding| finding.message.as_str()).collect();
    found.dedup();
    let message =
        format!("the file {} does not say everything that a run needs: {}", path.display(), found.join("; "));
    Failure::new(Kind::Configuration, message).with_help(format!(
        "write the manifest and correct it, then try that: `tidemill models inspect {} --manifest > {}`",
        path.display(),
        path.with_extension("yaml").display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(columns: [&str; 3]) -> Manifest {
        let digest = "a".repeat(64);
        let [first, second, output] = columns;
        let text = format!(
            "version: 1\nid: m\ndescription: {BLANK_DESCRIPTION}\nfile: m.onnx\nsha256: {digest}\nlicence: {BLANK_LICENCE}\n\
             origin: {{kind: external, note: {BLANK_ORIGIN}}}\nbackends: [rten]\ninputs:\n  \
             - {{name: x, column: {first}, type: tensor, dtype: float32, shape: [batch, 2]}}\n  \
             - {{name: y, column: {second}, type: tensor, dtype: float32, shape: [batch, 2]}}\noutputs:\n  \
             - {{name: z, column: {output}, type: tensor, dtype: float32, shape: [batch, 2]}}\n"
        );
        Manifest::parse(&text, "m.yaml").unwrap_or_else(|findings| panic!("{findings}"))
    }

    #[test]
    fn columns_get_the_names_of_the_file() {
        let names = |columns| {
            let filled = filled(manifest(columns)).unwrap();
            let inputs = filled.inputs.iter().map(|input| input.column.value.clone());
            inputs.chain([filled.outputs[0].column.value.clone()]).collect::<Vec<_>>()
        };
        assert_eq!(names(["COLUMN-x", "COLUMN-y", "COLUMN"]), ["x", "y", "z"]);
        assert_eq!(names(["COLUMN", "COLUMN", "label"]), ["x", "x", "label"], "both read one column");
        assert_eq!(
            names(["a", "COLUMN", "COLUMN"]),
            ["a", "y", "z"],
            "the model does not write what it reads"
        );
    }

    #[test]
    fn what_is_missing_is_named_with_the_command() {
        let findings = Manifest::parse("version: 1\nid: m\n", "m.onnx (draft)").unwrap_err();
        let failure = incomplete(Path::new("a/m.onnx"), &findings);
        assert!(failure.to_string().contains("missing"), "{failure}");
        let help = failure.help().unwrap();
        assert!(help.contains("`tidemill models inspect a/m.onnx --manifest > a/m.yaml`"), "{help}");
    }
}
