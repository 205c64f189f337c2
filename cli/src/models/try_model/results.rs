//! The results for a record, as values to show.
use super::boxes::{Found, found, gives_boxes, picture};
use super::records::Record;
use super::runs::Outcome;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::preprocess::Rejected;
use tidemill_inference::steps::OutputColumn;
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_spec::manifest::{ModelOutput, Postprocess, TopValues};
use tidemill_spec::types::ColumnType;

/// The results for a record.
pub(super) enum Results {
    /// The columns of the model.
    Columns(Vec<Item>),
    /// The record would become a dead letter.
    Rejected(Rejected),
}

/// A column.
pub(super) struct Item {
    pub(super) name: String,
    pub(super) value: Shown,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shown {
    /// A text; whether the model was stopped before its end.
    Text(String, bool),
    Float(f64),
    Integer(i64),
    Truth(bool),
    /// The labels or positions of `top_k`, with their scores if another column has them.
    Best(TensorData, Option<Vec<f64>>),
    /// Scores that are shown beside those labels.
    Beside(TensorData),
    /// Boxes, and the size of the picture: its width and height in pixels.
    Boxes(Vec<Found>, Option<(u32, u32)>),
    /// A tensor of this shape.
    Tensor(Vec<usize>, TensorData),
}

impl Results {
    /// Returns the results of a run.
    pub(super) fn of(blueprint: &Blueprint, record: &Record, outcome: &Outcome) -> Self {
        let ran = match outcome {
            Ok(ran) => ran,
            Err(rejected) => return Self::Rejected(rejected.clone()),
        };
        let outputs = &blueprint.manifest.outputs;
        let items = blueprint.output_columns().into_iter().zip(&ran.columns).enumerate();
        let items = items.map(|(at, (column, values))| {
            let value = match (outputs.get(at), values) {
                (Some(output), OutputColumn::Tensor(data)) if gives_boxes(output) => {
                    let size = picture(blueprint, record).map(|picture| picture.dimensions());
                    Shown::Boxes(found(blueprint, output, data), size)
                }
                (Some(output), OutputColumn::Tensor(data)) => match top(output) {
                    Some((_, TopValues::Values)) if is_beside(outputs, output) => Shown::Beside(data.clone()),
                    Some((_, TopValues::Labels | TopValues::Positions)) => {
                        Shown::Best(data.clone(), scores(outputs, output, &ran.columns))
                    }
                    _ => {
                        let shape = shape(&column.column_type, ran.raw.tensors.get(at), data);
                        Shown::Tensor(shape, data.clone())
                    }
                },
                // A declared loop or a decoder writes it.
                (None, OutputColumn::Text(texts)) => {
                    Shown::Text(texts.first().cloned().unwrap_or_default(), ran.raw.cut_off > 0)
                }
                (_, OutputColumn::Text(texts)) => {
                    Shown::Text(texts.first().cloned().unwrap_or_default(), false)
                }
                (_, OutputColumn::Float64(values)) => {
                    Shown::Float(values.first().copied().unwrap_or(f64::NAN))
                }
                (_, OutputColumn::Int64(values)) => {
                    Shown::Integer(values.first().copied().unwrap_or_default())
                }
                (_, OutputColumn::Bool(values)) => Shown::Truth(values.first().copied().unwrap_or_default()),
                (None, OutputColumn::Tensor(data)) => Shown::Tensor(vec![data.len()], data.clone()),
            };
            Item { name: column.name, value }
        });
        Self::Columns(items.collect())
    }
}

/// Number and kind of the values of `top_k`.
fn top(output: &ModelOutput) -> Option<(u32, TopValues)> {
    output.postprocess.iter().find_map(|step| match &step.value {
        Postprocess::TopK { k, give: Some(give), .. } => Some((*k, *give)),
        // Which of the two it gives, the values show.
        Postprocess::TopK { k, give: None, .. } => Some((*k, TopValues::Labels)),
        _ => None,
    })
}

/// Whether the scores of `output` are shown beside the labels of another column of the same output of the file.
fn is_beside(outputs: &[ModelOutput], output: &ModelOutput) -> bool {
    let Some((k, _)) = top(output) else { return false };
    outputs.iter().any(|other| {
        other.name == output.name
            && top(other).is_some_and(|(other, give)| other == k && give != TopValues::Values)
    })
}

/// The scores of the labels of `output`: another column of the same output of the file has them.
fn scores(outputs: &[ModelOutput], output: &ModelOutput, columns: &[OutputColumn]) -> Option<Vec<f64>> {
    let (k, _) = top(output)?;
    let at = outputs
        .iter()
        .position(|other| other.name == output.name && top(other) == Some((k, TopValues::Values)))?;
    match columns.get(at)? {
        OutputColumn::Tensor(data) => Some(data.to_f64()),
        _ => None,
    }
}

/// Shape of a tensor: the declared one, or if that leaves a dimension open, that of the run.
fn shape(declared: &ColumnType, raw: Option<&Tensor>, data: &TensorData) -> Vec<usize> {
    let fits = |shape: &[usize]| shape.iter().product::<usize>() == data.len();
    match declared {
        ColumnType::Tensor { shape, .. } if fits(shape) => shape.clone(),
        _ => {
            let of_run = raw.and_then(|tensor| tensor.shape().get(1..)).filter(|shape| fits(shape));
            of_run.map_or_else(|| vec![data.len()], <[usize]>::to_vec)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::manifest::Manifest;
    use tidemill_spec::types::ElementType;

    fn outputs() -> Vec<ModelOutput> {
        let text = format!(
            "version: 1\nid: m\ndescription: d\nfile: m.onnx\nsha256: {}\nlicence: MIT\n\
             origin: {{kind: external, note: n}}\nbackends: [rten]\n\
             inputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 2]}}]\n\
             outputs:\n  \
             - {{name: y, column: best, type: tensor, dtype: float32, shape: [batch, 3], postprocess: [top_k: {{k: 2, labels: [a, b, c]}}]}}\n  \
             - {{name: y, column: scores, type: tensor, dtype: float32, shape: [batch, 3], postprocess: [softmax: {{}}, top_k: {{k: 2, give: values}}]}}\n  \
             - {{name: y, column: three, type: tensor, dtype: float32, shape: [batch, 3], postprocess: [top_k: {{k: 3, give: values}}]}}\n",
            "a".repeat(64)
        );
        Manifest::parse(&text, "m.yaml").unwrap_or_else(|findings| panic!("{findings}")).outputs
    }

    #[test]
    fn labels_find_their_scores() {
        let outputs = outputs();
        let columns = [
            OutputColumn::Tensor(TensorData::Text(vec!["b".into(), "a".into()])),
            OutputColumn::Tensor(TensorData::Float32(vec![0.75, 0.25])),
            OutputColumn::Tensor(TensorData::Float32(vec![3.0, 2.0, 1.0])),
        ];
        assert_eq!(scores(&outputs, &outputs[0], &columns), Some(vec![0.75, 0.25]));
        assert_eq!(scores(&outputs[..1], &outputs[0], &columns), None);
        let beside: Vec<bool> = outputs.iter().map(|output| is_beside(&outputs, output)).collect();
        assert_eq!(beside[1..], [true, false], "three values are of no two labels");
    }

    #[test]
    fn open_shapes_are_those_of_the_run() {
        let declared = ColumnType::Tensor { element: ElementType::Float32, shape: vec![1, 2] };
        let data = TensorData::zeros(ElementType::Float32, 6);
        let raw = Tensor::zeros(ElementType::Float32, vec![1, 3, 2]);
        assert_eq!(shape(&declared, Some(&raw), &data), [3, 2]);
        assert_eq!(shape(&declared, None, &data), [6]);
        assert_eq!(shape(&declared, Some(&raw), &TensorData::zeros(ElementType::Float32, 2)), [1, 2]);
    }
}
