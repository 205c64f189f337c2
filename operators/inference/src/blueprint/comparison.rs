//! Inputs, outputs and loop of a manifest compared with those of its file.
use super::{Feed, FileInput, Records, names_beside, picture_of, unfed};
use crate::alphabet;
use crate::error::{ModelError, Role};
use crate::exact::fitting;
use crate::facts::{Dimension, ModelFacts, Port, PortElement};
use crate::postprocess::head_shapes;
use crate::preprocess::tokens::Tokenizer;
use crate::steps::{InputSteps, OutputSteps};
use std::collections::HashSet;
use std::path::Path;
use tidemill_spec::manifest::{self, Initial, Manifest, ModelInput, ModelOutput, Number, Postprocess};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::ElementType;

/// A manifest beside the facts of one of its files, and the differences found.
pub(super) struct Comparison<'a> {
    pub(super) facts: &'a ModelFacts,
    pub(super) errors: Vec<ModelError>,
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
    pub(super) fn ports(&mut self, manifest: &Manifest) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
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
            let wrong = wrong_output_steps(output, picture_of(&manifest.inputs));
            self.errors.extend(wrong.or_else(|| self.exchanged(output)));
            for step in &output.postprocess {
                if let Postprocess::MeanPool { mask: Some(mask) } = &step.value {
                    self.port(Role::Input, mask, &mask.span);
                }
            }
            rows.1.push(row);
        }
        rows
    }

    /// Compares a detection head with the classes that the file names.
    fn exchanged(&self, output: &ModelOutput) -> Option<ModelError> {
        let names = self.facts.metadata.get("names").and_then(|names| alphabet::dictionary(names))?;
        let step = output.postprocess.first()?;
        let Postprocess::DecodeBoxes(decoding) = &step.value else { return None };
        if output.shape.contains(&manifest::Dimension::Any) {
            return None;
        }
        let task = self.facts.metadata.get("task").map(String::as_str);
        let message = head_shapes::of_other_classes(decoding, &row_shape(&output.shape), names.len(), task)?;
        let (name, span) = (output.name.to_string(), step.span.clone());
        Some(ModelError::Steps { role: Role::Output, name, message, span })
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

    /// Reads the tokenizers of the inputs.
    pub(super) fn tokenizers(&mut self, manifest: &Manifest, folder: &Path) -> Vec<Tokenizer> {
        let (mut read, mut messages) = (Vec::new(), HashSet::new());
        for input in &manifest.inputs {
            let Ok(mut steps) = InputSteps::new(input, &row_shape(&input.shape)) else { continue };
            match steps.open(folder) {
                Ok(()) => read.extend(steps.tokenizer().cloned()),
                // Several inputs read the same file.
                Err(error) if !messages.insert(error.message.clone()) => {}
                Err(error) => {
                    let span = input.preprocess.first().map_or(&input.name.span, |step| &step.span).clone();
                    let name = input.name.to_string();
                    self.errors.push(ModelError::Steps {
                        role: Role::Input,
                        name,
                        message: error.message,
                        span,
                    });
                }
            }
        }
        read
    }

    /// Returns the feed of each input of the file.
    pub(super) fn inputs(&mut self, manifest: &Manifest) -> Vec<FileInput> {
        if manifest.decoder.is_some() {
            return Vec::new(); // the plan says what feeds the encoder
        }
        for constant in &manifest.constants {
            self.port(Role::Input, &constant.name, &constant.name.span);
        }
        for state in &manifest.states {
            self.port(Role::Input, &state.input, &state.input.span);
        }
        let mut inputs = Vec::new();
        let filled =
            |port: &&Port| !manifest.generate.as_ref().is_some_and(|generate| generate.fills(&port.name));
        for port in self.facts.inputs.iter().filter(filled) {
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
                (None, _) => self.errors.push(unfed::error(manifest, self.facts, port)),
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
        if let Some(unfit) = constant.value.values().iter().find_map(|value| fitting(element, *value).err()) {
            wrong(unfit.to_string());
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
        if let Some(message) = unfit_initial(&state.initial, element) {
            let (name, span) = (state.input.to_string(), state.input.span.clone());
            self.errors.push(ModelError::Steps { role: Role::Input, name, message, span });
            return None;
        }
        Some(FileInput { feed: Feed::Memory(at), element, row, records: Records::of(shape) })
    }

    pub(super) fn wanted(&mut self, manifest: &Manifest) -> Vec<usize> {
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

    pub(super) fn repeat(&mut self, manifest: &Manifest) {
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
            if let PortElement::Known(element) = input.element
                && let Some(message) = unfit_initial(&state.initial, element)
            {
                self.wrong_loop(format!("state `{}`: {message}", input.name), &state.input.span);
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

/// Returns why the first value of a state is none of its element type.
fn unfit_initial(initial: &Initial, element: ElementType) -> Option<String> {
    let Initial::Constant(value) = *initial else { return None };
    if !value.is_finite() {
        return Some("the initial value is not finite".to_owned());
    }
    fitting(element, Number::Real(value)).err().map(|unfit| format!("the initial value {unfit}"))
}

/// Checks the steps before the model.
pub(super) fn wrong_input_steps(input: &ModelInput) -> Option<ModelError> {
    let error = InputSteps::new(input, &row_shape(&input.shape)).err()?;
    Some(ModelError::Steps {
        role: Role::Input,
        name: input.name.to_string(),
        message: error.message,
        span: input.preprocess.first().map_or(&input.shape.span, |step| &step.span).clone(),
    })
}

/// Checks the steps after a model that reads a picture of this size.
pub(super) fn wrong_output_steps(output: &ModelOutput, picture: Option<[f32; 2]>) -> Option<ModelError> {
    let error = OutputSteps::with_picture(output, &row_shape(&output.shape), picture).err()?;
    Some(ModelError::Steps {
        role: Role::Output,
        name: output.name.to_string(),
        message: format!("{}{}", error.message, with_batch(&output.shape)),
        span: output.postprocess.first().map_or(&output.shape.span, |step| &step.span).clone(),
    })
}

/// Advice for a shape without `batch` that may count records where it has a 1.
fn with_batch(shape: &[manifest::Dimension]) -> String {
    let one = manifest::Dimension::Fixed(1);
    let ones = shape.iter().filter(|side| **side == one).count();
    // A first dimension of 1 counts records by itself.
    if manifest::Dimension::batch_axis(shape).is_some() || ones != 1 || shape.first() == Some(&one) {
        return String::new();
    }
    let shape: Vec<String> =
        shape.iter().map(|side| if *side == one { "batch".to_owned() } else { side.to_string() }).collect();
    format!("; if the 1 counts records, write `batch` there: [{}]", shape.join(", "))
}

/// Returns whether a step reads metadata of the model file.
pub(super) fn reads_metadata(output: &ModelOutput) -> bool {
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
pub(super) fn row_shape(shape: &[manifest::Dimension]) -> Vec<usize> {
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
