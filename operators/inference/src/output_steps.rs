//! The steps of a manifest after a model, checked against the declared shapes and made ready to run.
use crate::postprocess::boxes::{BOX_NUMBERS, BoxDecoder};
use crate::postprocess::ctc::CtcDecoder;
use crate::postprocess::scores;
use crate::postprocess::text_boxes::TextBoxDecoder;
use crate::steps::{StepsError, wrong};
use crate::tensor::TensorData;
use half::f16;
use tidemill_spec::manifest::{ModelOutput, OutputType, Postprocess};
use tidemill_spec::types::ElementType;

/// The values of one output column, one for each row.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputColumn {
    /// Texts.
    Text(Vec<String>),
    /// The values of all rows, one after another.
    Tensor(TensorData),
}

/// The conversion of one model output to one column.
pub struct OutputSteps {
    width: usize,
    row: usize,
    scores: Vec<ScoreStep>,
    text: Option<TextStep>,
    boxes: Option<BoxStep>,
}

#[derive(Clone, Copy)]
enum ScoreStep {
    Softmax,
    L2Norm,
}

enum BoxStep {
    Head(BoxDecoder),
    Text(TextBoxDecoder),
}

impl BoxStep {
    fn decode(&self, values: &[f32]) -> Vec<f32> {
        match self {
            Self::Head(decoder) => decoder.decode(values),
            Self::Text(decoder) => decoder.decode(values),
        }
    }
}

enum TextStep {
    Labels(Vec<String>),
    Ctc(CtcDecoder),
}

impl OutputSteps {
    /// Prepares the steps of `output`. `shape`: the shape of one row, without the batch.
    ///
    /// # Errors
    /// [`StepsError`] if the steps do not fit each other, the shape or the column's type.
    pub fn new(output: &ModelOutput, shape: &[usize]) -> Result<Self, StepsError> {
        let floats = matches!(output.dtype, ElementType::Float32 | ElementType::Float16);
        if !output.postprocess.is_empty() && !floats {
            return wrong(format!("steps need float32 or float16 values, the output is {}", output.dtype));
        }
        let width = shape.last().copied().unwrap_or(1);
        let (mut scores, mut text, mut boxes) = (Vec::new(), None, None);
        for step in &output.postprocess {
            if text.is_some() || boxes.is_some() {
                return wrong("no step can follow argmax, ctc_decode, decode_boxes or text_boxes");
            }
            match &step.value {
                Postprocess::Softmax {} => scores.push(ScoreStep::Softmax),
                Postprocess::L2Norm {} => scores.push(ScoreStep::L2Norm),
                Postprocess::DecodeBoxes(decoding) if scores.is_empty() => {
                    let Some(decoder) = BoxDecoder::new(decoding, shape) else {
                        return wrong(format!(
                            "decode_boxes reads [places, numbers], but the shape is {shape:?}"
                        ));
                    };
                    boxes = Some(BoxStep::Head(decoder));
                }
                Postprocess::DecodeBoxes(_) => return wrong("decode_boxes must be the only step"),
                Postprocess::TextBoxes(decoding) if scores.is_empty() => {
                    let Some(decoder) = TextBoxDecoder::new(decoding, shape) else {
                        return wrong(format!(
                            "text_boxes reads [height, width] or [1, height, width], but the shape is {shape:?}"
                        ));
                    };
                    boxes = Some(BoxStep::Text(decoder));
                }
                Postprocess::TextBoxes(_) => return wrong("text_boxes must be the only step"),
                Postprocess::Argmax { labels } => {
                    if shape != [labels.len()] {
                        return wrong(format!(
                            "argmax has {} labels, but the shape is {shape:?}",
                            labels.len()
                        ));
                    }
                    text = Some(TextStep::Labels(labels.clone()));
                }
                Postprocess::CtcDecode { alphabet, blank, .. } => {
                    let decoder = CtcDecoder::new(alphabet, *blank as usize, width);
                    let Some(decoder) = decoder.filter(|_| shape.len() == 2) else {
                        return wrong(format!(
                            "ctc_decode of {} characters and blank {blank} reads [steps, characters + 1] \
                             values, but the shape is {shape:?}",
                            alphabet.chars().count()
                        ));
                    };
                    text = Some(TextStep::Ctc(decoder));
                }
            }
        }
        if text.is_some() {
            // They keep the order of scores, but would turn an infinite one into NaN.
            scores.clear();
        }
        match (output.output_type, text.is_some()) {
            (OutputType::Text, false) => wrong("a text column needs argmax or ctc_decode as its last step"),
            (OutputType::Tensor, true) => {
                wrong("argmax and ctc_decode return text, but the column is a tensor")
            }
            _ => Ok(Self { width, row: shape.iter().product(), scores, text, boxes }),
        }
    }

    /// Returns whether a text would be chosen among scores that are not numbers (NaN): then none of them is the largest.
    pub fn is_undecided(&self, data: &TensorData) -> bool {
        match data {
            TensorData::Float32(values) => self.text.is_some() && values.iter().any(|value| value.is_nan()),
            TensorData::Float16(values) => self.text.is_some() && values.iter().any(|value| value.is_nan()),
            _ => false,
        }
    }

    /// Type and shape of the column's values, if they differ from those of the model's tensor of this shape.
    pub(crate) fn column_shape(output: &ModelOutput, shape: &[usize]) -> (ElementType, Vec<usize>) {
        match output.postprocess.first().map(|step| &step.value) {
            Some(Postprocess::DecodeBoxes(decoding)) => {
                (ElementType::Float32, vec![decoding.most as usize, BOX_NUMBERS])
            }
            Some(Postprocess::TextBoxes(decoding)) => {
                (ElementType::Float32, vec![decoding.most as usize, BOX_NUMBERS])
            }
            _ => (output.dtype, shape.to_vec()),
        }
    }

    /// Converts the values of all rows to a column.
    pub fn apply(&self, data: TensorData) -> OutputColumn {
        let element = data.element();
        let is_as_it_is = self.scores.is_empty() && self.text.is_none() && self.boxes.is_none();
        let mut data = if is_as_it_is { data } else { data.widened() };
        if let (Some(boxes), TensorData::Float32(values)) = (&self.boxes, &data) {
            let rows = values.chunks_exact(self.row.max(1));
            return OutputColumn::Tensor(TensorData::Float32(
                rows.flat_map(|row| boxes.decode(row)).collect(),
            ));
        }
        if let TensorData::Float32(values) = &mut data {
            for step in &self.scores {
                match step {
                    ScoreStep::Softmax => scores::softmax(values, self.width),
                    ScoreStep::L2Norm => scores::l2_norm(values, self.width),
                }
            }
        }
        match (&self.text, &data) {
            (Some(TextStep::Labels(labels)), TensorData::Float32(values)) => OutputColumn::Text(
                values
                    .chunks_exact(self.row.max(1))
                    .map(|row| labels.get(scores::argmax(row)).cloned().unwrap_or_default())
                    .collect(),
            ),
            (Some(TextStep::Ctc(decoder)), TensorData::Float32(values)) => OutputColumn::Text(
                values.chunks_exact(self.row.max(1)).map(|row| decoder.decode(row)).collect(),
            ),
            (None, TensorData::Float32(values)) if element == ElementType::Float16 => {
                let narrow = values.iter().map(|value| f16::from_f32(*value)).collect();
                OutputColumn::Tensor(TensorData::Float16(narrow))
            }
            _ => OutputColumn::Tensor(data),
        }
    }
}
