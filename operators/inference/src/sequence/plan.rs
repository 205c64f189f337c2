//! The tensors passed between an encoder and its decoder, checked before anything runs.
use super::tokenizer::Tokenizer;
use crate::error::{ModelError, Role};
use crate::facts::{self, Dimension, ModelFacts, Port, PortElement};
use std::path::{Path, PathBuf};
use tidemill_spec::digest::sha256;
use tidemill_spec::manifest::{Cache, Decoder, Manifest, Preprocess};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::ElementType;

/// Source of the values of one input of the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderFeed {
    /// The prepared record.
    Record,
    /// A 1 for each of its values.
    Mask,
}

/// Source of the values of one input of the decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DecoderFeed {
    /// The previous token.
    Token,
    /// The encoder's output.
    Encoded,
    /// A 1 for each value of the record.
    Mask,
    /// 0 with the first token, 1 after it.
    Flag,
    /// Tensor `i` of the cache.
    Cache(usize),
}

/// One tensor of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheTensor {
    /// Position among the decoder's outputs.
    pub(crate) output: usize,
    /// Shape before the first token, with no elements.
    pub(crate) empty: Vec<usize>,
    /// Whether it is constant after the first token.
    pub(crate) fixed: bool,
}

/// A matching encoder and decoder.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) decoder: ModelFacts,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) encoder_feeds: Vec<EncoderFeed>,
    /// Position of the decoder's input among the encoder's outputs.
    pub(crate) encoded: usize,
    pub(crate) decoder_feeds: Vec<DecoderFeed>,
    /// Position among the decoder's outputs of the token scores.
    pub(crate) scores: usize,
    pub(crate) cache: Vec<CacheTensor>,
    /// Samples per second of the record.
    pub(crate) sample_rate: u32,
    /// Whether the values of a record are its samples, and not a spectrum or a fixed-length cut.
    pub(crate) reads_samples: bool,
}

impl Plan {
    /// Duration of a record of `values` values; `None` if they do not determine it.
    pub(crate) fn seconds(&self, values: usize) -> Option<f64> {
        self.reads_samples.then(|| values as f64 / f64::from(self.sample_rate))
    }
}

/// Reads the decoder and its tokenizer from `folder` and compares them with the manifest and the encoder.
pub(crate) fn check(
    manifest: &Manifest,
    decoder: &Decoder,
    encoder: &ModelFacts,
    folder: &Path,
) -> Result<Plan, Vec<ModelError>> {
    let path = folder.join(&decoder.file.value);
    let facts = facts::inspect(&path)
        .map_err(|cause| vec![ModelError::File { cause, damaged: false, span: decoder.file.span.clone() }])?;
    if facts.sha256 != decoder.sha256.value {
        return Err(vec![changed(path, &decoder.sha256, facts.sha256)]);
    }
    let tokenizer = tokenizer(decoder, folder).map_err(|error| vec![error])?;
    let mut comparison = Comparison { errors: Vec::new() };
    let plan = comparison.plan(manifest, decoder, encoder, facts, tokenizer);
    match plan {
        Some(plan) if comparison.errors.is_empty() => Ok(plan),
        _ => Err(comparison.errors),
    }
}

fn changed(path: PathBuf, expected: &Located<String>, found: String) -> ModelError {
    ModelError::Checksum { path, expected: expected.value.clone(), found, span: expected.span.clone() }
}

fn tokenizer(decoder: &Decoder, folder: &Path) -> Result<Tokenizer, ModelError> {
    let path = folder.join(&decoder.tokenizer.file.value);
    let wrong = |message: String| ModelError::Decoder { message, span: decoder.tokenizer.file.span.clone() };
    let bytes =
        std::fs::read(&path).map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))?;
    let found = sha256(&bytes);
    if found != decoder.tokenizer.sha256.value {
        return Err(changed(path, &decoder.tokenizer.sha256, found));
    }
    Tokenizer::parse(&bytes).map_err(|error| wrong(format!("{}: {error}", path.display())))
}

struct Comparison {
    errors: Vec<ModelError>,
}

impl Comparison {
    fn wrong(&mut self, message: String, span: &Span) {
        self.errors.push(ModelError::Decoder { message, span: span.clone() });
    }

    fn position(&mut self, ports: &[Port], role: Role, name: &Located<String>) -> Option<usize> {
        let found = ports.iter().position(|port| port.name == name.value);
        if found.is_none() {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            self.errors.push(ModelError::NoPort {
                role,
                name: name.value.clone(),
                available: names.join(", "),
                span: name.span.clone(),
            });
        }
        found
    }

    /// An input that is fed must exist and have the element type that it is fed with.
    fn input(&mut self, ports: &[Port], name: &Located<String>, elements: &[&str]) {
        if let Some(at) = self.position(ports, Role::Input, name)
            && !elements.contains(&ports[at].element.to_string().as_str())
        {
            let message =
                format!("`{name}` gets {}, but is {}", elements.join(" or "), ports[at].type_text());
            self.wrong(message, &name.span);
        }
    }

    fn plan(
        &mut self,
        manifest: &Manifest,
        decoder: &Decoder,
        encoder: &ModelFacts,
        facts: ModelFacts,
        tokenizer: Tokenizer,
    ) -> Option<Plan> {
        self.input(&facts.inputs, &decoder.encoded.input, &["float32"]);
        self.input(&facts.inputs, &decoder.feed.input, &["int64"]);
        if let Some(mask) = &decoder.mask {
            self.input(&encoder.inputs, &mask.encoder, &["int64"]);
            self.input(&facts.inputs, &mask.decoder, &["int64"]);
        }
        if let Some(flag) = &decoder.cache.flag {
            self.input(&facts.inputs, flag, &["bool", "int64"]);
        }
        let encoded = self.position(&encoder.outputs, Role::Output, &decoder.encoded.output);
        let scores = self.position(&facts.outputs, Role::Output, &decoder.feed.output);
        let encoder_feeds = self.encoder_feeds(manifest, decoder, encoder);
        let (decoder_feeds, cache) = self.decoder_feeds(decoder, &facts);
        for (what, token) in [("start", decoder.feed.start), ("end", decoder.end)] {
            if token as usize >= tokenizer.len() {
                let message = format!("the {what} token {token} is not among {} tokens", tokenizer.len());
                self.wrong(message, &decoder.tokenizer.file.span);
            }
        }
        let steps = manifest.inputs.iter().flat_map(|input| &input.preprocess);
        let rate = steps
            .filter_map(|step| match step.value {
                Preprocess::Resample { sample_rate } | Preprocess::LogMel { sample_rate, .. } => {
                    Some(sample_rate)
                }
                _ => None,
            })
            .next_back();
        let mut steps = manifest.inputs.iter().flat_map(|input| &input.preprocess);
        let reads_samples =
            !steps.any(|step| matches!(step.value, Preprocess::PadOrTrim { .. } | Preprocess::LogMel { .. }));
        Some(Plan {
            reads_samples,
            decoder: facts,
            tokenizer,
            encoder_feeds,
            encoded: encoded?,
            decoder_feeds,
            scores: scores?,
            cache,
            sample_rate: rate?,
        })
    }

    fn not_fed(&mut self, port: &Port, span: &Span) {
        let (name, found, span) = (port.name.clone(), port.type_text(), span.clone());
        let advice =
            "name it under `decoder`: `encoded`, `mask`, `feed` and `cache` feed its inputs".to_owned();
        self.errors.push(ModelError::NotFed { name, found, advice, span });
    }

    fn encoder_feeds(
        &mut self,
        manifest: &Manifest,
        decoder: &Decoder,
        encoder: &ModelFacts,
    ) -> Vec<EncoderFeed> {
        let mut feeds = Vec::new();
        for port in &encoder.inputs {
            if manifest.inputs.iter().any(|input| input.name.value == port.name) {
                feeds.push(EncoderFeed::Record);
            } else if decoder.mask.as_ref().is_some_and(|mask| mask.encoder.value == port.name) {
                feeds.push(EncoderFeed::Mask);
            } else {
                self.not_fed(
                    port,
                    manifest.inputs.last().map_or(&manifest.file.span, |input| &input.name.span),
                );
            }
        }
        feeds
    }

    fn decoder_feeds(
        &mut self,
        decoder: &Decoder,
        facts: &ModelFacts,
    ) -> (Vec<DecoderFeed>, Vec<CacheTensor>) {
        let cache = &decoder.cache;
        let (mut feeds, mut tensors) = (Vec::new(), Vec::new());
        for port in &facts.inputs {
            let is = |name: &Located<String>| name.value == port.name;
            if is(&decoder.feed.input) {
                feeds.push(DecoderFeed::Token);
            } else if is(&decoder.encoded.input) {
                feeds.push(DecoderFeed::Encoded);
            } else if decoder.mask.as_ref().is_some_and(|mask| is(&mask.decoder)) {
                feeds.push(DecoderFeed::Mask);
            } else if cache.flag.as_ref().is_some_and(is) {
                feeds.push(DecoderFeed::Flag);
            } else if let Some(rest) = port.name.strip_prefix(&cache.inputs.value) {
                feeds.push(DecoderFeed::Cache(tensors.len()));
                tensors.extend(self.cache_tensor(cache, port, rest, facts));
            } else {
                self.not_fed(port, &decoder.file.span);
            }
        }
        if tensors.is_empty() {
            let message = format!("no input of the decoder starts with `{}`", cache.inputs);
            self.wrong(message, &cache.inputs.span);
        }
        (feeds, tensors)
    }

    fn cache_tensor(
        &mut self,
        cache: &Cache,
        port: &Port,
        rest: &str,
        facts: &ModelFacts,
    ) -> Option<CacheTensor> {
        let name = format!("{}{rest}", cache.outputs);
        let Some(output) = facts.outputs.iter().position(|output| output.name == name) else {
            self.wrong(
                format!("`{}` needs the output `{name}`, which the decoder does not have", port.name),
                &cache.outputs.span,
            );
            return None;
        };
        let Some(shape) =
            port.shape.as_ref().filter(|_| port.element == PortElement::Known(ElementType::Float32))
        else {
            self.wrong(
                format!("`{}` is {}; a cache is float32 of a known rank", port.name, port.type_text()),
                &cache.inputs.span,
            );
            return None;
        };
        let size = |(at, dimension): (usize, &Dimension)| match dimension {
            Dimension::Fixed(size) => *size,
            Dimension::Free(_) => usize::from(at == 0),
        };
        Some(CacheTensor {
            output,
            empty: shape.iter().enumerate().map(size).collect(),
            fixed: cache.fixed.as_ref().is_some_and(|part| port.name.contains(part.as_str())),
        })
    }
}
