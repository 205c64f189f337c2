//! A text after a prompt: the inputs of a language model, checked against its file, and the texts that it writes.
use super::chooser::{Chooser, fingerprint};
use super::ports::Ports;
use super::token_loop::{Source, StepInput, Task, TokenLoop, Written, failed};
use crate::backend::{BackendError, Session};
use crate::error::{ModelError, Role};
use crate::facts::{Dimension, ModelFacts, Port, PortElement};
use crate::preprocess::tokens::Tokenizer;
use crate::tensor::{Tensor, TensorData};
use tidemill_spec::manifest::{EndToken, Generate, Manifest};
use tidemill_spec::span::Located;
use tidemill_spec::types::ElementType;

/// Section of the manifest.
const SECTION: &str = "generate";

/// Types of tokens and positions.
const INTEGERS: &[&str] = &["int64", "int32"];

/// Compares the generation with the file. A fixed tensor is the input of that place among those that the loop does not
/// fill.
pub(crate) fn check(
    manifest: &Manifest,
    generate: &Generate,
    facts: &ModelFacts,
) -> Result<TokenLoop, Vec<ModelError>> {
    let mut ports = Ports::new(SECTION);
    let found = ports.token_loop(manifest, generate, facts);
    match found {
        Some(found) if ports.errors.is_empty() => Ok(found),
        _ => Err(ports.errors),
    }
}

impl Ports {
    fn token_loop(
        &mut self,
        manifest: &Manifest,
        generate: &Generate,
        facts: &ModelFacts,
    ) -> Option<TokenLoop> {
        let masks = [INTEGERS, &["float32", "bool"]].concat();
        for (name, elements) in [(&generate.mask, masks.as_slice()), (&generate.positions, INTEGERS)] {
            if let Some(name) = name {
                self.input(&facts.inputs, name, elements);
            }
        }
        if let Some(flag) = generate.cache.as_ref().and_then(|cache| cache.flag.as_ref()) {
            self.input(&facts.inputs, flag, &["bool", "int64"]);
        }
        let scores = self.position(&facts.outputs, Role::Output, &generate.logits)?;
        let port = &facts.outputs[scores];
        if !matches!(port.element, PortElement::Known(ElementType::Float32 | ElementType::Float16)) {
            let message = format!("`{}` is {}; scores are float32 or float16", port.name, port.type_text());
            self.wrong(message, &generate.logits.span);
        }
        let end = generate.end.all().iter().filter_map(number).max();
        let classes = port.shape.as_ref().and_then(|shape| shape.last());
        if let (Some(Dimension::Fixed(classes)), Some(end)) = (classes, end)
            && end as usize >= *classes
        {
            let message = format!("the end token {end} is not among {classes} tokens");
            self.wrong(message, &generate.end.span);
        }
        let prompt = manifest.prompt().map(|at| manifest.inputs[at].name.value.as_str());
        let (mut inputs, mut cache, mut others) = (Vec::new(), Vec::new(), 0);
        for port in &facts.inputs {
            let is =
                |name: &Option<Located<String>>| name.as_ref().is_some_and(|name| name.value == port.name);
            let mut counts_records = true;
            let mut element = ElementType::Int64;
            let names = generate.cache.as_ref();
            let source = if Some(port.name.as_str()) == prompt {
                element = made(port);
                others += 1;
                Source::Tokens
            } else if is(&generate.mask) {
                element = made(port);
                Source::Mask
            } else if is(&generate.positions) {
                element = made(port);
                counts_records = port.shape.as_ref().is_none_or(|shape| shape.len() != 1);
                if let (Some(name), Some(3..)) = (&generate.positions, port.shape.as_ref().map(Vec::len)) {
                    let message = format!("`{name}` is {}; a token has one position", port.type_text());
                    self.wrong(message, &name.span);
                }
                Source::Positions
            } else if names.is_some_and(|names| is(&names.flag)) {
                counts_records = false;
                Source::Flag
            } else if let Some((names, rest)) =
                names.and_then(|names| Some((names, port.name.strip_prefix(names.inputs.as_str())?)))
            {
                cache.extend(self.cache_tensor(names, port, rest, facts));
                Source::Cache(cache.len().saturating_sub(1))
            } else {
                // Whether anything feeds it is checked with the other inputs.
                others += 1;
                Source::Fixed(others - 1)
            };
            inputs.push(StepInput { source, element, counts_records });
        }
        if let Some(names) = generate.cache.as_ref().filter(|_| cache.is_empty()) {
            self.no_cache(names);
        }
        Some(TokenLoop { inputs, scores, cache })
    }
}

/// The type of an input with a value for each token.
fn made(port: &Port) -> ElementType {
    match port.element {
        PortElement::Known(element) => element,
        PortElement::Other(_) => ElementType::Int64,
    }
}

fn number(token: &EndToken) -> Option<u32> {
    match token {
        EndToken::Number(number) => Some(*number),
        EndToken::Name(_) => None,
    }
}

/// The texts of a model that is loaded.
pub(crate) struct Generator {
    tokenizer: Tokenizer,
    end: Vec<u32>,
    /// Number of the last tokens in which a new stop text can be.
    tail: usize,
    model: String,
}

impl Generator {
    /// Finds the tokens that end a text; `model` is its name in messages.
    pub(crate) fn new(generate: &Generate, tokenizer: Tokenizer, model: String) -> Result<Self, ModelError> {
        let id = |token: &EndToken| match token {
            EndToken::Number(number) => Ok(*number),
            EndToken::Name(name) => tokenizer.id(name).ok_or_else(|| ModelError::Decoder {
                section: SECTION,
                message: format!("the tokenizer has no token `{name}`"),
                span: generate.end.span.clone(),
            }),
        };
        let end = generate.end.all().iter().map(id).collect::<Result<_, _>>()?;
        // A token is a byte of a text or more, if it is not special.
        let tail = generate.stop.iter().map(|stop| stop.len() + 1).max().unwrap_or(0);
        Ok(Self { tokenizer, end, tail, model })
    }

    /// Writes the text of one record, at most `most` tokens. `inputs`: the tensors that the loop does not fill; the one at
    /// `prompt` has the tokens to begin with.
    pub(crate) fn write(
        &self,
        session: &mut dyn Session,
        steps: &TokenLoop,
        generate: &Generate,
        (mut inputs, prompt): (Vec<Tensor>, usize),
        most: u32,
    ) -> Result<(String, Written), BackendError> {
        let nothing = Tensor::zeros(ElementType::Float32, vec![0]);
        let tokens = inputs.get_mut(prompt).map(|tensor| std::mem::replace(tensor, nothing));
        let tokens: Vec<u32> = match tokens.map(Tensor::into_data) {
            Some(TensorData::Int64(values)) => {
                values.into_iter().map(|value| u32::try_from(value).unwrap_or(0)).collect()
            }
            Some(TensorData::Int32(values)) => {
                values.into_iter().map(|value| u32::try_from(value).unwrap_or(0)).collect()
            }
            _ => return Err(failed(&self.model, "the prompt has no tokens".to_owned())),
        };
        let room = generate.max_context.as_ref().map_or(most, |context| {
            most.min(context.value.saturating_sub(u32::try_from(tokens.len()).unwrap_or(u32::MAX)))
        });
        let chooser = Chooser::new(generate.sampling.as_ref(), generate.repetition_penalty.as_ref(), || {
            fingerprint(tokens.iter().copied())
        });
        let task = Task {
            model: &self.model,
            tokens,
            fixed: inputs,
            chooser,
            end: &self.end,
            most: room,
            is_whole: &|tokens| {
                let tail = &tokens[tokens.len().saturating_sub(self.tail)..];
                self.tail > 0 && self.stopped(generate, tail) && self.stopped(generate, tokens)
            },
        };
        let written = steps.write(session, task)?;
        let mut text = self
            .tokenizer
            .decode(&written.tokens)
            .map_err(|rejected| failed(&self.model, rejected.to_string()))?;
        if let Some(end) = stop(generate, &text) {
            text.truncate(end);
        }
        Ok((text, written))
    }

    /// Whether a text that ends the text is in these tokens.
    fn stopped(&self, generate: &Generate, tokens: &[u32]) -> bool {
        self.tokenizer.decode(tokens).is_ok_and(|text| stop(generate, &text).is_some())
    }
}

/// Position of the first text that ends the text.
fn stop(generate: &Generate, text: &str) -> Option<usize> {
    generate.stop.iter().filter_map(|stop| text.find(stop.as_str())).min()
}
