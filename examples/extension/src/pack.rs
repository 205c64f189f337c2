//! `pack`: puts numbers side by side into a tensor, as models read them.
//!
//! ```yaml
//! - {id: packed, kind: pack, input: numbers, options: {columns: [number, value], as: features}}
//! ```
//! All columns stay. A row in which one of the numbers is empty becomes a dead letter `number_empty`.
//!
//! ```
//! use tidemill_extension::pack::Pack;
//! use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind};
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let stream = StreamType::new([Column::new("n", ColumnType::Int64)]);
//! let port = InputPort { from: "numbers".into(), stream, span: Span::nowhere() };
//! let id = "packed".into();
//! let context = OperatorContext::new(&id, std::path::Path::new("."));
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "{columns: [n, n], as: twice}")).unwrap();
//! let packed = Pack.bind(&context, &[port], &options).unwrap();
//! assert_eq!(packed.output.to_string(), "{n: int64, twice: tensor<float32>[2]}");
//! ```
use arrow_array::{Array, ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, SchemaRef};
use arrow_select::filter::filter_record_batch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_operators::api::{DeadLetter, Instance, MakeInstance, OperatorError, Output, Stateless};
use tidemill_operators::kind::{InputPort, OperatorContext, TypedOperatorKind};
use tidemill_operators::record::{self, METADATA_COLUMNS, derive_metadata, operator_number, record_schema};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};

/// The kind `pack`; see the module.
pub struct Pack;

/// Options of `pack`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Columns of type int64 or float64, in the order of the tensor.
    columns: Vec<Located<String>>,
    /// Name of the column with the tensor.
    r#as: Located<String>,
}

impl TypedOperatorKind for Pack {
    type Options = Options;
    const KIND: &'static str = "pack";
    const SUMMARY: &'static str = "Puts numbers side by side into a tensor, as models read them.";

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let (Options { columns, r#as: name }, port) = (options.value, &inputs[0]);
        let is_number = |found: &ColumnType| matches!(found, ColumnType::Int64 | ColumnType::Float64);
        let mut indices = Vec::new();
        for column in &columns {
            let (index, _) = port.column(context.id, 0, column, "int64 or float64", is_number)?;
            indices.push(METADATA_COLUMNS + index);
        }
        let is_free = !name.is_empty() && !name.starts_with('_') && port.stream.column(&name).is_none();
        if indices.is_empty() || !is_free {
            let error = Diagnostic::error("E0606", format!("`{name}` cannot become a tensor"));
            let help = "name at least one of `columns`, and a new column that does not begin with `_`";
            return Err(error.at(name.span).with_help(help).into());
        }
        let tensor = ColumnType::Tensor { element: ElementType::Float32, shape: vec![indices.len()] };
        let mut output = port.stream.clone();
        output.columns.push(Column::new(name.value, tensor));
        let packing =
            Packing { operator: operator_number(context.id), indices, schema: record_schema(&output) };
        Ok((output, Arc::new(move || Ok(Instance::Stateless(Box::new(packing.clone()))))))
    }
}

/// One running copy.
#[derive(Clone)]
struct Packing {
    operator: u64,
    indices: Vec<usize>,
    schema: SchemaRef,
}

impl Packing {
    fn pack(&self, rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let columns: Vec<Vec<f32>> = self.indices.iter().map(|index| numbers(rows.column(*index))).collect();
        let values = (0..rows.num_rows()).flat_map(|row| columns.iter().map(move |column| column[row]));
        let (item, width) = (Field::new("item", DataType::Float32, false), self.indices.len() as i32);
        let values = Arc::new(Float32Array::from_iter_values(values));
        let mut arrays = derive_metadata(rows, self.operator);
        arrays.extend(rows.columns()[METADATA_COLUMNS..].iter().cloned());
        arrays.push(Arc::new(FixedSizeListArray::try_new(Arc::new(item), width, values, None)?));
        RecordBatch::try_new(Arc::clone(&self.schema), arrays)
    }
}

/// The numbers of a column; an empty one is 0.
fn numbers(column: &ArrayRef) -> Vec<f32> {
    let integers = record::int64(column).into_iter().flatten().map(|number| number.unwrap_or(0) as f32);
    let floats = record::float64(column).into_iter().flatten().map(|number| number.unwrap_or(0.0) as f32);
    integers.chain(floats).collect()
}

impl Stateless for Packing {
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let is_whole = |row: usize| self.indices.iter().all(|index| batch.column(*index).is_valid(row));
        for row in (0..batch.num_rows()).filter(|row| !is_whole(*row)) {
            let detail = "one of the numbers for the tensor is empty".to_owned();
            output.dead_letters.push(DeadLetter::of_row(batch, row, "number_empty", detail));
        }
        let whole: BooleanArray = (0..batch.num_rows()).map(|row| Some(is_whole(row))).collect();
        let packed = filter_record_batch(batch, &whole).and_then(|rows| self.pack(&rows));
        output.push(packed.map_err(|error| OperatorError::new(error.to_string()))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Float64Array, Int64Array};
    use tidemill_operators::record::{first_records, payload_schema};
    use tidemill_spec::span::Span;

    #[test]
    fn rows_are_packed_and_empty_numbers_are_dead_letters() {
        let columns = [Column::new("n", ColumnType::Int64), Column::new("x", ColumnType::Float64)];
        let port = InputPort { from: "s".into(), stream: StreamType::new(columns), span: Span::nowhere() };
        let arrays: [ArrayRef; 2] =
            [Arc::new(Int64Array::from(vec![Some(1), None])), Arc::new(Float64Array::from(vec![0.5, 2.0]))];
        let payload = RecordBatch::try_new(payload_schema(&port.stream), arrays.to_vec()).unwrap();
        let (id, options) = ("packed".into(), |name: &str| Options {
            columns: vec!["x".into(), "n".into()],
            r#as: name.into(),
        });
        let context = OperatorContext::new(&id, std::path::Path::new("."));
        let bind = |name| Pack.bind_typed(&context, std::slice::from_ref(&port), options(name).into());
        assert!(bind("n").is_err() && bind("_t").is_err());
        let Ok(Instance::Stateless(mut packing)) = bind("t").unwrap().1() else { panic!("it has no state") };
        let mut output = Output::default();
        packing.process(&first_records(&payload).unwrap(), &mut output).unwrap();
        let (values, width) = record::tensor_f32(output.batches[0].column(METADATA_COLUMNS + 2)).unwrap();
        assert_eq!((values.values().to_vec(), width), (vec![0.5, 1.0], 2));
        assert_eq!((output.dead_letters.len(), &*output.dead_letters[0].reason), (1, "number_empty"));
    }
}
