//! Texts that a model writes token by token.
use super::{Model, RawOutputs};
use crate::backend::BackendError;
use crate::blueprint::Feed;
use crate::prepared::PreparedRow;
use crate::sequence::encoder_decoder;
use crate::sequence::tokenizer::normalized;
use crate::tensor::{Tensor, TensorData};
use std::sync::Arc;

impl Model {
    /// Writes the text of each record; `None` if the model writes none.
    pub(super) fn texts(
        &mut self,
        rows: &[PreparedRow],
        max_tokens: u32,
    ) -> Result<Option<RawOutputs>, BackendError> {
        match self.generator {
            Some(_) => self.generate(rows, max_tokens).map(Some),
            None => self.decode(rows, max_tokens),
        }
    }

    /// Decodes the text of each record.
    fn decode(&mut self, rows: &[PreparedRow], max_tokens: u32) -> Result<Option<RawOutputs>, BackendError> {
        let (Some(writer), Some(plan), Some(decoder)) =
            (&mut self.decoder, &self.blueprint.sequence, &self.blueprint.manifest.decoder)
        else {
            return Ok(None);
        };
        let mut texts = Vec::with_capacity(rows.len());
        let (mut cut_off, mut undecided) = (0, false);
        for row in rows {
            let Some(values) = row.values.first() else { continue };
            let shape = match self.blueprint.input_rows.first() {
                Some(row) if row.iter().product::<usize>() == values.len() => [&[1], row.as_slice()].concat(),
                _ => vec![1, values.len()],
            };
            let failed = |error: crate::tensor::ShapeError| BackendError::Run {
                backend: self.backend,
                model: writer.model.clone(),
                reason: error.to_string(),
            };
            let record = Tensor::new(shape, values.clone()).map_err(failed)?;
            let most = max_tokens.min(encoder_decoder::most_tokens(plan, decoder, values.len()));
            let written = writer.write(&mut self.session, plan, decoder, &record, most)?;
            cut_off += u64::from(!written.ended);
            undecided |= written.undecided;
            let text = plan.vocabulary.text(&written.tokens).map_err(|reason| BackendError::Run {
                backend: self.backend,
                model: writer.model.clone(),
                reason,
            })?;
            texts.push(match &decoder.alphabet {
                Some(alphabet) => normalized(&text, alphabet),
                None => text,
            });
        }
        Ok(Some(RawOutputs { texts: Some(texts), cut_off, undecided, ..RawOutputs::default() }))
    }

    /// Writes the text after the prompt of each record.
    fn generate(&mut self, rows: &[PreparedRow], max_tokens: u32) -> Result<RawOutputs, BackendError> {
        let blueprint = Arc::clone(&self.blueprint);
        let prompt = blueprint.manifest.prompt();
        let prompt = blueprint
            .inputs
            .iter()
            .position(|input| matches!(input.feed, Feed::Column(at) if Some(at) == prompt));
        let mut raw = RawOutputs::default();
        let mut texts = Vec::with_capacity(rows.len());
        for row in rows {
            let inputs = self.inputs(std::slice::from_ref(row))?;
            let (Some(generator), Some(steps), Some(generate), Some(prompt)) =
                (&self.generator, &blueprint.generation, &blueprint.manifest.generate, prompt)
            else {
                continue;
            };
            let session = &mut self.session;
            let (text, written) = generator.write(session, steps, generate, (inputs, prompt), max_tokens)?;
            raw.cut_off += u64::from(!written.ended);
            raw.undecided |= written.undecided;
            if raw.first_scores.is_none() {
                let scores = TensorData::Float32(written.first_scores);
                raw.first_scores = Tensor::new(vec![1, scores.len()], scores).ok();
            }
            texts.push(text);
        }
        Ok(RawOutputs { texts: Some(texts), ..raw })
    }
}
