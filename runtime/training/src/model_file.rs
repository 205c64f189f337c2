//! A classifier as a model of workflows: an ONNX file with a manifest beside it.
//!
//! ```
//! use tidemill_training::classifier::{Classifier, Quality};
//! use tidemill_training::collected::{Column, Encoding, Collected};
//! use tidemill_training::data::spirals;
//! use tidemill_training::model_file::{self, Facts};
//! let columns = ["x", "y"].map(|name| Column { name: name.into(), encoding: Encoding::Number });
//! let names = ["red", "blue"].map(String::from);
//! let collected = Collected { examples: spirals(2, 200, 1), names: names.into(), columns: columns.into() };
//! let classifier = Classifier::fresh(&collected, &[16], 1);
//! let folder = tempfile::tempdir()?;
//! let facts = Facts {
//!     id: "colour",
//!     description: "Names the colour of a point.",
//!     licence: "Apache-2.0",
//!     column: "colour",
//!     script: "examples/colour/train.yaml",
//!     seed: 1,
//!     note: None,
//!     quality: Some(Quality { right: 1, samples: 2 }),
//! };
//! let manifest = model_file::write(folder.path(), &classifier, &facts)?;
//! assert_eq!(manifest, folder.path().join("model.yaml"));
//! let (read, _) = model_file::load(&manifest)?;
//! assert_eq!(read.names, classifier.names);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
use crate::characters::Characters;
use crate::classifier::{Classifier, Quality};
use crate::collected::{Column, Encoding};
use crate::onnx::{self, Network, OUTPUT, OnnxError, Port};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::digest::sha256;
use tidemill_spec::manifest::{Dimension, InputType, Manifest, ModelInput, Postprocess, Preprocess};

/// Name of the file with the network.
pub const MODEL: &str = "model.onnx";
/// Name of the manifest.
pub const MANIFEST: &str = "model.yaml";

/// What a manifest says that does not follow from the classifier.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Its name in plans.
    pub id: &'a str,
    /// Its purpose, in one sentence.
    pub description: &'a str,
    /// SPDX identifier of the licence.
    pub licence: &'a str,
    /// Column of the class.
    pub column: &'a str,
    /// What has trained it, such as the file of a job.
    pub script: &'a str,
    /// Seed of the training.
    pub seed: u64,
    /// Further facts about its origin.
    pub note: Option<&'a str>,
    /// How good it is on examples that it has not learnt from; none: nothing was held out.
    pub quality: Option<Quality>,
}

/// Why a model cannot be written, or read to be trained further.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// A file cannot be read or written.
    #[error("`{}`: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// The manifest is invalid.
    #[error("{}", .0.render(false))]
    Manifest(Diagnostics),
    /// The network has another form.
    #[error("`{}` cannot be trained further: {error}", path.display())]
    Network {
        /// The file.
        path: PathBuf,
        /// Cause.
        error: OnnxError,
    },
    /// The model has another form.
    #[error("`{}` cannot be trained further: {reason}", path.display())]
    Form {
        /// The manifest.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
}

impl ModelFileError {
    /// Returns advice.
    pub fn help(&self) -> &'static str {
        match self {
            Self::File { .. } => "check the path and the disk",
            Self::Manifest(_) => "correct the manifest",
            Self::Network { .. } | Self::Form { .. } => {
                "leave out `from` to train a new model, or name one that a training has written"
            }
        }
    }
}

/// Writes `model.onnx` and `model.yaml` into a folder, and returns the path of the manifest. Each file has the old contents or the new ones,
/// whatever happens; the manifest has the digest of the other one and is replaced after it.
///
/// # Errors
/// A file cannot be written, or a fact is invalid, such as an id with spaces.
pub fn write(folder: &Path, classifier: &Classifier, facts: &Facts<'_>) -> Result<PathBuf, ModelFileError> {
    let bytes = onnx::write(&network(classifier));
    let manifest = manifest(classifier, facts, &sha256(&bytes))?;
    let path = folder.join(MANIFEST);
    let failed = |path: &Path| {
        let path = path.to_owned();
        |error| ModelFileError::File { path, error }
    };
    let replace = |path: &Path, bytes: &[u8]| {
        tidemill_disk::replace(path, |file| file.write_all(bytes)).map_err(failed(path))
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    replace(&folder.join(MODEL), &bytes)?;
    replace(&path, manifest.as_bytes())?;
    Ok(path)
}

/// Columns that are one input of the file.
struct Group<'a> {
    port: Port,
    columns: &'a [Column],
}

/// Returns the inputs of the file: numbers that follow each other are one.
fn groups<'a>(columns: &'a [Column]) -> Vec<Group<'a>> {
    let both_numbers =
        |one: &Column, other: &Column| [one, other].iter().all(|column| column.encoding == Encoding::Number);
    let group = |(index, columns): (usize, &'a [Column])| {
        let name = match columns {
            [one] => one.name.clone(),
            _ => format!("numbers_{index}"),
        };
        let shape = match columns {
            [Column { encoding: Encoding::Tensor(shape), .. }] => shape.clone(),
            [Column { encoding: Encoding::Characters(text), .. }] => vec![text.length(), text.size()],
            numbers => vec![numbers.len()],
        };
        Group { port: Port { name, shape }, columns }
    };
    columns.chunk_by(both_numbers).enumerate().map(group).collect()
}

fn network(classifier: &Classifier) -> Network {
    Network {
        ports: groups(&classifier.columns).into_iter().map(|group| group.port).collect(),
        mean: classifier.mean.clone(),
        scale: classifier.scale.clone(),
        sizes: classifier.sizes.clone(),
        parameters: classifier.parameters.clone(),
    }
}

fn manifest(classifier: &Classifier, facts: &Facts<'_>, digest: &str) -> Result<String, ModelFileError> {
    let shape = |sizes: &[usize]| -> Vec<Value> {
        std::iter::once(json!("batch")).chain(sizes.iter().map(|size| json!(size))).collect()
    };
    let input = |group: &Group<'_>| {
        let mut input = json!({"name": group.port.name});
        match group.columns {
            [Column { name, encoding: Encoding::Tensor(_) }] => {
                input["column"] = json!(name);
                input["type"] = json!("tensor");
            }
            [Column { name, encoding: Encoding::Characters(text) }] => {
                input["column"] = json!(name);
                input["type"] = json!("text");
                let step = json!({"alphabet": text.alphabet(), "length": text.length(), "one_hot": true});
                input["preprocess"] = json!([{"characters": step}]);
            }
            numbers => {
                let names: Vec<&str> = numbers.iter().map(|column| column.name.as_str()).collect();
                input["columns"] = json!(names);
                input["type"] = json!("features");
            }
        }
        input["dtype"] = json!("float32");
        input["shape"] = json!(shape(&group.port.shape));
        input
    };
    let flops: usize = classifier.sizes.windows(2).map(|pair| 2 * pair[0] * pair[1]).sum();
    let mut origin = json!({"kind": "trained", "script": facts.script, "seed": facts.seed});
    if let Some(note) = facts.note {
        origin["note"] = json!(note);
    }
    // Four digits are more than the samples can show.
    let rounded = |share: f64| (share * 1e4).round() / 1e4;
    let mut document = json!({
        "version": 1,
        "id": facts.id,
        "description": facts.description,
        "file": MODEL,
        "sha256": digest,
        "licence": facts.licence,
        "origin": origin,
        "parameters": classifier.parameters.len(),
        "flops": flops,
        "backends": ["rten", "ort"],
        "inputs": groups(&classifier.columns).iter().map(input).collect::<Vec<_>>(),
        "outputs": [{
            "name": OUTPUT,
            "column": facts.column,
            "type": "text",
            "dtype": "float32",
            "shape": shape(&[classifier.names.len()]),
            "postprocess": [{"argmax": {"labels": classifier.names}}],
        }],
    });
    if let Some(quality) = &facts.quality {
        let (low, high) = quality.interval();
        document["metric"] = json!({
            "name": "accuracy",
            "value": rounded(quality.accuracy()),
            "interval": [rounded(low), rounded(high)],
            "samples": quality.samples,
            "higher_is_better": true,
        });
    }
    // JSON is YAML too.
    let manifest = Manifest::parse(&document.to_string(), MANIFEST).map_err(ModelFileError::Manifest)?;
    manifest.to_yaml().map_err(ModelFileError::Manifest)
}

/// Reads a model to train it further, with its manifest.
///
/// # Errors
/// It cannot be read, or is no classifier whose form a training can continue.
pub fn load(path: &Path) -> Result<(Classifier, Manifest), ModelFileError> {
    let manifest = Manifest::load(path).map_err(ModelFileError::Manifest)?;
    let wrong = |reason: String| ModelFileError::Form { path: path.to_owned(), reason };
    let file = path.parent().unwrap_or(Path::new("")).join(manifest.file.as_str());
    let bytes = std::fs::read(&file).map_err(|error| ModelFileError::File { path: file.clone(), error })?;
    if sha256(&bytes) != manifest.sha256.value {
        return Err(wrong(format!("`{}` is not the file of its sha256", file.display())));
    }
    let network =
        onnx::read(&bytes).map_err(|error| ModelFileError::Network { path: file.clone(), error })?;
    let names = names(&manifest).map_err(&wrong)?;
    let mut columns = Vec::new();
    for port in &network.ports {
        let input = manifest.inputs.iter().find(|input| input.name.value == port.name);
        let input =
            input.ok_or_else(|| wrong(format!("its input `{}` is not in the manifest", port.name)))?;
        columns.extend(columns_of(input).map_err(&wrong)?);
    }
    let width: usize = columns.iter().map(Column::width).sum();
    if network.sizes.first() != Some(&width) || network.sizes.last() != Some(&names.len()) {
        return Err(wrong(format!(
            "the manifest has {width} values and {} labels, and the file {:?} from inputs to classes",
            names.len(),
            network.sizes
        )));
    }
    let Network { mean, scale, sizes, parameters, .. } = network;
    Ok((Classifier { columns, names, mean, scale, sizes, parameters }, manifest))
}

/// Returns the labels of the only output.
fn names(manifest: &Manifest) -> Result<Vec<String>, String> {
    let [output] = &manifest.outputs[..] else {
        return Err(format!("it has {} output columns, expected one with the class", manifest.outputs.len()));
    };
    match &output.postprocess[..] {
        [step] => match &step.value {
            Postprocess::Argmax { labels, .. } if !labels.is_empty() => Ok(labels.clone()),
            _ => Err(format!("its output `{}` has no step `argmax` with `labels`", output.column)),
        },
        _ => Err(format!("its output `{}` has not just the step `argmax`", output.column)),
    }
}

fn columns_of(input: &ModelInput) -> Result<Vec<Column>, String> {
    let column = |encoding| vec![Column { name: input.column.value.clone(), encoding }];
    match (input.input_type, &input.preprocess[..]) {
        (InputType::Features, []) => {
            let number =
                |feature: &tidemill_spec::span::Located<tidemill_spec::manifest::Feature>| match feature
                    .missing
                    .is_none()
                    && feature.categories.is_empty()
                {
                    true => Ok(Column { name: feature.column.clone(), encoding: Encoding::Number }),
                    false => Err(format!("its column `{}` is no plain number", feature.column)),
                };
            input.columns.iter().map(number).collect()
        }
        (InputType::Tensor, []) => {
            let sizes = Dimension::row(&input.shape);
            let sizes = sizes.iter().map(|size| match size {
                Dimension::Fixed(size) => Ok(*size as usize),
                _ => Err(format!("its input `{}` has no fixed size", input.name)),
            });
            Ok(column(Encoding::Tensor(sizes.collect::<Result<_, _>>()?)))
        }
        (InputType::Text, [step]) => match &step.value {
            Preprocess::Characters { alphabet, length: Some(length), one_hot: true, .. } => {
                Ok(column(Encoding::Characters(Characters::new(alphabet, *length as usize))))
            }
            _ => Err(format!("its input `{}` has no step `characters` with `one_hot: true`", input.name)),
        },
        _ => Err(format!(
            "its input `{}` is none of: features, a tensor without steps, a text with `characters`",
            input.name
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collected::Collected;
    use crate::data::Examples;

    fn classifier() -> Classifier {
        let column = |name: &str, encoding| Column { name: name.into(), encoding };
        let columns = vec![
            column("age", Encoding::Number),
            column("height", Encoding::Number),
            column("word", Encoding::Characters(Characters::new("ab'", 4))),
            column("features", Encoding::Tensor(vec![2, 2])),
            column("open", Encoding::Number),
        ];
        let width = columns.iter().map(Column::width).sum();
        let values = (0..3 * width).map(|index| f64::from((index % 7) as u32)).collect();
        let examples = Examples { inputs: width, classes: 3, values, labels: vec![0, 1, 2] };
        let names = ["yes", "no", "3"].map(String::from).to_vec();
        Classifier::fresh(&Collected { examples, names, columns }, &[5], 3)
    }

    fn facts() -> Facts<'static> {
        Facts {
            id: "doors",
            description: "Names a door.",
            licence: "Apache-2.0",
            column: "door",
            script: "train.yaml",
            seed: 3,
            note: Some("from 3 records"),
            quality: Some(Quality { right: 90, samples: 100 }),
        }
    }

    #[test]
    fn what_is_written_can_be_trained_further() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), &classifier(), &facts()).unwrap();
        let (found, manifest) = load(&path).unwrap();
        let wanted = classifier();
        assert_eq!((&found.columns, &found.names), (&wanted.columns, &wanted.names));
        assert_eq!(found.sizes, wanted.sizes);
        for (one, other) in found.parameters.iter().zip(&wanted.parameters) {
            assert!((one - other).abs() < 1e-6);
        }
        let metric = manifest.metric.unwrap();
        assert_eq!((metric.value.value, metric.samples), (0.9, 100));
        let inputs: Vec<&str> = manifest.inputs.iter().map(|input| input.name.as_str()).collect();
        assert_eq!(inputs, ["numbers_0", "word", "features", "open"]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), &classifier(), &facts()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}: {text}");
            std::fs::write(&path, text.replace(from, to)).unwrap();
            let error = load(&path).unwrap_err();
            assert!(!error.help().is_empty());
            error.to_string()
        };
        // Numbers of characters have another shape than vectors.
        assert!(!refused("one_hot: true", "one_hot: false").is_empty());
        assert!(!refused("length: 4", "length: 5").is_empty());
        let digest = text.lines().find(|line| line.starts_with("sha256")).unwrap();
        assert!(refused(digest, &format!("sha256: {}", "a".repeat(64))).contains("sha256"));
        assert!(matches!(load(&folder.path().join("no.yaml")), Err(ModelFileError::Manifest(_))));
        let wrong = Facts { id: "a door", ..facts() };
        assert!(matches!(write(folder.path(), &classifier(), &wrong), Err(ModelFileError::Manifest(_))));
    }
}
