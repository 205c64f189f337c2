//! A trained perceptron as a model of workflows, and a model of workflows that a training starts from.
use super::preparation::Prepared;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_spec::job::train::{TrainSpec, TrainedKind};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::secret::Secret;
use tidemill_training::classifier::{Classifier, Quality};
use tidemill_training::collected::{Collected, Column, Encoding, Encodings};
use tidemill_training::model_file::{self, Facts};

/// The beginning of a training.
pub(super) enum Origin {
    /// Random parameters.
    Random,
    /// Weights that an earlier training has left.
    Weights,
    /// A model of workflows.
    Model(Box<(Classifier, Manifest)>),
}

/// Whether a path names a manifest.
fn is_manifest(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

impl Origin {
    /// Reads the model that `from` names; `folder`: that of the job.
    pub(super) fn load(spec: &TrainSpec, folder: &Path) -> anyhow::Result<Self> {
        Ok(match &spec.from {
            None => Self::Random,
            Some(from) if is_manifest(&from.value) => {
                let found = model_file::load(&folder.join(&from.value)).map_err(|error| {
                    Failure::new(Kind::Configuration, error.to_string())
                        .at(from.span.clone())
                        .with_help(error.help())
                })?;
                Self::Model(Box::new(found))
            }
            Some(_) => Self::Weights,
        })
    }

    fn model(&self) -> Option<&(Classifier, Manifest)> {
        match self {
            Self::Model(found) => Some(found),
            Self::Random | Self::Weights => None,
        }
    }

    /// Returns how the model encodes texts.
    pub(super) fn encodings(&self) -> Encodings {
        let columns = self.model().map(|(classifier, _)| &classifier.columns[..]).unwrap_or_default();
        let encoding = |column: &Column| match &column.encoding {
            Encoding::Characters(characters) => Some((column.name.clone(), characters.clone())),
            Encoding::Number | Encoding::Tensor(_) => None,
        };
        columns.iter().filter_map(encoding).collect()
    }

    /// Numbers the classes as the model does, new ones after its own.
    pub(super) fn named(&self, read: Collected) -> Collected {
        match self.model() {
            Some((classifier, _)) => read.named(&classifier.names),
            None => read,
        }
    }

    /// Returns the classifier to train; none for a model that cannot run in workflows. `is_scaled`: whether inputs are scaled by what they
    /// are in the examples.
    pub(super) fn classifier(
        &self,
        spec: &TrainSpec,
        examples: &Collected,
        is_scaled: bool,
    ) -> anyhow::Result<Option<Classifier>> {
        if spec.model.kind.value != TrainedKind::Perceptron {
            return Ok(None);
        }
        let hidden: Vec<usize> = spec.model.hidden.value.0.iter().map(|size| *size as usize).collect();
        if let (Self::Weights, true, Some(from)) = (self, is_scaled, &spec.from) {
            // Another dataset has other means and deviations.
            let text = "weights do not say how the inputs of a dataset are scaled";
            let failure = Failure::new(Kind::Configuration, text).at(from.span.clone());
            return Err(failure.with_help("name the `model.yaml` beside them").into());
        }
        let Some((known, _)) = self.model() else {
            let fresh = Classifier::fresh(examples, &hidden, spec.seed);
            return Ok(Some(if is_scaled { fresh } else { fresh.unscaled() }));
        };
        let wrong = |text: String| Failure::new(Kind::Configuration, text);
        if known.columns != examples.columns {
            let names = |columns: &[Column]| {
                let one = |column: &Column| format!("`{}` ({} values)", column.name, column.width());
                columns.iter().map(one).collect::<Vec<_>>().join(", ")
            };
            let text = format!(
                "the model reads {}, and the training {}",
                names(&known.columns),
                names(&examples.columns)
            );
            let help = "write the columns of the model in `inputs`, in its order, or leave `from` out";
            let failure = wrong(text).with_help(help);
            return Err(match spec.inputs.first() {
                Some(input) => failure.at(input.span.clone()).into(),
                None => failure.into(),
            });
        }
        let own = &known.sizes[1..known.sizes.len() - 1];
        // A default has no place in a file.
        if spec.model.hidden.span.source().is_some() && own != hidden {
            let text = format!("the model has hidden layers of {own:?} values, not {hidden:?}");
            let help = "leave `hidden` out, or leave `from` out";
            return Err(wrong(text).at(spec.model.hidden.span.clone()).with_help(help).into());
        }
        let mut classifier = known.clone();
        classifier.add_classes(&examples.names);
        Ok(Some(classifier))
    }
}

impl Prepared {
    /// Writes the model into a folder; returns the names of its files. `right`: the accuracy for the held-out examples.
    pub(super) fn write_model(
        &self,
        parameters: &[f64],
        right: Option<f64>,
        folder: &Path,
        job: &Path,
    ) -> anyhow::Result<Vec<String>> {
        let Some(classifier) = &self.classifier else { return Ok(Vec::new()) };
        let classifier = Classifier { parameters: parameters.to_vec(), ..classifier.clone() };
        let samples = self.held_out.len() as u64;
        let quality = right.map(|share| Quality { right: (share * samples as f64).round() as u64, samples });
        let from = self.start.model().map(|(_, manifest)| manifest);
        let inputs: Vec<&str> = classifier.columns.iter().map(|column| column.name.as_str()).collect();
        let column = from.and_then(|manifest| manifest.outputs.first()).map(|output| output.column.as_str());
        let description = match from {
            Some(manifest) => manifest.description.clone(),
            None => format!("Names `{}` from {}.", self.spec.label, inputs.join(", ")),
        };
        let mut note = format!("{} steps with {} examples", self.steps, self.examples.len());
        if let Some(manifest) = from {
            note += &format!(", from {}", manifest.id);
        }
        let facts = Facts {
            id: &self.name,
            description: &description,
            licence: from.map_or("NOASSERTION", |manifest| &manifest.licence),
            column: column.unwrap_or(&self.spec.label.value),
            script: &job.file_name().unwrap_or_default().to_string_lossy(),
            seed: self.spec.seed,
            note: Some(&note),
            quality,
        };
        model_file::write(folder, &classifier, &facts).map_err(|error| {
            Failure::new(Kind::Unavailable, error.to_string()).with_help("name another folder (`--out DIR`)")
        })?;
        Ok(vec![model_file::MODEL.to_owned(), model_file::MANIFEST.to_owned()])
    }
}

/// Returns the other files that a training needs, relative to its folder: those of `from`, and the token of its aggregators.
pub(crate) fn files_of(spec: &TrainSpec, folder: &Path) -> Vec<PathBuf> {
    // A file with a whole path is on the workers.
    let token = spec.aggregation.token.as_ref().and_then(Secret::file).filter(|path| path.is_relative());
    let mut files: Vec<PathBuf> = token.map(Path::to_owned).into_iter().collect();
    let Some(from) = spec.from.as_ref().filter(|from| is_manifest(&from.value)) else { return files };
    let beside = Path::new(&from.value).parent().unwrap_or(Path::new(""));
    // A manifest that cannot be read is reported by the training.
    let manifest = Manifest::load(folder.join(&from.value)).ok();
    files.extend(manifest.iter().flat_map(|manifest| manifest.files().map(|file| beside.join(file))));
    files
}
