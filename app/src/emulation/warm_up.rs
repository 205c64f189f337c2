//! First calls of a model take longer, and the workers of a plan run for long: models compute a few calls of every size before an
//! emulated run. Where they run in other processes, those are given the records for it.
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;
use std::io::Cursor;
use tidemill_engine::Program;
use tidemill_operators::api::{Inference, Instance, OperatorError, Output};
use tidemill_operators::record::batch_bytes;
use tidemill_profiler::records;

/// Calls of one size.
const CALLS: usize = 2;
/// Bytes of records that the process of a worker is given for a stage, at most.
const MOST_BYTES: usize = 4 << 20;

/// Records of stages as text: Arrow's stream format as base64.
pub type WarmUps = BTreeMap<String, String>;

/// Has a model compute calls of every size up to `most` records.
pub(super) fn warm(model: &mut dyn Inference, input: &RecordBatch, most: u32) -> Result<(), OperatorError> {
    for records in (1..=most.max(1)).rev() {
        for call in 0..CALLS {
            model.infer(&records::window(input, call, records as usize), &mut Output::default())?;
        }
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::new(error.to_string())
}

/// The first of these records, for another process.
pub(super) fn as_text(input: &RecordBatch) -> Result<String, OperatorError> {
    let mut rows = input.num_rows();
    while rows > 1 && batch_bytes(&input.slice(0, rows)) > MOST_BYTES {
        rows /= 2;
    }
    let mut writer = StreamWriter::try_new(Vec::new(), &input.schema()).map_err(failed)?;
    writer.write(&input.slice(0, rows)).map_err(failed)?;
    Ok(STANDARD.encode(writer.into_inner().map_err(failed)?))
}

fn from_text(text: &str) -> Option<RecordBatch> {
    let bytes = STANDARD.decode(text).ok()?;
    StreamReader::try_new(Cursor::new(bytes), None).ok()?.next()?.ok()
}

/// Warms up the models of a worker; one that cannot be runs cold.
pub(crate) fn apply(program: &mut Program, worker: &str, warm_ups: &WarmUps) {
    let own = program.plan.stages.iter().filter(|stage| stage.worker == worker);
    let own: Vec<(String, u32)> = own.map(|stage| (stage.id.clone(), stage.max_batch)).collect();
    for (stage, most) in own {
        let Some(input) = warm_ups.get(&stage).and_then(|text| from_text(text)) else { continue };
        let Some(bound) = program.operators.get_mut(&stage) else { continue };
        // The run reports instances that cannot be made.
        let Ok(Instance::Inference(mut model)) = (bound.make)() else { continue };
        if warm(&mut *model, &input, most).is_ok() {
            bound.give_first(model);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::BinaryArray;
    use std::sync::Arc;

    fn pictures(rows: usize, bytes: usize) -> RecordBatch {
        let picture = vec![7u8; bytes];
        let pictures = BinaryArray::from_iter_values((0..rows).map(|_| &picture[..]));
        RecordBatch::try_from_iter([("image", Arc::new(pictures) as _)]).unwrap()
    }

    #[test]
    fn records_come_back_as_they_were_and_not_too_many() {
        let few = pictures(16, 1000);
        assert_eq!(from_text(&as_text(&few).unwrap()).unwrap(), few);
        let large = from_text(&as_text(&pictures(16, 1 << 20)).unwrap()).unwrap();
        assert!((1..=4).contains(&large.num_rows()), "{}", large.num_rows());
        let huge = from_text(&as_text(&pictures(2, MOST_BYTES)).unwrap()).unwrap();
        assert_eq!(huge.num_rows(), 1);
        assert!(from_text("no records").is_none() && from_text("AAAA").is_none());
    }
}
