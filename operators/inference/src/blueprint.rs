//! A manifest checked against its model file, without any backend.
mod comparison;
mod declared;
mod unfed;

use self::comparison::{Comparison, reads_metadata, row_shape, wrong_input_steps, wrong_output_steps};
use crate::alphabet;
use crate::backend;
use crate::error::ModelError;
use crate::facts::{self, Dimension, FactsError, ModelFacts};
use crate::location;
use crate::postprocess::boxes::outputs_beside;
use crate::preprocess::tokens::Tokenizer;
use crate::sequence::generation;
use crate::sequence::plan::{self, Plan};
use crate::sequence::token_loop::TokenLoop;
use crate::steps::{OutputSteps, column_shape};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::backend::runtime;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::digest::sha256;
use tidemill_spec::manifest::{
    self, Artifact, Feature, InputType, Manifest, ModelInput, ModelOutput, OriginKind, Postprocess,
    Preprocess,
};
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, ElementType};

/// Source of the values of one input of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feed {
    /// Input `i` of the manifest.
    Column(usize),
    /// Constant `i` of the manifest.
    Constant(usize),
    /// State `i` of the manifest, kept from record to record.
    Memory(usize),
    /// State `i` of the loop.
    State(usize),
    /// The token of the loop's previous step.
    Token,
}

/// One input of the file, in the file's order; without those that a generation fills.
#[derive(Debug, Clone)]
pub(crate) struct FileInput {
    pub(crate) feed: Feed,
    pub(crate) element: ElementType,
    /// Shape of one row.
    pub(crate) row: Vec<usize>,
    pub(crate) records: Records,
}

/// Dimension of a tensor of the file that counts records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Records {
    /// This one.
    At(usize),
    /// None: the tensor is that of one record.
    One,
}

impl Records {
    pub(crate) fn of(shape: &[manifest::Dimension]) -> Self {
        match manifest::Dimension::batch_axis(shape) {
            Some(axis) => Self::At(axis),
            None if shape.first() == Some(&manifest::Dimension::Fixed(1)) => Self::At(0),
            None => Self::One,
        }
    }
}

/// A column that a model reads.
#[derive(Debug, Clone)]
pub struct ReadColumn {
    /// Its name in the manifest.
    pub name: Located<String>,
    /// Position of the model input in the manifest.
    pub input: usize,
    /// The types that it can have.
    pub wanted: Wanted,
}

/// Types of a column that a model reads.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// This type.
    Exactly(ColumnType),
    /// A number, truth value or category.
    Feature(Feature),
}

/// A model whose manifest and file agree.
#[derive(Debug, Clone)]
pub struct Blueprint {
    /// The manifest.
    pub manifest: Manifest,
    /// The manifest file.
    pub manifest_path: PathBuf,
    /// Facts from the model file.
    pub facts: ModelFacts,
    /// Whether the file has a batch dimension of 1, so that records are run one by one.
    pub one_by_one: bool,
    pub(crate) inputs: Vec<FileInput>,
    /// Shape of one row of each manifest input.
    pub(crate) input_rows: Vec<Vec<usize>>,
    /// Shape of one row of each manifest output.
    pub(crate) output_rows: Vec<Vec<usize>>,
    /// Positions in the file of the outputs that are read: those of the manifest, then those that detection heads read beside
    /// theirs, then those of states, then the loop's states, then the loop's token scores.
    pub(crate) wanted: Vec<usize>,
    /// The decoder's plan, if the manifest has one.
    pub(crate) sequence: Option<Plan>,
    /// Tokenizers of the inputs.
    #[expect(dead_code, reason = "models find them in memory as long as they are kept")]
    tokenizers: Vec<Tokenizer>,
    /// The loop of a model that generates; its fixed tensors are those of `inputs`.
    pub(crate) generation: Option<TokenLoop>,
    /// Blueprints of the backends that load a file of their own.
    artifacts: BTreeMap<String, Arc<Blueprint>>,
}

/// Reads a manifest, whose backends must be known to this program.
///
/// # Errors
/// Every mistake, each at its position.
pub fn load_manifest(path: &Path) -> Result<Manifest, Diagnostics> {
    let manifest = Manifest::load(path)?;
    backend::check_manifest(&manifest).into_result(manifest)
}

impl Blueprint {
    /// Reads a manifest and its model file and compares them. Runs nothing.
    ///
    /// # Errors
    /// Every disagreement.
    pub fn read(manifest_path: &Path) -> Result<Arc<Self>, Vec<ModelError>> {
        let manifest = load_manifest(manifest_path).map_err(|errors| vec![ModelError::Manifest(errors)])?;
        Self::check(manifest, manifest_path)
    }

    /// Reads a manifest alone, even if facts about its file are known: it serves to check types, and
    /// [`crate::choice::load`] refuses it.
    ///
    /// # Errors
    /// Every mistake in the manifest itself, including its steps.
    pub fn read_manifest(manifest_path: &Path) -> Result<Arc<Self>, Vec<ModelError>> {
        let manifest = load_manifest(manifest_path).map_err(|errors| vec![ModelError::Manifest(errors)])?;
        let mut errors = Vec::new();
        // Published figures lack the data that a run needs.
        if manifest.origin.kind != OriginKind::Published {
            manifest.inputs.iter().for_each(|input| errors.extend(wrong_input_steps(input)));
            let is_whole = |output: &&ModelOutput| !reads_metadata(output);
            manifest
                .outputs
                .iter()
                .filter(is_whole)
                .for_each(|output| errors.extend(wrong_output_steps(output, picture_of(&manifest.inputs))));
        }
        match errors.is_empty() {
            true => Ok(Arc::new(Self::on_paper(manifest, manifest_path))),
            false => Err(errors),
        }
    }

    /// Checks a manifest that was read already; `manifest_path` locates its file.
    ///
    /// # Errors
    /// Every disagreement.
    pub fn check(manifest: Manifest, manifest_path: &Path) -> Result<Arc<Self>, Vec<ModelError>> {
        if manifest.origin.kind == OriginKind::Published {
            return Ok(Arc::new(Self::on_paper(manifest, manifest_path)));
        }
        let (mut artifacts, mut errors) = (BTreeMap::new(), Vec::new());
        for (backend, Artifact { file, sha256 }) in &manifest.artifacts {
            let inspect =
                backend::registered().find(|known| known.name == backend).map(|known| known.inspect);
            let inspect = inspect.unwrap_or(facts::inspect);
            match Self::compared(manifest.clone(), manifest_path, (file, sha256), inspect) {
                Ok(blueprint) => drop(artifacts.insert(backend.clone(), Arc::new(blueprint))),
                Err(found) => errors.extend(found),
            }
        }
        if manifest.file.is_empty() {
            let first = artifacts.first_key_value().map(|(_, first)| Arc::clone(first));
            return first.filter(|_| errors.is_empty()).map(|first| first.with(artifacts)).ok_or(errors);
        }
        let (file, sha256) = (manifest.file.clone(), manifest.sha256.clone());
        match Self::compared(manifest, manifest_path, (&file, &sha256), facts::inspect) {
            Ok(blueprint) if errors.is_empty() => Ok(blueprint.with(artifacts)),
            Ok(_) => Err(errors),
            Err(found) => Err(found.into_iter().chain(errors).collect()),
        }
    }

    fn with(&self, artifacts: BTreeMap<String, Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { artifacts, ..self.clone() })
    }

    /// The blueprint for a backend: another one than this where the manifest names a file for it or for its runtime.
    pub fn for_backend(self: &Arc<Self>, backend: &str) -> Arc<Self> {
        let own = self.artifacts.get(backend).or_else(|| self.artifacts.get(runtime(backend)));
        Arc::clone(own.unwrap_or(self))
    }

    /// Digests of all files that backends load.
    pub(crate) fn digests(&self) -> impl Iterator<Item = &str> {
        let others = self.artifacts.values().map(|artifact| &artifact.facts);
        std::iter::once(&self.facts).chain(others).map(|facts| facts.sha256.as_str())
    }

    /// Compares a manifest with one of its files.
    fn compared(
        manifest: Manifest,
        manifest_path: &Path,
        (name, digest): (&Located<String>, &Located<String>),
        inspect: fn(&Path) -> Result<ModelFacts, FactsError>,
    ) -> Result<Self, Vec<ModelError>> {
        let folder = location::folder(&manifest, manifest_path);
        let file = folder.join(&name.value);
        if !file.is_file()
            && let Some(command) = location::command(&manifest)
        {
            let obtained = location::obtained(&manifest).unwrap_or_default();
            let (id, span) = (manifest.id.value.clone(), name.span.clone());
            return Err(vec![ModelError::NotFetched { id, obtained, command, span }]);
        }
        let mut facts = inspect(&file).map_err(|cause| vec![unreadable(cause, &file, name, digest)])?;
        if facts.sha256 != digest.value {
            // The rest is not compared: it would describe another file.
            return Err(vec![ModelError::Checksum {
                path: file,
                expected: digest.value.clone(),
                found: facts.sha256,
                span: digest.span.clone(),
            }]);
        }
        if facts.inputs.is_empty() && facts.outputs.is_empty() {
            declared::fill(&mut facts, &manifest, &folder);
        }
        let manifest = alphabet::filled_in(manifest, &facts, &folder)?;
        let mut comparison = Comparison { facts: &facts, errors: Vec::new() };
        let (input_rows, output_rows) = comparison.ports(&manifest);
        let inputs = comparison.inputs(&manifest);
        let wanted = comparison.wanted(&manifest);
        comparison.repeat(&manifest);
        let tokenizers = comparison.tokenizers(&manifest, &folder);
        let sequence = manifest.decoder.as_ref().and_then(|decoder| {
            plan::check(&manifest, decoder, &facts, &folder)
                .map_err(|errors| comparison.errors.extend(errors))
                .ok()
        });
        let generation = manifest.generate.as_ref().and_then(|generate| {
            generation::check(&manifest, generate, &facts)
                .map_err(|errors| comparison.errors.extend(errors))
                .ok()
        });
        if !comparison.errors.is_empty() {
            return Err(comparison.errors);
        }
        Ok(Self {
            one_by_one: sequence.is_some() || generation.is_some() || is_for_one(&manifest, &facts),
            inputs,
            input_rows,
            output_rows,
            wanted,
            sequence,
            tokenizers,
            generation,
            artifacts: BTreeMap::new(),
            manifest_path: manifest_path.to_owned(),
            manifest,
            facts,
        })
    }

    /// A model without its file: only its manifest is known. It serves to check types, and [`crate::choice::load`] refuses
    /// it.
    fn on_paper(manifest: Manifest, manifest_path: &Path) -> Self {
        Self {
            one_by_one: false,
            inputs: Vec::new(),
            input_rows: manifest.inputs.iter().map(|input| row_shape(&input.shape)).collect(),
            output_rows: manifest.outputs.iter().map(|output| row_shape(&output.shape)).collect(),
            wanted: Vec::new(),
            sequence: None,
            tokenizers: Vec::new(),
            generation: None,
            artifacts: BTreeMap::new(),
            facts: ModelFacts::of_nothing(manifest_path),
            manifest_path: manifest_path.to_owned(),
            manifest,
        }
    }

    /// The output columns of the model.
    pub fn output_columns(&self) -> Vec<Column> {
        let outputs = self.manifest.outputs.iter().zip(&self.output_rows).map(|(output, row)| {
            Column::new(output.column.value.clone(), OutputSteps::column_type(output, row))
        });
        let collected = self
            .manifest
            .repeat
            .iter()
            .map(|l| &l.collect.column)
            .chain(self.manifest.decoder.iter().map(|decoder| &decoder.column))
            .chain(self.manifest.generate.iter().map(|generate| &generate.column))
            .map(|column| Column::new(column.value.clone(), ColumnType::Text));
        outputs.chain(collected).collect()
    }
}

impl Blueprint {
    /// The columns that the model reads, in the order of the manifest's inputs.
    pub fn read_columns(&self) -> Vec<ReadColumn> {
        let inputs = self.manifest.inputs.iter().zip(&self.input_rows).enumerate();
        let columns = inputs.flat_map(|(at, (input, row))| {
            let exactly = |wanted| {
                vec![ReadColumn { name: input.column.clone(), input: at, wanted: Wanted::Exactly(wanted) }]
            };
            match input.input_type {
                InputType::Image | InputType::PictureSize => exactly(ColumnType::Image),
                InputType::Audio => exactly(ColumnType::Audio),
                InputType::Text => exactly(ColumnType::Text),
                InputType::Bytes => exactly(ColumnType::Bytes),
                InputType::Tensor => exactly(ColumnType::Tensor {
                    element: input.dtype,
                    // Wrong steps are refused with the blueprint.
                    shape: column_shape(input, row).unwrap_or_else(|_| row.clone()),
                }),
                InputType::Features => {
                    let read = |feature: &Located<Feature>| ReadColumn {
                        name: Located::new(feature.column.clone(), feature.span.clone()),
                        input: at,
                        wanted: Wanted::Feature(feature.value.clone()),
                    };
                    input.columns.iter().map(read).collect()
                }
            }
        });
        columns.collect()
    }

    /// Width and height of the picture that the model reads, if it reads one.
    pub(crate) fn picture(&self) -> Option<[f32; 2]> {
        picture_of(&self.manifest.inputs)
    }

    /// Names of the outputs that detection heads read beside their own, for each output of the manifest.
    pub(crate) fn beside(&self) -> impl Iterator<Item = usize> {
        self.manifest.outputs.iter().map(|output| names_beside(output).count())
    }
}

/// Width and height of the picture that a model with these inputs reads, if it reads one of a fixed size.
fn picture_of(inputs: &[ModelInput]) -> Option<[f32; 2]> {
    let input = inputs.iter().find(|input| input.input_type == InputType::Image)?;
    if input.shape.contains(&manifest::Dimension::Any) {
        return None;
    }
    let row = row_shape(&input.shape);
    Some(match *row.as_slice() {
        [height, width, 1 | 3] if !matches!(row.first(), Some(1 | 3)) => [width as f32, height as f32],
        [.., height, width] => [width as f32, height as f32],
        _ => return None,
    })
}

/// Whether the first step makes one vector of the places of each record.
pub(crate) fn pools(output: &ModelOutput) -> bool {
    let first = output.postprocess.first().map(|step| &step.value);
    matches!(first, Some(Postprocess::MeanPool { .. } | Postprocess::Pick { .. }))
}

/// Whether an output has values for each part of a text, which a step labels.
pub(crate) fn labels_text(output: &ModelOutput) -> bool {
    let last = output.postprocess.last().map(|step| &step.value);
    matches!(last, Some(Postprocess::Entities { .. } | Postprocess::Join { .. }))
}

/// Names of the outputs that the head of this output reads beside it.
pub(crate) fn names_beside(output: &ModelOutput) -> impl Iterator<Item = &Located<String>> {
    output.postprocess.iter().flat_map(|step| match &step.value {
        Postprocess::DecodeBoxes(decoding) => outputs_beside(decoding),
        _ => Vec::new(),
    })
}

/// Whether records are run one by one: a tensor has no free dimension that counts them, or sounds differ in length.
fn is_for_one(manifest: &Manifest, facts: &ModelFacts) -> bool {
    let is_fixed = |name: &str, shape: &[manifest::Dimension]| {
        let Some(axis) = manifest::Dimension::batch_axis(shape) else { return true };
        let port = facts.inputs.iter().chain(&facts.outputs).find(|port| port.name == name);
        let size = port.and_then(|port| port.shape.as_ref()).and_then(|shape| shape.get(axis));
        matches!(size, Some(Dimension::Fixed(_)))
    };
    let is_open = |input: &ModelInput| {
        let joins = |step: &Located<Preprocess>| {
            matches!(step.value, Preprocess::Tokenize { .. } | Preprocess::Characters { .. })
        };
        input.shape.contains(&manifest::Dimension::Any) && !input.preprocess.iter().any(joins)
    };
    let states = manifest.repeat.iter().flat_map(|repeat| &repeat.states);
    let is_fixed_state = |state: &manifest::LoopState| {
        let port = facts.inputs.iter().find(|port| port.name == state.input.as_str());
        let size = port.and_then(|port| port.shape.as_ref()).and_then(|shape| shape.first());
        matches!(size, Some(Dimension::Fixed(_)))
    };
    manifest.inputs.iter().any(|input| is_fixed(&input.name, &input.shape) || is_open(input))
        || manifest.states.iter().any(|state| is_fixed(&state.input, &state.shape))
        || manifest.outputs.iter().any(|output| {
            manifest::Dimension::batch_axis(&output.shape).is_none()
                || output.shape.contains(&manifest::Dimension::Any) && !pools(output) && !labels_text(output)
        })
        || states.into_iter().any(is_fixed_state)
}

/// A file that is no model is usually a damaged one, which its digest shows.
fn unreadable(
    cause: FactsError,
    file: &Path,
    name: &Located<String>,
    digest: &Located<String>,
) -> ModelError {
    let no_model = matches!(cause, FactsError::NotOnnx { .. } | FactsError::Other { .. });
    let other = |bytes: Vec<u8>| sha256(&bytes) != digest.value;
    let damaged = no_model && std::fs::read(file).is_ok_and(other);
    ModelError::File { cause, damaged, span: name.span.clone() }
}
