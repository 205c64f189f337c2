//! Drafts a manifest: all facts of a model file, of the files beside it, and guesses from its shapes and names.
//!
//! A draft is a manifest that `tidemill models verify` accepts, as far as the file shows it. Values known only to the maker are
//! in capitals; each guess has the comment `# guessed: ...`. Models are drafted by families, one file each, in the order of
//! [`FAMILIES`]: the first one that recognises a model drafts it.
//!
//! ```no_run
//! use std::path::Path;
//! let file = Path::new("models/detector.onnx");
//! let facts = tidemill_inference::inspect(file)?;
//! println!("{}", tidemill_app::skeleton::manifest(&facts, &file.with_file_name("")));
//! # Ok::<(), tidemill_inference::facts::FactsError>(())
//! ```
mod beside;
mod byte_files;
#[cfg(test)]
mod cases;
mod cells;
mod draft;
mod exporter;
mod generators;
mod heads;
mod labels;
mod language;
mod levels;
mod lines;
mod maps;
mod pictures;
mod ports;
mod preparation;
mod recurrent;
mod scores;
mod sounds;
mod subject;
mod tables;
mod tensors;
mod text_maps;
mod texts;
mod yaml;

use self::beside::Beside;
use self::draft::Draft;
use self::exporter::Exporter;
use self::subject::{Subject, Tried};
use std::cell::RefCell;
use std::path::Path;
use tidemill_inference::backend;
use tidemill_inference::facts::{ModelFacts, PortElement};
use tidemill_inference::tensor::Tensor;
use tidemill_spec::manifest::{BLANK_DESCRIPTION, BLANK_LICENCE, BLANK_ORIGIN};
use tidemill_spec::types::ElementType;

/// Models with more input values than this are not tried.
const MOST_VALUES: usize = 64 << 20;

/// Recognises a model and drafts what its manifest says about inputs and outputs.
type Family = fn(&Subject<'_>) -> Option<Draft>;

/// The families, the more special ones first.
const FAMILIES: &[Family] = &[
    language::draft,
    generators::draft,
    recurrent::draft,
    tables::draft_of_operators,
    texts::draft,
    lines::draft,
    levels::draft,
    maps::draft,
    heads::draft,
    text_maps::draft,
    pictures::draft,
    sounds::draft,
    byte_files::draft,
    tables::draft_of_columns,
];

/// Returns the manifest's text. `directory`: start of the search for libraries.
pub fn manifest(facts: &ModelFacts, directory: &Path) -> String {
    let beside = Beside::of(facts.path.parent().unwrap_or(Path::new("")));
    let known = RefCell::new(Vec::new());
    // Several families may try the same; loading takes longest.
    text(facts, &beside, &|inputs| {
        let found =
            known.borrow().iter().find(|(tried, _)| tried == inputs).map(|(_, found)| Clone::clone(found));
        found.unwrap_or_else(|| {
            let found = run(facts, directory, inputs);
            known.borrow_mut().push((inputs.to_vec(), found.clone()));
            found
        })
    })
}

/// Returns the manifest's text; `trial` runs the model.
fn text(facts: &ModelFacts, beside: &Beside, trial: &subject::Trial<'_>) -> String {
    let exporter = Exporter::of(facts);
    let subject = Subject::new(facts, beside, &exporter, trial);
    let draft = drafted(&subject);
    let stem = facts.path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let file = facts.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut text = format!(
        "version: 1\nid: {}\ndescription: {BLANK_DESCRIPTION}\nfile: {}\nsha256: {}\n\
         licence: {BLANK_LICENCE}\norigin: {{kind: external, note: {BLANK_ORIGIN}}}\n",
        yaml::scalar(&yaml::identifier(&stem)),
        yaml::scalar(&file),
        facts.sha256,
    );
    if facts.parameters > 0 {
        text.push_str(&format!("parameters: {}\n", facts.parameters));
    }
    text.push_str(backends(facts));
    text.push_str(&draft.to_yaml());
    text
}

/// Drafts a model by the first family that recognises it.
fn drafted(subject: &Subject<'_>) -> Draft {
    FAMILIES.iter().find_map(|family| family(subject)).unwrap_or_else(|| tensors::draft(subject))
}

/// Returns the line of the backends that have the model's operators.
fn backends(facts: &ModelFacts) -> &'static str {
    if facts.uses("ai.onnx.ml") {
        "backends: [ort] # `rten` has no operators of ai.onnx.ml\n"
    } else if facts.uses("com.microsoft") {
        "backends: [ort] # guessed: `rten` has few of the operators of com.microsoft\n"
    } else {
        "backends: [ort, rten]\n"
    }
}

/// Returns the outputs for zeros, from the first backend that runs the model.
fn run(facts: &ModelFacts, directory: &Path, inputs: &[(ElementType, Vec<usize>)]) -> Option<Tried> {
    let values = |shape: &Vec<usize>| shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    if inputs.iter().any(|(_, shape)| values(shape).is_none_or(|values| values > MOST_VALUES)) {
        return None;
    }
    let tensors: Vec<Tensor> =
        inputs.iter().map(|(element, shape)| Tensor::zeros(*element, shape.clone())).collect();
    let known = |at: &usize| matches!(facts.outputs[*at].element, PortElement::Known(_));
    let wanted: Vec<usize> = (0..facts.outputs.len()).filter(known).collect();
    backend::registered().find_map(|backend| {
        let mut session = (backend.open)(directory).ok()?.load(facts).ok()?;
        let results = session.run(&tensors, &wanted).ok()?;
        let name = |at: &usize| facts.outputs[*at].name.clone();
        let shapes = results.iter().map(|tensor| tensor.shape().to_vec());
        let are_shares = wanted.iter().zip(&results).filter(|(_, tensor)| are_probabilities(tensor));
        Some(Tried {
            probabilities: are_shares.map(|(at, _)| name(at)).collect(),
            shapes: wanted.iter().map(name).zip(shapes).collect(),
        })
    })
}

/// Whether the vectors of a tensor are probabilities. Scores of zeros are not by chance.
fn are_probabilities(tensor: &Tensor) -> bool {
    let classes = tensor.shape().last().copied().unwrap_or(0);
    let Some(values) = tensor.as_f32().filter(|values| classes > 1 && !values.is_empty()) else {
        return false;
    };
    values.chunks(classes).all(|vector| {
        vector.iter().all(|value| (0.0..=1.0).contains(value))
            && (vector.iter().sum::<f32>() - 1.0).abs() < 1e-3
    })
}

#[cfg(test)]
mod tests;
