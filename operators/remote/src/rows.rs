//! Rows that are prepared and finished at the device: a picture travels as it was taken, not as the tensor that it becomes.
use crate::client::{DeviceBackend, kept_error};
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_device::device::{Artifact, DeviceError, ModelFile, ModelId};
use tidemill_device::session::{CallError, Session};
use tidemill_device::store::{hash_of, hash_of_file};
use tidemill_device::value::{Element, Value};
use tidemill_inference::{Rows, files_of};
use tidemill_operators::api::{DeadLetter, DeviceTimes, Inference, OperatorError, Output, Reason};
use tidemill_operators::model::{ChosenBackend, ModelSpec};
use tidemill_operators::record::record_schema;

/// Key of the model's data in the options of an artifact.
pub(crate) const OPTION: &str = "rows";
/// Name of the manifest among the files.
const MANIFEST: &str = "manifest.yaml";

/// What a device says beside the rows.
#[derive(Default, Serialize, Deserialize)]
struct Beside {
    letters: Vec<DeadLetter>,
    drops: Vec<(Reason, u64)>,
    notes: Vec<(Reason, u64)>,
}

fn text(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::new(error.to_string())
}

fn written(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<u8>, OperatorError> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema).map_err(text)?;
    batches.iter().try_for_each(|batch| writer.write(batch)).map_err(text)?;
    writer.into_inner().map_err(text)
}

fn read(bytes: &[u8]) -> Result<Vec<RecordBatch>, OperatorError> {
    let reader = StreamReader::try_new(bytes, None).map_err(text)?;
    reader.collect::<Result<_, _>>().map_err(text)
}

/// Computes the rows of a value at the device: its outputs are the rows and what is beside them.
pub(crate) fn answer(
    model: &mut dyn Inference,
    schema: &SchemaRef,
    rows: &[u8],
) -> Result<[Vec<u8>; 2], OperatorError> {
    let parts = read(rows)?;
    let mut output = Output::default();
    model.infer_parts(&parts, &mut output)?;
    let Output { batches, dead_letters: letters, drops, notes, device: _ } = output;
    let beside = serde_json::to_vec(&Beside { letters, drops, notes }).map_err(text)?;
    Ok([written(schema, &batches)?, beside])
}

/// The model's data in an artifact, if its rows are prepared at the device. `manifest`: the first file, where it lies now.
pub(crate) fn spec_of(artifact: &Artifact, manifest: &Path) -> Result<Option<ModelSpec>, DeviceError> {
    let Some(spec) = artifact.options.get(OPTION) else { return Ok(None) };
    let spec: ModelSpec = serde_json::from_value(spec.clone()).map_err(|error| DeviceError::Load {
        model: artifact.name.clone(),
        reason: format!("its data cannot be read: {error}"),
    })?;
    Ok(Some(ModelSpec { manifest: manifest.to_owned(), ..spec }))
}

/// The schema of a model's rows as a device gives them.
pub(crate) fn schema_of(spec: &ModelSpec) -> SchemaRef {
    record_schema(&spec.output)
}

/// A model whose rows go to a device as they are.
pub(crate) struct RemoteRows {
    rows: Rows,
    session: Arc<Session>,
    model: ModelId,
    device: String,
    backend: ChosenBackend,
    times: Arc<Mutex<DeviceTimes>>,
}

impl RemoteRows {
    /// Loads a model at the device, with one of its back ends; copies share it.
    ///
    /// # Errors
    /// The device cannot load it, or is lost.
    pub(crate) fn load(
        spec: &ModelSpec,
        there: &DeviceBackend,
        device: &str,
        backend: ChosenBackend,
        times: Arc<Mutex<DeviceTimes>>,
    ) -> Result<Self, OperatorError> {
        let rows = Rows::of(spec)?;
        let (folder, names) = files_of(&spec.manifest)?;
        let manifest = std::fs::read(&spec.manifest).map_err(text)?;
        let mut files = vec![ModelFile {
            name: MANIFEST.to_owned(),
            hash: hash_of(&manifest),
            bytes: manifest.len() as u64,
        }];
        for name in names {
            let (hash, bytes) = hash_of_file(&folder.join(&name))
                .map_err(|error| OperatorError::new(format!("{}: {error}", folder.join(&name).display())))?;
            files.push(ModelFile { name, hash, bytes });
        }
        let artifact = Artifact {
            name: spec.variant.clone(),
            backend: backend.name.clone(),
            files,
            inputs: vec!["rows".to_owned()],
            outputs: vec!["rows".to_owned(), "beside".to_owned()],
            options: serde_json::json!({ OPTION: rows.spec() }),
        };
        let open = |at: usize| {
            let path = if at == 0 { spec.manifest.clone() } else { folder.join(&artifact.files[at].name) };
            Ok(Box::new(File::open(path)?) as Box<dyn std::io::Read>)
        };
        let hashes: Vec<&str> = artifact.files.iter().map(|file| file.hash.as_str()).collect();
        let session = Arc::clone(there.session());
        let model = there.once(&format!("rows {}", hashes.join(" ")), || {
            session.load(&artifact, open).and_then(|model| session.flush().map(|()| model))
        });
        let model = model.map_err(|error| kept_error(device, error))?;
        Ok(Self { rows, session, model, device: device.to_owned(), backend, times })
    }

    fn call(&self, bytes: &[u8]) -> Result<(Value, Value, DeviceTimes), CallError> {
        let mut lane = self.session.lane();
        let input = lane.upload(Element::Uint8, &[bytes.len()], bytes)?;
        let outputs = lane.run(self.model, &[input], &[0, 1])?;
        let (rows, beside) = (lane.read(outputs[0])?, lane.read(outputs[1])?);
        lane.free(&[input, outputs[0], outputs[1]])?;
        drop(lane);
        let (rows, beside) = (rows.wait()?, beside.wait()?);
        let times = DeviceTimes {
            network: rows.times.network(),
            queue: rows.times.queue(),
            compute: rows.times.computed,
            round_trips: 1,
            sent: bytes.len() as u64,
            received: (rows.payload.len() + beside.payload.len()) as u64,
            ..DeviceTimes::default()
        };
        Ok((rows.value()?, beside.value()?, times))
    }
}

impl Inference for RemoteRows {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.infer_parts(std::slice::from_ref(batch), output)
    }

    fn infer_parts(&mut self, parts: &[RecordBatch], output: &mut Output) -> Result<(), OperatorError> {
        let narrowed = self.rows.narrowed(parts)?;
        let Some(first) = narrowed.first() else { return Ok(()) };
        let bytes = written(&first.schema(), &narrowed)?;
        let (rows, beside, times) = self.call(&bytes).map_err(|error| kept_error(&self.device, error))?;
        self.times.lock().unwrap_or_else(PoisonError::into_inner).add(&times);
        let Beside { letters, drops, notes } = serde_json::from_slice(beside.bytes()).map_err(text)?;
        let answered =
            Output { batches: read(rows.bytes())?, dead_letters: letters, drops, notes, device: None };
        self.rows.widened(parts, answered, output)
    }

    fn backend(&self) -> Option<ChosenBackend> {
        Some(self.backend.clone())
    }
}
