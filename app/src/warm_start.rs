//! Loads models beside those that run: the first calls of a model take longer, and a plan that follows another one should not start with
//! them.
//!
//! Each process of a cluster keeps the first records of each of its models, by operator, in the folder of its run. A process for another
//! plan, beside the running one, has its models compute these before it reports that it is ready; other variants of an operator get the
//! same records. A process that replaces one that died starts at once: no other one does its work meanwhile.
use arrow_array::RecordBatch;
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::FileWriter;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_engine::Program;
use tidemill_operators::api::{
    BoundOperator, Computation, Concurrency, Inference, Instance, OperatorError, Output,
};
use tidemill_operators::record::batch_bytes;
use tidemill_profiler::records;

/// Records that are kept of an operator, at most.
const MOST_RECORDS: usize = 16;
/// Bytes of them, at most, as long as there is more than one.
const MOST_BYTES: usize = 4 << 20;
/// Calls of one size.
const CALLS: usize = 3;
/// Processor time that the models of a process compute before it stands ready, about.
const MOST_TIME: Duration = Duration::from_secs(2);
/// The folder in that of what is kept of a run.
const FOLDER: &str = "inputs";

/// Keeps the first records of the models of a worker below `kept`; `warms`: and has these compute what was kept before.
pub(crate) fn apply(program: &mut Program, worker: &str, kept: &Path, warms: bool) {
    let folder = kept.join(FOLDER);
    let own = program.plan.stages.iter().filter(|stage| stage.worker == worker);
    let own: Vec<(String, String, u32)> =
        own.map(|stage| (stage.id.clone(), stage.operator.clone(), stage.max_batch)).collect();
    let begun = tidemill_machine::process_time();
    for (stage, operator, most) in own {
        let Some(bound) = program.operators.get_mut(&stage) else { continue };
        if bound.computation != Computation::Inference {
            continue;
        }
        let path = folder.join(format!("{operator}.arrow"));
        if warms {
            let left = MOST_TIME.saturating_sub(tidemill_machine::process_time().saturating_sub(begun));
            match warm(bound, &path, most, left) {
                Ok(0) => tracing::info!("{stage} starts cold: this worker keeps no records of `{operator}`"),
                Ok(calls) => tracing::info!("{stage} warms up with {calls} calls"),
                // A failure is reported when the run computes it.
                Err(error) => tracing::info!("{stage} starts cold: {error}"),
            }
        }
        keep(bound, path);
    }
}

/// Has the first instance of a model compute kept records, as full batches and as single ones; how many calls that were.
fn warm(bound: &mut BoundOperator, path: &Path, most: u32, time: Duration) -> Result<usize, OperatorError> {
    let Some(input) = read(path) else { return Ok(0) };
    let Instance::Inference(mut model) = (bound.make)()? else { return Ok(0) };
    let begun = tidemill_machine::process_time();
    let mut sizes = vec![most.max(1) as usize, 1];
    sizes.dedup();
    let mut calls = 0;
    for size in sizes {
        for call in 0..CALLS {
            if calls > 0 && tidemill_machine::process_time().saturating_sub(begun) > time {
                break;
            }
            model.infer(&records::window(&input, call * size, size), &mut Output::default())?;
            calls += 1;
        }
    }
    bound.give_first(model);
    Ok(calls)
}

/// Has the instances of a model keep the first records that one of them gets.
fn keep(bound: &mut BoundOperator, path: PathBuf) {
    let (make, path, is_kept) = (Arc::clone(&bound.make), Arc::new(path), Arc::new(AtomicBool::new(false)));
    bound.make = Arc::new(move || {
        Ok(match make()? {
            Instance::Inference(model) => {
                let (path, is_kept) = (Arc::clone(&path), Arc::clone(&is_kept));
                Instance::Inference(Box::new(Keeping { model, path, is_kept }))
            }
            other => other,
        })
    });
}

/// A model whose first records are kept.
struct Keeping {
    model: Box<dyn Inference>,
    path: Arc<PathBuf>,
    is_kept: Arc<AtomicBool>,
}

impl Keeping {
    fn see(&self, batch: &RecordBatch) {
        if batch.num_rows() == 0 || self.is_kept.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Err(error) = write(&self.path, batch) {
            tracing::debug!("cannot keep the first records of a model: {error}");
        }
    }
}

impl Inference for Keeping {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.see(batch);
        self.model.infer(batch, output)
    }

    fn infer_parts(&mut self, parts: &[RecordBatch], output: &mut Output) -> Result<(), OperatorError> {
        parts.first().into_iter().for_each(|batch| self.see(batch));
        self.model.infer_parts(parts, output)
    }

    fn processor_time_elsewhere(&self) -> Duration {
        self.model.processor_time_elsewhere()
    }

    fn model_time(&self) -> Option<Duration> {
        self.model.model_time()
    }

    fn concurrency(&self) -> Option<Concurrency> {
        self.model.concurrency()
    }
}

fn failed(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::new(error.to_string())
}

/// Replaces the file as a whole: another process may read it.
fn write(path: &Path, batch: &RecordBatch) -> Result<(), OperatorError> {
    let mut rows = batch.num_rows().min(MOST_RECORDS);
    while rows > 1 && batch_bytes(&batch.slice(0, rows)) > MOST_BYTES {
        rows /= 2;
    }
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(failed)?;
    // Several processes of a run may be on one machine.
    let own = folder.join(format!(".{}", std::process::id()));
    let written = || {
        let file = File::create(&own).map_err(failed)?;
        let mut writer = FileWriter::try_new(file, &batch.schema()).map_err(failed)?;
        writer.write(&batch.slice(0, rows)).map_err(failed)?;
        writer.finish().map_err(failed)?;
        std::fs::rename(&own, path).map_err(failed)
    };
    written().inspect_err(|_| drop(std::fs::remove_file(&own)))
}

fn read(path: &Path) -> Option<RecordBatch> {
    let batch = FileReader::try_new(File::open(path).ok()?, None).ok()?.next()?.ok()?;
    (batch.num_rows() > 0).then_some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Int64Array;
    use std::sync::Mutex;
    use tidemill_operators::api::Spread;

    /// Remembers the sizes of its calls.
    struct Counting(Arc<Mutex<Vec<usize>>>);

    impl Inference for Counting {
        fn infer(&mut self, batch: &RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
            self.0.lock().unwrap().push(batch.num_rows());
            Ok(())
        }
    }

    fn bound(calls: &Arc<Mutex<Vec<usize>>>) -> BoundOperator {
        let calls = Arc::clone(calls);
        BoundOperator {
            id: "detect".into(),
            kind: "ml".into(),
            output: Default::default(),
            computation: Computation::Inference,
            spread: Spread::Any,
            model: None,
            make: Arc::new(move || Ok(Instance::Inference(Box::new(Counting(Arc::clone(&calls)))))),
        }
    }

    fn model(bound: &BoundOperator) -> Box<dyn Inference> {
        match (bound.make)().unwrap() {
            Instance::Inference(model) => model,
            _ => panic!("it is a model"),
        }
    }

    fn numbers(rows: i64) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(0..rows)) as _)]).unwrap()
    }

    #[test]
    fn a_model_that_follows_another_computes_its_records_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inputs/detect.arrow");
        let (old, new) = (Arc::default(), Arc::default());
        let mut running = bound(&old);
        keep(&mut running, path.clone());
        let mut one = model(&running);
        one.infer_parts(&[numbers(3), numbers(40)], &mut Output::default()).unwrap();
        one.infer(&numbers(9), &mut Output::default()).unwrap();
        assert_eq!(*old.lock().unwrap(), [43, 9], "it computes all of it");
        assert_eq!(read(&path).unwrap(), numbers(3), "the first are kept");
        let mut next = bound(&new);
        assert_eq!(warm(&mut next, &path, 8, MOST_TIME).unwrap(), 2 * CALLS);
        let warmed = new.lock().unwrap().clone();
        assert_eq!(warmed.len(), 2 * CALLS);
        assert_eq!((warmed.first(), warmed.last()), (Some(&8), Some(&1)));
        // The warm one is the one that runs.
        model(&next).infer(&numbers(1), &mut Output::default()).unwrap();
        assert_eq!(new.lock().unwrap().len(), 2 * CALLS + 1);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn what_was_not_kept_or_is_broken_is_no_trouble() {
        let folder = tempfile::tempdir().unwrap();
        let calls = Arc::default();
        let mut next = bound(&calls);
        assert_eq!(warm(&mut next, &folder.path().join("none.arrow"), 8, MOST_TIME).unwrap(), 0);
        let broken = folder.path().join("broken.arrow");
        std::fs::write(&broken, "no records").unwrap();
        assert_eq!(warm(&mut next, &broken, 8, MOST_TIME).unwrap(), 0);
        assert!(calls.lock().unwrap().is_empty());
        // Where nothing can be written the model runs all the same.
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        keep(&mut next, file.join("detect.arrow"));
        model(&next).infer(&numbers(2), &mut Output::default()).unwrap();
        assert_eq!(*calls.lock().unwrap(), [2]);
    }
}
