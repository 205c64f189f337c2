//! The tensors passed between an encoder and its decoder, checked before anything runs.
use super::ports::Ports;
use super::token_loop::{CacheTensor, Source, StepInput, TokenLoop};
use super::tokenizer::{Tokenizer, Vocabulary};
use crate::error::{ModelError, Role};
use crate::facts::{self, ModelFacts};
use crate::preprocess::tokens;
use std::path::{Path, PathBuf};
use tidemill_spec::digest::sha256;
use tidemill_spec::manifest::{Decoder, Manifest, Preprocess};
use tidemill_spec::span::Located;
use tidemill_spec::types::ElementType;

/// Section of the manifest.
const SECTION: &str = "decoder";
/// Fixed tensors of the decoder.
const ENCODED: usize = 0;
const MASK: usize = 1;

/// Advice for an input that nothing feeds.
const ADVICE: &str = "name it under `decoder`: `encoded`, `mask`, `feed` and `cache` feed its inputs";

/// Source of the values of one input of the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderFeed {
    /// The prepared record.
    Record,
    /// A 1 for each of its values.
    Mask,
}

/// A matching encoder and decoder.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) decoder: ModelFacts,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) encoder_feeds: Vec<EncoderFeed>,
    /// Position of the decoder's input among the encoder's outputs.
    pub(crate) encoded: usize,
    /// Fixed tensors: the encoder's output, and a 1 for each value of the record.
    pub(crate) decoding: TokenLoop,
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
    let vocabulary = vocabulary(decoder, folder).map_err(|error| vec![error])?;
    let mut comparison = Ports::new(SECTION);
    let plan = comparison.plan(manifest, decoder, encoder, facts, vocabulary);
    match plan {
        Some(plan) if comparison.errors.is_empty() => Ok(plan),
        _ => Err(comparison.errors),
    }
}

fn changed(path: PathBuf, expected: &Located<String>, found: String) -> ModelError {
    ModelError::Checksum { path, expected: expected.value.clone(), found, span: expected.span.clone() }
}

fn vocabulary(decoder: &Decoder, folder: &Path) -> Result<Vocabulary, ModelError> {
    let path = folder.join(&decoder.tokenizer.file.value);
    let wrong = |message: String| ModelError::Decoder {
        section: SECTION,
        message,
        span: decoder.tokenizer.file.span.clone(),
    };
    let bytes =
        std::fs::read(&path).map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))?;
    let found = sha256(&bytes);
    if found != decoder.tokenizer.sha256.value {
        return Err(changed(path, &decoder.tokenizer.sha256, found));
    }
    if path.extension().is_some_and(|end| end == "json") {
        let read = tokens::Tokenizer::read(&path);
        return read.map(Vocabulary::Json).map_err(|error| wrong(format!("{error}; {}", error.fix())));
    }
    let read = Tokenizer::parse(&bytes).map_err(|error| wrong(format!("{}: {error}", path.display())));
    read.map(Vocabulary::Listed)
}

impl Ports {
    fn plan(
        &mut self,
        manifest: &Manifest,
        decoder: &Decoder,
        encoder: &ModelFacts,
        facts: ModelFacts,
        vocabulary: Vocabulary,
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
        let (inputs, cache) = self.decoder_inputs(decoder, &facts);
        for (what, token) in [("start", decoder.feed.start), ("end", decoder.end)] {
            if token as usize >= vocabulary.len() {
                let message = format!("the {what} token {token} is not among {} tokens", vocabulary.len());
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
            vocabulary,
            encoder_feeds,
            encoded: encoded?,
            decoding: TokenLoop { inputs, scores: scores?, cache },
            sample_rate: rate?,
        })
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
                    ADVICE,
                    manifest.inputs.last().map_or(&manifest.file.span, |input| &input.name.span),
                );
            }
        }
        feeds
    }

    fn decoder_inputs(
        &mut self,
        decoder: &Decoder,
        facts: &ModelFacts,
    ) -> (Vec<StepInput>, Vec<CacheTensor>) {
        let cache = &decoder.cache;
        let (mut inputs, mut tensors) = (Vec::new(), Vec::new());
        for port in &facts.inputs {
            let is = |name: &Located<String>| name.value == port.name;
            let mut counts_records = true;
            let source = if is(&decoder.feed.input) {
                Source::Tokens
            } else if is(&decoder.encoded.input) {
                Source::Fixed(ENCODED)
            } else if decoder.mask.as_ref().is_some_and(|mask| is(&mask.decoder)) {
                Source::Fixed(MASK)
            } else if cache.flag.as_ref().is_some_and(is) {
                counts_records = false;
                Source::Flag
            } else if let Some(rest) = port.name.strip_prefix(&cache.inputs.value) {
                tensors.extend(self.cache_tensor(cache, port, rest, facts));
                Source::Cache(tensors.len().saturating_sub(1))
            } else {
                self.not_fed(port, ADVICE, &decoder.file.span);
                continue;
            };
            inputs.push(StepInput { source, element: ElementType::Int64, counts_records });
        }
        if tensors.is_empty() {
            self.no_cache(cache);
        }
        (inputs, tensors)
    }
}
