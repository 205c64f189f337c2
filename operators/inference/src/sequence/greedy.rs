//! The loop of a decoder: it always takes the most likely token, until the end token or the largest number of tokens.
//!
//! It decodes one record at a time: texts end at different lengths, and sounds have different ones.
use super::plan::{DecoderFeed, EncoderFeed, Plan};
use crate::backend::{BackendError, Session};
use crate::postprocess::scores::argmax;
use crate::tensor::{Tensor, TensorData};
use tidemill_spec::manifest::Decoder;

/// A loaded decoder.
pub(crate) struct Greedy {
    pub(crate) session: Box<dyn Session>,
    pub(crate) model: String,
    /// Outputs read after the first token and after the others: the token scores first.
    first: Vec<usize>,
    later: Vec<usize>,
}

/// Decoded text of a record.
pub(crate) struct Written {
    /// Without the end token.
    pub(crate) tokens: Vec<usize>,
    /// Whether the end token came; else the largest number of tokens ended it.
    pub(crate) ended: bool,
    /// Whether a token was chosen among scores that are not numbers.
    pub(crate) undecided: bool,
}

impl Greedy {
    /// Creates a decoder for this plan; `model` is its name in messages.
    pub(crate) fn new(session: Box<dyn Session>, plan: &Plan, model: String) -> Self {
        let outputs = |all: bool| {
            let cache = plan.cache.iter().filter(|tensor| all || !tensor.fixed).map(|tensor| tensor.output);
            std::iter::once(plan.scores).chain(cache).collect()
        };
        Self { session, model, first: outputs(true), later: outputs(false) }
    }

    /// Decodes the tokens of one record. `record`: the values of the encoder's input.
    pub(crate) fn write(
        &mut self,
        encoder: &mut dyn Session,
        plan: &Plan,
        decoder: &Decoder,
        record: &Tensor,
        max_tokens: u32,
    ) -> Result<Written, BackendError> {
        let ones = Tensor::new(record.shape().to_vec(), TensorData::Int64(vec![1; record.data().len()]))
            .map_err(|error| self.failed(error.to_string()))?;
        let feed = |feed: &EncoderFeed| match feed {
            EncoderFeed::Record => record.clone(),
            EncoderFeed::Mask => ones.clone(),
        };
        let inputs: Vec<Tensor> = plan.encoder_feeds.iter().map(feed).collect();
        let encoded = encoder.run(&inputs, &[plan.encoded])?.pop();
        let encoded = encoded.ok_or_else(|| self.failed("the encoder returned nothing".to_owned()))?;
        drop(inputs);

        let mut inputs = self.first_inputs(plan, decoder, &ones, encoded)?;
        let (mut tokens, mut ended, mut undecided) = (Vec::new(), false, false);
        for step in 0..max_tokens {
            let wanted = if step == 0 { &self.first } else { &self.later };
            let mut results = self.session.run(&inputs, wanted)?.into_iter();
            let (token, is_nowhere) = self.likely(results.next())?;
            undecided |= is_nowhere;
            ended = token == decoder.end as usize;
            if ended {
                break;
            }
            tokens.push(token);
            let mut cache: Vec<Option<Tensor>> = vec![None; plan.cache.len()];
            let renewed = cache.iter_mut().zip(&plan.cache).filter(|(_, tensor)| step == 0 || !tensor.fixed);
            for ((slot, _), result) in renewed.zip(results) {
                *slot = Some(result);
            }
            for (input, feed) in inputs.iter_mut().zip(&plan.decoder_feeds) {
                match feed {
                    DecoderFeed::Token => *input = self.one(input.shape().to_vec(), token as i64)?,
                    DecoderFeed::Flag => *input = self.one(input.shape().to_vec(), 1)?,
                    DecoderFeed::Cache(i) => {
                        if let Some(renewed) = cache[*i].take() {
                            *input = renewed;
                        }
                    }
                    DecoderFeed::Encoded | DecoderFeed::Mask => {}
                }
            }
        }
        Ok(Written { tokens, ended, undecided })
    }

    /// Returns the decoder's inputs for the first token.
    fn first_inputs(
        &self,
        plan: &Plan,
        decoder: &Decoder,
        ones: &Tensor,
        encoded: Tensor,
    ) -> Result<Vec<Tensor>, BackendError> {
        let mut encoded = Some(encoded);
        let input = |feed: &DecoderFeed| match feed {
            DecoderFeed::Token => self.one(vec![1, 1], i64::from(decoder.feed.start)),
            DecoderFeed::Encoded => {
                encoded.take().ok_or_else(|| self.failed("the encoder's output is read twice".to_owned()))
            }
            DecoderFeed::Mask => Ok(ones.clone()),
            DecoderFeed::Flag => self.one(vec![1], 0),
            DecoderFeed::Cache(i) => {
                Tensor::new(plan.cache[*i].empty.clone(), TensorData::Float32(Vec::new()))
                    .map_err(|error| self.failed(format!("the empty cache: {error}")))
            }
        };
        plan.decoder_feeds.iter().map(input).collect()
    }

    /// Returns the most likely token by the scores of the last step, and whether some of them are not numbers.
    fn likely(&self, scores: Option<Tensor>) -> Result<(usize, bool), BackendError> {
        let width = scores.as_ref().and_then(|scores| scores.shape().last().copied()).unwrap_or(0);
        let values = scores.as_ref().and_then(Tensor::as_f32).unwrap_or_default();
        if width == 0 || values.len() < width {
            return Err(self.failed("the token scores are not float32 values for each token".to_owned()));
        }
        let last = &values[values.len() - width..];
        Ok((argmax(last), last.iter().any(|score| score.is_nan())))
    }

    fn one(&self, shape: Vec<usize>, value: i64) -> Result<Tensor, BackendError> {
        Tensor::new(shape, TensorData::Int64(vec![value])).map_err(|error| self.failed(error.to_string()))
    }

    fn failed(&self, reason: String) -> BackendError {
        BackendError::Run { backend: "decoder", model: self.model.clone(), reason }
    }
}

/// Largest number of tokens of a record of `samples` values.
pub(crate) fn most_tokens(plan: &Plan, decoder: &Decoder, samples: usize) -> u32 {
    let most = decoder.max_tokens.value;
    let Some(rate) = &decoder.tokens_per_second else { return most };
    let Some(seconds) = plan.seconds(samples) else { return most };
    most.min((seconds * rate.value).ceil() as u32)
}
