//! The steps of a manifest after a model, checked against the declared shapes and made ready to run.
use crate::blueprint;
use crate::origin::{Origin, TextParts};
use crate::output_column::{OutputColumn, scalars};
use crate::postprocess::boxes::{BOX_NUMBERS, BoxDecoder, outputs_beside};
use crate::postprocess::ctc::CtcDecoder;
use crate::postprocess::entities::EntityDecoder;
use crate::postprocess::head::Part;
use crate::postprocess::join::Joiner;
use crate::postprocess::pool::{computed, place};
use crate::postprocess::text_boxes::TextBoxDecoder;
use crate::postprocess::vectors::VectorStep;
use crate::steps::{StepsError, wrong};
use crate::tensor::{Tensor, TensorData};
use tidemill_spec::manifest::{Dimension, ModelOutput, OutputType, Postprocess, TopValues};
use tidemill_spec::types::{ColumnType, ElementType};

/// The conversion of one model output to one column.
pub struct OutputSteps {
    /// Shape of a row.
    shape: Vec<usize>,
    vectors: Vec<VectorStep>,
    last: Last,
}

/// The step that gives the column.
enum Last {
    Tensor,
    Scalar(OutputType),
    Label(Vec<String>),
    Position,
    Max,
    TopK { k: usize, give: TopValues, labels: Vec<String> },
    Ctc(CtcDecoder),
    CtcOfClasses(CtcDecoder),
    Boxes(Box<BoxDecoder>),
    TextBoxes(TextBoxDecoder),
    Entities(EntityDecoder),
    Join(Joiner),
}

/// Inputs of the last step other than its own output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Outputs of the file that a head reads too, each with the rows of the batch first.
    pub outputs: &'a [Tensor],
    /// The picture or text that each record was made of; empty if that is not known.
    pub origins: &'a [Origin],
    /// Shape of a row, if the declared one leaves a dimension open.
    pub shape: Option<&'a [usize]>,
}

impl OutputSteps {
    /// Prepares the steps of `output`. `shape`: the shape of one row, without the batch.
    ///
    /// # Errors
    /// [`StepsError`] if the steps do not fit each other, the shape or the column's type.
    pub fn new(output: &ModelOutput, shape: &[usize]) -> Result<Self, StepsError> {
        Self::with_picture(output, shape, None)
    }

    /// Like [`OutputSteps::new`], for a model that reads a picture of this width and height.
    ///
    /// # Errors
    /// See [`OutputSteps::new`].
    pub fn with_picture(
        output: &ModelOutput,
        shape: &[usize],
        picture: Option<[f32; 2]>,
    ) -> Result<Self, StepsError> {
        let numbers = output.dtype != ElementType::Text;
        if !output.postprocess.is_empty() && !numbers {
            return wrong("steps need numbers, the output is text");
        }
        let mut row = shape.to_vec();
        let mut sides = Dimension::row(&output.shape);
        let (mut vectors, mut last) = (Vec::new(), None);
        for (index, step) in output.postprocess.iter().enumerate() {
            if last.is_some() {
                return wrong(
                    "no step can follow argmax, max, top_k, ctc_decode, entities, join, decode_boxes or text_boxes",
                );
            }
            let classes = row.last().copied().unwrap_or(1);
            let is_vector = row.iter().product::<usize>() == classes;
            match &step.value {
                Postprocess::Softmax {} => vectors.push(VectorStep::Softmax),
                Postprocess::Sigmoid {} => vectors.push(VectorStep::Sigmoid),
                Postprocess::L2Norm {} => vectors.push(VectorStep::L2Norm),
                Postprocess::Transpose {} => {
                    let [.., a, b] = row.as_mut_slice() else {
                        return wrong(format!("transpose needs two dimensions, but the shape is {row:?}"));
                    };
                    std::mem::swap(a, b);
                    if let [.., a, b] = sides.as_mut_slice() {
                        std::mem::swap(a, b);
                    }
                    vectors.push(VectorStep::Transpose);
                }
                Postprocess::DecodeBoxes(decoding) if vectors.is_empty() => {
                    let decoder = BoxDecoder::new(decoding, picture);
                    let is_alone = outputs_beside(decoding).is_empty();
                    let is_open = output.shape.contains(&Dimension::Any);
                    // The other shapes are known when the model runs.
                    if is_alone
                        && !is_open
                        && (decoding.grid.is_none() || picture.is_some())
                        && let Some(reason) = decoder.refusal(&[shape])
                    {
                        return wrong(reason);
                    }
                    last = Some(Last::Boxes(Box::new(decoder)));
                }
                Postprocess::DecodeBoxes(_) => return wrong("decode_boxes must be the only step"),
                Postprocess::TextBoxes(decoding) if vectors.is_empty() => {
                    let Some(decoder) = TextBoxDecoder::new(decoding, shape) else {
                        return wrong(format!(
                            "text_boxes reads [height, width] or [1, height, width], but the shape is {shape:?}"
                        ));
                    };
                    last = Some(Last::TextBoxes(decoder));
                }
                Postprocess::TextBoxes(_) => return wrong("text_boxes must be the only step"),
                Postprocess::Max {} | Postprocess::Argmax { .. } | Postprocess::TopK { .. } if !is_vector => {
                    return wrong(format!("the step reads one vector, but the shape is {row:?}"));
                }
                Postprocess::Max {} => last = Some(Last::Max),
                Postprocess::Argmax { labels, .. }
                | Postprocess::TopK { labels, .. }
                | Postprocess::Entities { labels, .. }
                | Postprocess::Join { labels, .. }
                    if !labels.is_empty() && labels.len() != classes =>
                {
                    return wrong(format!("there are {} labels, but the shape is {row:?}", labels.len()));
                }
                Postprocess::Argmax { labels, labels_file, labels_metadata } => {
                    let has_labels = !labels.is_empty() || labels_file.is_some() || labels_metadata.is_some();
                    last = Some(if has_labels { Last::Label(labels.clone()) } else { Last::Position });
                }
                Postprocess::TopK { k, labels, .. } => {
                    let k = *k as usize;
                    if k > classes {
                        return wrong(format!("top_k gives {k} values, but the shape is {row:?}"));
                    }
                    let (give, labels) = (top_values(&step.value), labels.clone());
                    last = Some(Last::TopK { k, give, labels });
                }
                Postprocess::Entities { .. } | Postprocess::Join { .. } if row.len() != 2 => {
                    return wrong(format!(
                        "the step reads a vector for each part of the text, [parts, classes], but the shape is {row:?}"
                    ));
                }
                Postprocess::Entities { labels, scheme, ignore, .. } => {
                    last = Some(Last::Entities(EntityDecoder::new(labels, *scheme, ignore)));
                }
                Postprocess::Join { labels, before, .. } => {
                    last = Some(Last::Join(Joiner::new(labels, *before)));
                }
                Postprocess::CtcDecode { alphabet, blank, classes: texts, .. } if row.len() == 1 => {
                    let decoder = CtcDecoder::of_classes(&ctc_texts(alphabet, texts), *blank as usize);
                    let Some(decoder) = decoder else {
                        return wrong(format!("the blank {blank} is none of the classes"));
                    };
                    last = Some(Last::CtcOfClasses(decoder));
                }
                Postprocess::MeanPool { .. } | Postprocess::Pick { .. } if row.is_empty() => {
                    return wrong("mean_pool and pick read a dimension, but there is one value");
                }
                Postprocess::MeanPool { .. } if index > 0 => return wrong("mean_pool is the first step"),
                Postprocess::MeanPool { .. } => drop((row.remove(0), sides.remove(0))),
                Postprocess::Pick { at } => {
                    let (places, side) = (row.remove(0), sides.remove(0));
                    let is_open = side == Dimension::Any;
                    let chosen = place(*at, places);
                    match chosen {
                        _ if is_open && index == 0 => {}
                        _ if is_open => {
                            return wrong("pick after another step needs a first dimension of a fixed size");
                        }
                        Some(chosen) if index > 0 => vectors.push(VectorStep::Pick(chosen)),
                        Some(_) => {}
                        None => {
                            return wrong(format!(
                                "pick takes place {at} of {places}; they count from 0, and from -1 at the end"
                            ));
                        }
                    }
                }
                Postprocess::CtcDecode { alphabet, blank, classes: texts, .. } => {
                    let texts = ctc_texts(alphabet, texts);
                    let decoder = CtcDecoder::new(&texts, *blank as usize, classes);
                    let Some(decoder) = decoder.filter(|_| row.len() == 2) else {
                        return wrong(format!(
                            "ctc_decode of {} characters and blank {blank} reads [steps, characters + 1] \
                             values, but the shape is {row:?}",
                            texts.len()
                        ));
                    };
                    last = Some(Last::Ctc(decoder));
                }
            }
        }
        if matches!(last, Some(Last::Label(_) | Last::Ctc(_) | Last::CtcOfClasses(_) | Last::Position)) {
            // They keep the order of the scores of a vector, but would turn an infinite one into NaN. A transposition puts
            // scores of several vectors into one.
            let turned =
                vectors.iter().rposition(|step| *step == VectorStep::Transpose).map_or(0, |at| at + 1);
            let kept = vectors.split_off(turned).into_iter().filter(|step| !step.computes());
            vectors.extend(kept.collect::<Vec<_>>());
        }
        let given = match &last {
            Some(
                Last::Label(_) | Last::Ctc(_) | Last::CtcOfClasses(_) | Last::Entities(_) | Last::Join(_),
            ) => OutputType::Text,
            Some(Last::Position) => OutputType::Int64,
            Some(Last::Max) => OutputType::Float64,
            Some(_) => OutputType::Tensor,
            None if output.output_type == OutputType::Tensor => OutputType::Tensor,
            None if row.iter().product::<usize>() == 1 => output.output_type,
            None => OutputType::Tensor,
        };
        if given != output.output_type {
            let name = |output_type| match output_type {
                OutputType::Tensor => "a tensor",
                OutputType::Text => "text",
                OutputType::Float64 => "one float64",
                OutputType::Int64 => "one int64",
                OutputType::Bool => "one bool",
            };
            return wrong(format!(
                "the result of the steps is {}, but the column is {}",
                name(given),
                name(output.output_type)
            ));
        }
        let scalar = match output.output_type {
            OutputType::Tensor => Last::Tensor,
            scalar => Last::Scalar(scalar),
        };
        let shape = if blueprint::pools(output) { &shape[1..] } else { shape };
        Ok(Self { shape: shape.to_vec(), vectors, last: last.unwrap_or(scalar) })
    }

    /// Returns why these outputs cannot be decoded to boxes; the first is the output itself. Shapes are without the batch.
    pub(crate) fn refused(&self, shapes: &[&[usize]]) -> Option<String> {
        match &self.last {
            Last::Boxes(decoder) => decoder.refusal(shapes),
            _ => None,
        }
    }

    /// Returns whether a label would be chosen among scores that are not numbers (NaN): then none of them is the largest.
    pub fn is_undecided(&self, data: &TensorData) -> bool {
        let chooses = matches!(
            self.last,
            Last::Label(_)
                | Last::Position
                | Last::Max
                | Last::TopK { .. }
                | Last::Ctc(_)
                | Last::CtcOfClasses(_)
                | Last::Entities(_)
                | Last::Join(_)
        );
        chooses
            && match data {
                TensorData::Float32(values) => values.iter().any(|value| value.is_nan()),
                TensorData::Float16(values) => values.iter().any(|value| value.is_nan()),
                TensorData::Float64(values) => values.iter().any(|value| value.is_nan()),
                _ => false,
            }
    }

    /// Type of the column of an output whose rows have this shape.
    pub(crate) fn column_type(output: &ModelOutput, shape: &[usize]) -> ColumnType {
        match output.output_type {
            OutputType::Text => return ColumnType::Text,
            OutputType::Float64 => return ColumnType::Float64,
            OutputType::Int64 => return ColumnType::Int64,
            OutputType::Bool => return ColumnType::Bool,
            OutputType::Tensor => {}
        }
        let mut shape = if blueprint::pools(output) { shape[1..].to_vec() } else { shape.to_vec() };
        let mut element = output.dtype;
        for (index, step) in output.postprocess.iter().enumerate() {
            match &step.value {
                Postprocess::DecodeBoxes(decoding) => {
                    (element, shape) = (ElementType::Float32, vec![decoding.most as usize, BOX_NUMBERS]);
                }
                Postprocess::TextBoxes(decoding) => {
                    (element, shape) = (ElementType::Float32, vec![decoding.most as usize, BOX_NUMBERS]);
                }
                step @ Postprocess::TopK { k, .. } => {
                    shape = vec![*k as usize];
                    element = match top_values(step) {
                        TopValues::Values => element,
                        TopValues::Positions => ElementType::Int64,
                        TopValues::Labels => ElementType::Text,
                    };
                }
                Postprocess::Transpose {} => {
                    if let [.., a, b] = shape.as_mut_slice() {
                        std::mem::swap(a, b);
                    }
                }
                Postprocess::Pick { .. } if index > 0 && !shape.is_empty() => drop(shape.remove(0)),
                Postprocess::Pick { .. } => {}
                _ => element = computed(element),
            }
        }
        ColumnType::Tensor { element, shape }
    }

    /// Converts the values of all rows to a column.
    pub fn apply(&self, data: TensorData) -> OutputColumn {
        self.apply_beside(data, Beside::default())
    }

    /// Like [`OutputSteps::apply`], with what boxes need.
    pub fn apply_beside(&self, data: TensorData, beside: Beside<'_>) -> OutputColumn {
        if self.vectors.is_empty() {
            match self.last {
                Last::Tensor => return OutputColumn::Tensor(data),
                Last::Scalar(scalar) => return scalars(data, scalar),
                _ => {}
            }
        }
        let element = data.element();
        if element == ElementType::Text {
            return OutputColumn::Tensor(TensorData::Text(Vec::new())); // steps on texts are refused
        }
        let mut shape = beside.shape.unwrap_or(&self.shape).to_vec();
        let data = self.vectors.iter().fold(data, |data, step| step.apply(data, &mut shape));
        let size = shape.iter().product::<usize>().max(1);
        match &self.last {
            Last::Tensor => OutputColumn::Tensor(data.narrowed(element)),
            Last::Scalar(scalar) => scalars(data, *scalar),
            Last::Label(labels) => {
                let label = |at: usize| labels.get(at).cloned().unwrap_or_default();
                OutputColumn::Text(data.largest(size).into_iter().map(label).collect())
            }
            Last::Position => {
                OutputColumn::Int64(data.largest(size).into_iter().map(|at| at as i64).collect())
            }
            Last::Max => {
                let largest = data.largest(size).into_iter().enumerate();
                let places: Vec<usize> = largest.map(|(row, at)| row * size + at).collect();
                OutputColumn::Float64(data.picked(&places).to_f64())
            }
            Last::TopK { k, give, labels } => {
                let best = data.tops(size, *k);
                OutputColumn::Tensor(match give {
                    TopValues::Values => {
                        let rows = best.iter().enumerate();
                        let places: Vec<usize> =
                            rows.flat_map(|(row, best)| best.iter().map(move |at| row * size + at)).collect();
                        data.picked(&places).narrowed(element)
                    }
                    TopValues::Positions => {
                        TensorData::Int64(best.into_iter().flatten().map(|at| at as i64).collect())
                    }
                    TopValues::Labels => {
                        let label = |at: usize| labels.get(at).cloned().unwrap_or_default();
                        TensorData::Text(best.into_iter().flatten().map(label).collect())
                    }
                })
            }
            decoding => match data.into_f32() {
                TensorData::Float32(values) => self.decoded(decoding, &values, size, beside),
                other => OutputColumn::Tensor(other),
            },
        }
    }

    /// The result of a step that reads scores of 32 bits.
    fn decoded(&self, last: &Last, values: &[f32], size: usize, beside: Beside<'_>) -> OutputColumn {
        let rows = values.chunks_exact(size);
        match last {
            Last::Ctc(decoder) => OutputColumn::Text(rows.map(|row| decoder.decode(row)).collect()),
            Last::CtcOfClasses(decoder) => {
                OutputColumn::Text(rows.map(|row| decoder.decode_classes(row)).collect())
            }
            Last::Entities(decoder) => {
                OutputColumn::Text(labelled(rows, beside, |row, text| decoder.decode(row, text)))
            }
            Last::Join(joiner) => {
                OutputColumn::Text(labelled(rows, beside, |row, text| joiner.join(row, text)))
            }
            Last::TextBoxes(decoder) => {
                let boxes = rows.enumerate().flat_map(|(row, values)| {
                    let frame = beside.origins.get(row).map(Origin::frame).unwrap_or_default();
                    let mut boxes = decoder.decode(values);
                    for numbers in boxes.chunks_exact_mut(BOX_NUMBERS).filter(|numbers| numbers[4] > 0.0) {
                        let moved = frame.original([numbers[0], numbers[1], numbers[2], numbers[3]]);
                        numbers[..4].copy_from_slice(&moved);
                    }
                    boxes
                });
                OutputColumn::Tensor(TensorData::Float32(boxes.collect()))
            }
            Last::Boxes(decoder) => {
                OutputColumn::Tensor(TensorData::Float32(self.boxes(decoder, values, beside)))
            }
            Last::Tensor
            | Last::Scalar(_)
            | Last::Label(_)
            | Last::Position
            | Last::Max
            | Last::TopK { .. } => OutputColumn::Tensor(TensorData::Float32(values.to_vec())),
        }
    }

    fn boxes(&self, decoder: &BoxDecoder, values: &[f32], beside: Beside<'_>) -> Vec<f32> {
        let shape = beside.shape.unwrap_or(&self.shape);
        let size = shape.iter().product::<usize>();
        // A head that found nothing gives no values for its one record.
        let count = values.len().checked_div(size).unwrap_or(1);
        let others: Vec<(Vec<usize>, Vec<f32>)> = beside
            .outputs
            .iter()
            .map(|tensor| {
                let shape = tensor.shape().get(1..).unwrap_or_default().to_vec();
                match tensor.data().clone().into_f32() {
                    TensorData::Float32(values) => (shape, values),
                    _ => (shape, Vec::new()),
                }
            })
            .collect();
        let mut boxes = Vec::new();
        for row in 0..count {
            let values = values.get(row * size..(row + 1) * size).unwrap_or_default();
            let mut all = vec![Part { values, shape }];
            all.extend(others.iter().map(|(shape, values)| {
                let size: usize = shape.iter().product();
                Part { values: values.get(row * size..(row + 1) * size).unwrap_or_default(), shape }
            }));
            let frame = beside.origins.get(row).map(Origin::frame).unwrap_or_default();
            boxes.extend(decoder.decode(&all, frame));
        }
        boxes
    }
}

/// The result of a step on the scores of the parts of each text.
fn labelled<'a>(
    rows: impl Iterator<Item = &'a [f32]>,
    beside: Beside<'_>,
    step: impl Fn(&[f32], &TextParts) -> String,
) -> Vec<String> {
    let none = TextParts::default();
    let text = |row: usize| beside.origins.get(row).and_then(|origin| origin.text.as_deref());
    rows.enumerate().map(|(row, scores)| step(scores, text(row).unwrap_or(&none))).collect()
}

/// Texts of the classes of `ctc_decode`: those of a file, else the characters.
fn ctc_texts(alphabet: &str, classes: &[String]) -> Vec<String> {
    match classes {
        [] => alphabet.chars().map(String::from).collect(),
        classes => classes.to_vec(),
    }
}

/// Result of `top_k`: what is written, else labels if there are any.
fn top_values(step: &Postprocess) -> TopValues {
    match step {
        Postprocess::TopK { give: Some(give), .. } => *give,
        Postprocess::TopK { labels, labels_file: None, labels_metadata: None, .. } if labels.is_empty() => {
            TopValues::Positions
        }
        _ => TopValues::Labels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(steps: &str, kind: &str, dtype: &str, shape: &str) -> ModelOutput {
        let text = format!(
            "{{name: y, column: y, type: {kind}, dtype: {dtype}, shape: [batch, {shape}], postprocess: [{steps}]}}"
        );
        let source = tidemill_spec::span::SourceFile::new("output.yaml", text);
        tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap()
    }

    fn applied(steps: &str, kind: &str, values: &[f32], shape: &[usize]) -> Result<OutputColumn, StepsError> {
        let sides: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let steps = OutputSteps::new(&output(steps, kind, "float32", &sides.join(", ")), shape)?;
        Ok(steps.apply(TensorData::Float32(values.to_vec())))
    }

    #[test]
    fn one_output_gives_label_score_and_the_best() {
        let scores = [0.1, 0.7, 0.2, 0.5, 0.3, 0.2];
        let label = applied("argmax: {labels: [cat, dog, fox]}", "text", &scores, &[3]).unwrap();
        assert_eq!(label, OutputColumn::Text(vec!["dog".to_owned(), "cat".to_owned()]));
        let score = applied("max: {}", "float64", &scores, &[3]).unwrap();
        assert_eq!(score, OutputColumn::Float64(vec![f64::from(0.7f32), 0.5]));
        assert_eq!(applied("argmax: {}", "int64", &scores, &[3]).unwrap(), OutputColumn::Int64(vec![1, 0]));
        let best = applied("top_k: {k: 2, labels: [cat, dog, fox]}", "tensor", &scores, &[3]).unwrap();
        let texts = ["dog", "fox", "cat", "dog"].map(str::to_owned).to_vec();
        assert_eq!(best, OutputColumn::Tensor(TensorData::Text(texts)));
        let places = applied("softmax: {}, top_k: {k: 2}", "tensor", &scores, &[1, 3]).unwrap();
        assert_eq!(places, OutputColumn::Tensor(TensorData::Int64(vec![1, 2, 0, 1])));
        let values = applied("top_k: {k: 1, give: values}", "tensor", &scores, &[3]).unwrap();
        assert_eq!(values, OutputColumn::Tensor(TensorData::Float32(vec![0.7, 0.5])));
    }

    #[test]
    fn single_values_are_columns_of_numbers() {
        assert_eq!(applied("", "float64", &[0.5, 2.0], &[1]).unwrap(), OutputColumn::Float64(vec![0.5, 2.0]));
        let sigmoid = applied("sigmoid: {}", "float64", &[0.0], &[1, 1]).unwrap();
        assert_eq!(sigmoid, OutputColumn::Float64(vec![0.5]));
        let labels = OutputSteps::new(&output("", "int64", "int32", "1"), &[1]).unwrap();
        assert_eq!(labels.apply(TensorData::Int32(vec![3, 4])), OutputColumn::Int64(vec![3, 4]));
        let texts = OutputSteps::new(&output("", "text", "text", "1"), &[1]).unwrap();
        let yes = || vec!["yes".to_owned()];
        assert_eq!(texts.apply(TensorData::Text(yes())), OutputColumn::Text(yes()));
    }

    #[test]
    fn matrices_are_turned() {
        let turned = applied("transpose: {}", "tensor", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
        assert_eq!(turned, OutputColumn::Tensor(TensorData::Float32(vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0])));
        let column = output("transpose: {}, softmax: {}", "tensor", "float16", "2, 3");
        let column = OutputSteps::column_type(&column, &[2, 3]);
        assert_eq!(column.to_string(), "tensor<float16>[3, 2]");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (steps, kind, shape) in [
            ("argmax: {labels: [a, b]}", "text", &[3][..]),
            ("argmax: {}", "int64", &[2, 3]),
            ("max: {}, softmax: {}", "float64", &[3]),
            ("top_k: {k: 4}", "tensor", &[3]),
            ("transpose: {}", "tensor", &[3]),
            ("", "float64", &[3]),
            ("max: {}", "tensor", &[3]),
        ] {
            assert!(applied(steps, kind, &[0.0; 6], shape).is_err(), "{steps}");
        }
    }

    #[test]
    fn values_are_compared_with_the_precision_of_their_type() {
        let steps = |steps, kind, dtype| OutputSteps::new(&output(steps, kind, dtype, "3"), &[3]).unwrap();
        let close = || TensorData::Float64(vec![1.0, 1.000_000_000_1, 0.5]);
        let found = steps("argmax: {}", "int64", "float64").apply(close());
        assert_eq!(found, OutputColumn::Int64(vec![1]));
        let whole = || TensorData::Int64(vec![16_777_216, 16_777_217, 0]);
        assert_eq!(steps("argmax: {}", "int64", "int64").apply(whole()), OutputColumn::Int64(vec![1]));
        let best = "top_k: {k: 2, give: values}";
        let found = steps(best, "tensor", "int64").apply(whole());
        assert_eq!(found, OutputColumn::Tensor(TensorData::Int64(vec![16_777_217, 16_777_216])));
        let column = OutputSteps::column_type(&output(best, "tensor", "int64", "3"), &[3]);
        assert_eq!(column.to_string(), "tensor<int64>[2]");
        let large = TensorData::Float64(vec![1e300, -1e300, 0.0]);
        assert_eq!(steps("max: {}", "float64", "float64").apply(large), OutputColumn::Float64(vec![1e300]));
        let most = TensorData::Int32(vec![i32::MAX, 0, 1]);
        let found = steps("max: {}", "float64", "int32").apply(most);
        assert_eq!(found, OutputColumn::Float64(vec![2_147_483_647.0]));
        let shares = output("softmax: {}", "tensor", "float64", "3");
        assert_eq!(OutputSteps::column_type(&shares, &[3]).to_string(), "tensor<float64>[3]");
    }

    #[test]
    fn a_place_is_picked_after_other_steps() {
        let share = applied("softmax: {}, pick: {at: 1}", "float64", &[1.0, 1.0, 0.0, 0.0], &[2]).unwrap();
        assert_eq!(share, OutputColumn::Float64(vec![0.5, 0.5]));
        let last = applied("sigmoid: {}, pick: {at: -1}", "float64", &[9.0, 0.0], &[2]).unwrap();
        assert_eq!(last, OutputColumn::Float64(vec![0.5]));
        let label = "softmax: {}, pick: {at: 1}, argmax: {labels: [a, b]}";
        let label = applied(label, "text", &[9.0, 0.0, 0.0, 1.0], &[2, 2]).unwrap();
        assert_eq!(label, OutputColumn::Text(vec!["b".to_owned()]));
        let across = "softmax: {}, transpose: {}, pick: {at: 1}, argmax: {}";
        let across = applied(across, "int64", &[0.0, 5.0, 90.0, 9.0], &[2, 2]).unwrap();
        assert_eq!(
            across,
            OutputColumn::Int64(vec![0]),
            "the vector whose probability of class 1 is largest"
        );
        let row = output("softmax: {}, pick: {at: 0}", "tensor", "float32", "2, 3");
        assert_eq!(OutputSteps::column_type(&row, &[2, 3]).to_string(), "tensor<float32>[3]");
        for steps in ["pick: {at: 2}", "pick: {at: -3}", "softmax: {}, pick: {at: 2}"] {
            let error = applied(steps, "float64", &[0.0; 2], &[2]).err().unwrap();
            assert!(error.message.contains("of 2; they count from 0"), "{error}");
        }
    }
}
