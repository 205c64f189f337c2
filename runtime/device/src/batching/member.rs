//! The device of one session among several that share models.
use super::{Inner, Model, Request};
use crate::device::{Device, DeviceError, Loadable, ModelId, Run, TensorId};
use crate::value::{Element, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, sync_channel};
use std::time::Duration;

/// Its tensors are its own; its models are those of all sessions. A run returns when it is computed.
pub(super) struct Member {
    inner: Arc<Inner>,
    requests: Sender<Request>,
    models: HashMap<ModelId, Loaded>,
    tensors: HashMap<TensorId, Value>,
    /// Bytes of tensors.
    held: u64,
}

struct Loaded {
    /// As this session calls it.
    name: String,
    model: Arc<Model>,
}

fn over() -> DeviceError {
    DeviceError::Device("the process of the session ends".to_owned())
}

impl Member {
    pub(super) fn new(inner: Arc<Inner>, requests: Sender<Request>) -> Self {
        inner.state().users += 1;
        Self { inner, requests, models: HashMap::new(), tensors: HashMap::new(), held: 0 }
    }

    fn has(&self, model: &Arc<Model>) -> bool {
        self.models.values().any(|loaded| Arc::ptr_eq(&loaded.model, model))
    }

    fn keep(&mut self, tensor: TensorId, value: Value) {
        self.held += value.bytes().len() as u64;
        if let Some(before) = self.tensors.insert(tensor, value) {
            self.held -= before.bytes().len() as u64;
        }
    }
}

/// The error with the name of the model in this session: another one may have loaded it by its own name.
fn named(error: DeviceError, name: &str) -> DeviceError {
    let model = name.to_owned();
    match error {
        DeviceError::Load { reason, .. } => DeviceError::Load { model, reason },
        DeviceError::Run { reason, .. } => DeviceError::Run { model, reason },
        other => other,
    }
}

impl Device for Member {
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError> {
        let zeros =
            Value::zeros(element, shape.to_vec()).map_err(|error| DeviceError::Value(error.to_string()))?;
        self.upload(tensor, zeros)
    }

    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        self.keep(tensor, value);
        Ok(())
    }

    fn load(&mut self, model: ModelId, loadable: &Loadable) -> Result<(), DeviceError> {
        if self.models.contains_key(&model) {
            return Err(DeviceError::Taken(model.0));
        }
        let name = loadable.artifact.name.clone();
        let (answer, answered) = sync_channel(1);
        let freed = self.requests.clone();
        let request = Request::Load { loadable: loadable.clone(), freed, answer };
        self.requests.send(request).map_err(|_| over())?;
        let loaded = answered.recv().map_err(|_| over())?.map_err(|error| named(error, &name))?;
        if !self.has(&loaded) {
            loaded.sessions.fetch_add(1, Ordering::Relaxed);
        }
        self.models.insert(model, Loaded { name, model: loaded });
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        let loaded = self.models.get(&run.model).ok_or(DeviceError::NoModel(run.model.0))?;
        let inputs = run.inputs.iter().map(|id| {
            // Bytes are shared, not copied.
            self.tensors.get(id).cloned().ok_or(DeviceError::NoTensor(id.0))
        });
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let outputs = run.outputs.iter().map(|(position, _)| *position).collect();
        let answered = self.inner.post(Arc::clone(&loaded.model), inputs, outputs).ok_or_else(over)?;
        let computed = answered.recv().map_err(|_| over())?.map_err(|error| named(error, &loaded.name))?;
        for ((_, id), value) in run.outputs.iter().zip(computed.values) {
            self.keep(*id, value);
        }
        Ok(computed.time)
    }

    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        self.tensors.get(&tensor).cloned().ok_or(DeviceError::NoTensor(tensor.0))
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn free(&mut self, tensor: TensorId) {
        if let Some(freed) = self.tensors.remove(&tensor) {
            self.held -= freed.bytes().len() as u64;
        }
    }

    fn unload(&mut self, model: ModelId) {
        if let Some(Loaded { model, .. }) = self.models.remove(&model)
            && !self.has(&model)
        {
            model.sessions.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn memory(&self) -> u64 {
        self.held
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let handles: Vec<ModelId> = self.models.keys().copied().collect();
        handles.into_iter().for_each(|handle| self.unload(handle));
        self.inner.leave();
    }
}
