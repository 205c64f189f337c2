//! A manifest checked against its model file, without any backend.
use crate::alphabet;
use crate::backend;
use crate::error::{ModelError, Role};
use crate::facts::{self, Dimension, FactsError, ModelFacts, Port, PortElement};
use crate::location;
use crate::postprocess::boxes::outputs_beside;
use crate::sequence::plan::{self, Plan};
use crate::steps::{InputSteps, OutputSteps, column_shape};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::digest::sha256;
use tidemill_spec::manifest::{
    self, Artifact, Feature, Initial, InputType, Manifest, ModelInput, ModelOutput, OriginKind, Postprocess,
    Preprocess,
};
use tidemill_spec::span::{Located, Span};
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

/// One input of the file, in the file's order.
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
                .for_each(|output| errors.extend(wrong_output_steps(output)));
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

    /// The blueprint for a backend: another one than this where the manifest names a file for it.
    pub fn for_backend(self: &Arc<Self>, backend: &str) -> Arc<Self> {
        Arc::clone(self.artifacts.get(backend).unwrap_or(self))
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
        let facts = inspect(&file).map_err(|cause| vec![unreadable(cause, &file, name, digest)])?;
        if facts.sha256 != digest.value {
            // The rest is not compared: it would describe another file.
            return Err(vec![ModelError::Checksum {
                path: file,
                expected: digest.value.clone(),
                found: facts.sha256,
                span: digest.span.clone(),
            }]);
        }
        let manifest = alphabet::filled_in(manifest, &facts, &folder)?;
        let mut comparison = Comparison { facts: &facts, errors: Vec::new() };
        let (input_rows, output_rows) = comparison.ports(&manifest);
        let inputs = comparison.inputs(&manifest);
        let wanted = comparison.wanted(&manifest);
        comparison.repeat(&manifest);
        let sequence = manifest.decoder.as_ref().and_then(|decoder| {
            plan::check(&manifest, decoder, &facts, &folder)
                .map_err(|errors| comparison.errors.extend(errors))
                .ok()
        });
        if !comparison.errors.is_empty() {
            return Err(comparison.errors);
        }
        Ok(Self {
            one_by_one: sequence.is_some() || is_for_one(&manifest, &facts),
            inputs,
            input_rows,
            output_rows,
            wanted,
            sequence,
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
        let inputs = self.manifest.inputs.iter().zip(&self.input_rows);
        let mut pictures = inputs.filter(|(input, _)| input.input_type == InputType::Image);
        let (_, row) = pictures.next()?;
        Some(match *row.as_slice() {
            [height, width, 1 | 3] if !matches!(row.first(), Some(1 | 3)) => [width as f32, height as f32],
            [.., height, width] => [width as f32, height as f32],
            _ => return None,
        })
    }

    /// Names of the outputs that detection heads read beside their own, for each output of the manifest.
    pub(crate) fn beside(&self) -> impl Iterator<Item = usize> {
        self.manifest.outputs.iter().map(|output| names_beside(output).count())
    }
}

/// Whether the first step makes one vector of the places of each record.
pub(crate) fn pools(output: &ModelOutput) -> bool {
    let first = output.postprocess.first().map(|step| &step.value);
    matches!(first, Some(Postprocess::MeanPool { .. } | Postprocess::Pick { .. }))
}

/// Names of the outputs that the head of this output reads beside it.
fn names_beside(output: &ModelOutput) -> impl Iterator<Item = &Located<String>> {
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
                || output.shape.contains(&manifest::Dimension::Any) && !pools(output)
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

struct Comparison<'a> {
    facts: &'a ModelFacts,
    errors: Vec<ModelError>,
}

impl<'a> Comparison<'a> {
    fn port(&mut self, role: Role, name: &str, span: &Span) -> Option<(usize, &'a Port)> {
        let ports = match role {
            Role::Input => &self.facts.inputs,
            Role::Output => &self.facts.outputs,
        };
        let found = ports.iter().enumerate().find(|(_, port)| port.name == name);
        if found.is_none() {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            self.errors.push(ModelError::NoPort {
                role,
                name: name.to_owned(),
                available: names.join(", "),
                span: span.clone(),
            });
        }
        found
    }

    /// Compares the ports of the manifest with the file; returns the shapes of one row of each.
    fn ports(&mut self, manifest: &Manifest) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
        let mut rows = (Vec::new(), Vec::new());
        for input in &manifest.inputs {
            let row = row_shape(&input.shape);
            self.declared(
                Role::Input,
                &input.name,
                &input.name.span,
                input.dtype,
                &input.shape,
                &input.shape.span,
            );
            self.errors.extend(wrong_input_steps(input));
            rows.0.push(row);
        }
        for output in &manifest.outputs {
            let row = row_shape(&output.shape);
            self.declared(
                Role::Output,
                &output.name,
                &output.name.span,
                output.dtype,
                &output.shape,
                &output.shape.span,
            );
            self.errors.extend(wrong_output_steps(output));
            for step in &output.postprocess {
                if let Postprocess::MeanPool { mask: Some(mask) } = &step.value {
                    self.port(Role::Input, mask, &mask.span);
                }
            }
            rows.1.push(row);
        }
        rows
    }

    fn declared(
        &mut self,
        role: Role,
        name: &str,
        name_span: &Span,
        element: ElementType,
        shape: &[manifest::Dimension],
        shape_span: &Span,
    ) {
        let Some((_, port)) = self.port(role, name, name_span) else { return };
        // Exporters that leave sizes open may write another rank than a run gives: the trial decides.
        let is_free = |side: &Dimension| matches!(side, Dimension::Free(_));
        let is_vague = role == Role::Output
            && port.element == PortElement::Known(element)
            && port
                .shape
                .as_ref()
                .is_some_and(|found| found.len() != shape.len() && found.iter().any(is_free));
        if !is_vague && !fits(element, shape, port) {
            let dimensions: Vec<String> = shape.iter().map(ToString::to_string).collect();
            self.errors.push(ModelError::PortType {
                role,
                name: name.to_owned(),
                expected: format!("[{}] {}", dimensions.join(", "), element),
                found: port.type_text(),
                span: shape_span.clone(),
            });
        }
    }

    /// Returns the feed of each input of the file.
    fn inputs(&mut self, manifest: &Manifest) -> Vec<FileInput> {
        if manifest.decoder.is_some() {
            return Vec::new(); // the plan says what feeds the encoder
        }
        let mut inputs = Vec::new();
        for port in &self.facts.inputs {
            let column = manifest.inputs.iter().position(|i| i.name == port.name.as_str()).map(Feed::Column);
            let looped = manifest.repeat.as_ref().and_then(|l| {
                let state = l.states.iter().position(|s| s.input == port.name.as_str()).map(Feed::State);
                state.or((l.feed.input == port.name.as_str()).then_some(Feed::Token))
            });
            let constant = manifest.constants.iter().position(|constant| constant.name == port.name.as_str());
            let memory = manifest.states.iter().position(|state| state.input == port.name.as_str());
            let fixed = constant.map(Feed::Constant).or(memory.map(Feed::Memory));
            match (column.or(looped).or(fixed), &port.element) {
                (Some(Feed::Memory(i)), element) => inputs.extend(self.memory(manifest, i, port, element)),
                (Some(Feed::Column(i)), _) => inputs.push(FileInput {
                    feed: Feed::Column(i),
                    element: manifest.inputs[i].dtype,
                    row: row_shape(&manifest.inputs[i].shape),
                    records: Records::of(&manifest.inputs[i].shape),
                }),
                (Some(Feed::Constant(i)), element) => {
                    inputs.extend(self.constant(manifest, i, port, element))
                }
                // Whether its type is usable is checked with the loop.
                (Some(feed), PortElement::Known(element)) => inputs.push(FileInput {
                    feed,
                    element: *element,
                    row: fixed_row(port).unwrap_or_default(),
                    records: Records::At(0),
                }),
                (Some(_), PortElement::Other(_)) => {}
                (None, _) => {
                    let last = manifest.inputs.last().map(|input| input.name.span.clone());
                    self.errors.push(ModelError::NotFed {
                        name: port.name.clone(),
                        found: port.type_text(),
                        span: last.unwrap_or_else(|| manifest.file.span.clone()),
                    });
                }
            }
        }
        inputs
    }

    /// Returns the feed of a constant.
    fn constant(
        &mut self,
        manifest: &Manifest,
        at: usize,
        port: &Port,
        element: &PortElement,
    ) -> Option<FileInput> {
        let constant = &manifest.constants[at];
        let mut wrong = |message: String| {
            let (name, span) = (constant.name.to_string(), constant.value.span.clone());
            self.errors.push(ModelError::Steps { role: Role::Input, name, message, span });
        };
        let PortElement::Known(element) = *element else {
            wrong(format!("a constant cannot be {}", port.type_text()));
            return None;
        };
        let size = |dimension: &Dimension| match dimension {
            Dimension::Fixed(size) => *size,
            Dimension::Free(_) => 1,
        };
        let shape = port.shape.as_deref().unwrap_or_default();
        let row: Vec<usize> = shape.iter().map(size).collect();
        let (given, needed) = (constant.value.values().len(), row.iter().product::<usize>());
        // A free dimension of the file takes as many values as there are.
        let free = shape.iter().filter(|dimension| matches!(dimension, Dimension::Free(_))).count();
        if element == ElementType::Text
            || given != 1 && given != needed && !(free == 1 && given.is_multiple_of(needed))
        {
            wrong(format!("{given} values do not fill {}", port.type_text()));
            return None;
        }
        let mut row = row;
        if given != 1 && given != needed {
            let open = shape.iter().position(|dimension| matches!(dimension, Dimension::Free(_)));
            if let Some(open) = open {
                row[open] = given / needed;
            }
        }
        let counts = matches!(shape.first(), Some(Dimension::Free(_))) && row.first() == Some(&1);
        let records = if counts { Records::At(0) } else { Records::One };
        Some(FileInput { feed: Feed::Constant(at), element, row, records })
    }

    /// Returns the feed of a state.
    fn memory(
        &mut self,
        manifest: &Manifest,
        at: usize,
        port: &Port,
        element: &PortElement,
    ) -> Option<FileInput> {
        let state = &manifest.states[at];
        let PortElement::Known(element) = *element else { return None };
        let (name, shape) = (&state.input, &state.shape);
        self.declared(Role::Input, name, &name.span, element, shape, &shape.span);
        let (name, row) = (&state.output, row_shape(shape));
        self.declared(Role::Output, name, &name.span, element, shape, &shape.span);
        port.shape.as_ref()?;
        Some(FileInput { feed: Feed::Memory(at), element, row, records: Records::of(shape) })
    }

    fn wanted(&mut self, manifest: &Manifest) -> Vec<usize> {
        let facts = self.facts;
        let position = |name: &str| facts.outputs.iter().position(|port| port.name == name);
        let mut names: Vec<&str> = manifest.outputs.iter().map(|output| output.name.as_str()).collect();
        for name in manifest.outputs.iter().flat_map(names_beside) {
            if self.port(Role::Output, name, &name.span).is_some() {
                names.push(name.as_str());
            }
        }
        names.extend(manifest.states.iter().map(|state| state.output.as_str()));
        if let Some(repeat) = &manifest.repeat {
            names.extend(repeat.states.iter().map(|state| state.output.as_str()));
            names.push(repeat.feed.output.as_str());
        }
        // A missing name was reported already, or is when the loop is checked.
        names.into_iter().filter_map(position).collect()
    }

    fn repeat(&mut self, manifest: &Manifest) {
        let Some(repeat) = &manifest.repeat else { return };
        if repeat.max_steps.value == 0 {
            self.wrong_loop("max_steps must be 1 or more", &repeat.max_steps.span);
        }
        for state in &repeat.states {
            let input = self.port(Role::Input, &state.input, &state.input.span);
            let output = self.port(Role::Output, &state.output, &state.output.span);
            let (Some((_, input)), Some((_, output))) = (input, output) else { continue };
            if fixed_row(input).is_none() || matches!(input.element, PortElement::Other(_)) {
                self.wrong_loop(
                    format!(
                        "state `{}` is {}; a state needs a type that a manifest can name, and fixed dimensions besides the batch",
                        input.name,
                        input.type_text()
                    ),
                    &state.input.span,
                );
            } else if input.element != output.element
                || fixed_row(output).is_some_and(|row| Some(row) != fixed_row(input))
            {
                self.wrong_loop(
                    format!(
                        "state `{}` is {}, but `{}`, which is fed back into it, is {}",
                        input.name,
                        input.type_text(),
                        output.name,
                        output.type_text()
                    ),
                    &state.output.span,
                );
            }
            if matches!(state.initial, Initial::Constant(value) if !value.is_finite()) {
                self.wrong_loop(
                    format!("the initial value of `{}` is not finite", input.name),
                    &state.input.span,
                );
            }
        }
        let feed = &repeat.feed;
        if let Some((_, input)) = self.port(Role::Input, &feed.input, &feed.input.span)
            && (input.element != PortElement::Known(ElementType::Int64)
                || fixed_row(input).is_none_or(|row| row.iter().product::<usize>() != 1))
        {
            self.wrong_loop(
                format!(
                    "the token input `{}` must be one int64 per record, but is {}",
                    input.name,
                    input.type_text()
                ),
                &feed.input.span,
            );
        }
        let labels = repeat.collect.labels.len();
        if let Some((_, output)) = self.port(Role::Output, &feed.output, &feed.output.span) {
            let classes = output.shape.as_ref().and_then(|shape| shape.get(1..)?.last());
            if output.element != PortElement::Known(ElementType::Float32)
                || classes != Some(&Dimension::Fixed(labels))
            {
                self.wrong_loop(
                    format!(
                        "the token scores `{}` must be float32 with one value for each of the {labels} \
                         labels in the last dimension, but are {}",
                        output.name,
                        output.type_text()
                    ),
                    &feed.output.span,
                );
            }
        }
    }

    fn wrong_loop(&mut self, message: impl Into<String>, span: &Span) {
        self.errors.push(ModelError::Loop { message: message.into(), span: span.clone() });
    }
}

/// Checks the steps before the model.
fn wrong_input_steps(input: &ModelInput) -> Option<ModelError> {
    let error = InputSteps::new(input, &row_shape(&input.shape)).err()?;
    Some(ModelError::Steps {
        role: Role::Input,
        name: input.name.to_string(),
        message: error.message,
        span: input.preprocess.first().map_or(&input.shape.span, |step| &step.span).clone(),
    })
}

/// Checks the steps after the model.
fn wrong_output_steps(output: &ModelOutput) -> Option<ModelError> {
    let error = OutputSteps::new(output, &row_shape(&output.shape)).err()?;
    Some(ModelError::Steps {
        role: Role::Output,
        name: output.name.to_string(),
        message: error.message,
        span: output.postprocess.first().map_or(&output.shape.span, |step| &step.span).clone(),
    })
}

/// Returns whether a step reads metadata of the model file.
fn reads_metadata(output: &ModelOutput) -> bool {
    let reads = |step: &Located<Postprocess>| {
        matches!(
            step.value,
            Postprocess::CtcDecode { alphabet_metadata: Some(_), .. }
                | Postprocess::CtcDecode { alphabet_file: Some(_), .. }
        )
    };
    output.postprocess.iter().any(reads)
}

/// The shape without the batch dimension.
fn row_shape(shape: &[manifest::Dimension]) -> Vec<usize> {
    let size = |dimension: &manifest::Dimension| match dimension {
        manifest::Dimension::Fixed(size) => *size as usize,
        manifest::Dimension::Batch | manifest::Dimension::Any => 1,
    };
    manifest::Dimension::row(shape).iter().map(size).collect()
}

/// The shape without the batch dimension, if all of it is fixed.
fn fixed_row(port: &Port) -> Option<Vec<usize>> {
    port.shape
        .as_ref()?
        .get(1..)?
        .iter()
        .map(|dimension| match dimension {
            Dimension::Fixed(size) => Some(*size),
            Dimension::Free(_) => None,
        })
        .collect()
}

/// Returns whether the port of the file matches the manifest. A free dimension of the file fits every size; the trial run shows
/// whether the size is right.
fn fits(element: ElementType, shape: &[manifest::Dimension], port: &Port) -> bool {
    if port.element != PortElement::Known(element) {
        return false;
    }
    let Some(found) = &port.shape else { return true };
    found.len() == shape.len()
        && shape.iter().zip(found).all(|(expected, found)| match (expected, found) {
            (_, Dimension::Free(_)) => true,
            (manifest::Dimension::Any, Dimension::Fixed(_)) => false,
            (manifest::Dimension::Batch, Dimension::Fixed(size)) => *size == 1,
            (manifest::Dimension::Fixed(expected), Dimension::Fixed(found)) => *expected as usize == *found,
        })
}
