//! A text of a record that an encoder reads as a whole: its decoder writes token by token.
use super::chooser::{Chooser, fingerprint};
use super::plan::{EncoderFeed, Plan};
use super::token_loop::{Task, Written, failed};
use crate::backend::{BackendError, Session, Timed};
use crate::tensor::{Tensor, TensorData};
use tidemill_spec::manifest::Decoder;

/// A loaded decoder.
pub(crate) struct EncoderDecoder {
    pub(crate) session: Timed,
    pub(crate) model: String,
}

impl EncoderDecoder {
    /// Decodes the tokens of one record. `record`: the values of the encoder's input.
    pub(crate) fn write(
        &mut self,
        encoder: &mut dyn Session,
        plan: &Plan,
        decoder: &Decoder,
        record: &Tensor,
        most: u32,
    ) -> Result<Written, BackendError> {
        let model = self.model.as_str();
        let ones = Tensor::new(record.shape().to_vec(), TensorData::Int64(vec![1; record.data().len()]))
            .map_err(|error| failed(model, error.to_string()))?;
        let feed = |feed: &EncoderFeed| match feed {
            EncoderFeed::Record => record.clone(),
            EncoderFeed::Mask => ones.clone(),
        };
        let inputs: Vec<Tensor> = plan.encoder_feeds.iter().map(feed).collect();
        let encoded = encoder.run(&inputs, &[plan.encoded])?.pop();
        let encoded = encoded.ok_or_else(|| failed(model, "the encoder returned nothing".to_owned()))?;
        drop(inputs);

        let number = || {
            let values = record.as_f32().unwrap_or_default();
            fingerprint(values.iter().map(|value| value.to_bits()))
        };
        let chooser = Chooser::new(decoder.sampling.as_ref(), decoder.repetition_penalty.as_ref(), number);
        let task = Task {
            model,
            tokens: vec![decoder.feed.start],
            fixed: vec![encoded, ones],
            chooser,
            end: &[decoder.end],
            most,
            is_whole: &|_| false,
        };
        plan.decoding.write(&mut self.session, task)
    }
}

/// Largest number of tokens of a record of `samples` values.
pub(crate) fn most_tokens(plan: &Plan, decoder: &Decoder, samples: usize) -> u32 {
    let most = decoder.max_tokens.value;
    let Some(rate) = &decoder.tokens_per_second else { return most };
    let Some(seconds) = plan.seconds(samples) else { return most };
    most.min((seconds * rate.value).ceil() as u32)
}
