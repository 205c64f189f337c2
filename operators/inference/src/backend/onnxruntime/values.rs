//! Tensors as values of the library, and back.
use super::super::BackendError;
use super::super::resident::{Held, Resident};
use crate::tensor::{Tensor, TensorData};
use ort::memory::{AllocationDevice, MemoryInfo};
use ort::session::SessionInputValue;
use ort::value::{
    DynTensorValueType, DynValue, PrimitiveTensorElementType, Shape, Tensor as OrtTensor, TensorElementType,
    TensorRef, ValueType,
};
use tidemill_spec::types::ElementType;

/// A tensor as an input. With `truth` the input is bool, which may come as integers, with 0 as false.
pub(super) fn borrowed(tensor: &Tensor, truth: bool) -> ort::Result<SessionInputValue<'_>> {
    let shape = tensor.shape().to_vec();
    Ok(match tensor.data() {
        TensorData::Int64(values) if truth => OrtTensor::from_array((shape, truths(values)))?.into(),
        TensorData::Float32(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Float16(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Int64(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Uint8(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Int8(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Int32(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Float64(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Bool(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Text(values) => OrtTensor::from_string_array((shape, values.as_slice()))?.into(),
    })
}

/// A tensor as a value that owns it.
pub(super) fn owned(tensor: Tensor, truth: bool) -> ort::Result<DynValue> {
    let shape = tensor.shape().to_vec();
    Ok(match tensor.into_data() {
        TensorData::Int64(values) if truth => OrtTensor::from_array((shape, truths(&values)))?.into_dyn(),
        TensorData::Float32(values) => OrtTensor::from_array((shape, values))?.into_dyn(),
        TensorData::Float16(values) => OrtTensor::from_array((shape, values))?.into_dyn(),
        TensorData::Int64(values) => OrtTensor::from_array((shape, values))?.into_dyn(),
        TensorData::Uint8(values) => OrtTensor::from_array((shape, values))?.into_dyn(),
        TensorData::Int8(values) => OrtTensor::from_array((shape, values))?.into_dyn(),
        TensorData::Int32(values) => OrtTensor::from_array((shape, values))?.into_dyn(),
        TensorData::Float64(values) => OrtTensor::from_array((shape, values))?.into_dyn(),
        TensorData::Bool(values) => OrtTensor::from_array((shape, values))?.into_dyn(),
        TensorData::Text(values) => OrtTensor::from_string_array((shape, values.as_slice()))?.into_dyn(),
    })
}

fn truths(values: &[i64]) -> Vec<bool> {
    values.iter().map(|value| *value != 0).collect()
}

/// Element type and shape of a value.
fn form(value: &DynValue) -> Result<(ElementType, Vec<usize>), String> {
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        return Err("an output is not a tensor".to_owned());
    };
    let element = match ty {
        TensorElementType::Float32 => ElementType::Float32,
        TensorElementType::Float16 => ElementType::Float16,
        TensorElementType::Int64 => ElementType::Int64,
        TensorElementType::Uint8 => ElementType::Uint8,
        TensorElementType::Int8 => ElementType::Int8,
        TensorElementType::Int32 => ElementType::Int32,
        TensorElementType::Float64 => ElementType::Float64,
        TensorElementType::Bool => ElementType::Bool,
        TensorElementType::String => ElementType::Text,
        other => return Err(format!("an output is {other}, which is no element type of a column")),
    };
    Ok((element, sizes(shape)))
}

fn sizes(shape: &Shape) -> Vec<usize> {
    shape.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect()
}

/// Copies a value in the memory of the host.
pub(super) fn tensor(value: &DynValue) -> Result<Tensor, String> {
    match form(value)?.0 {
        ElementType::Float32 => extracted(value, TensorData::Float32),
        ElementType::Float16 => extracted(value, TensorData::Float16),
        ElementType::Int64 => extracted(value, TensorData::Int64),
        ElementType::Uint8 => extracted(value, TensorData::Uint8),
        ElementType::Int8 => extracted(value, TensorData::Int8),
        ElementType::Int32 => extracted(value, TensorData::Int32),
        ElementType::Float64 => extracted(value, TensorData::Float64),
        ElementType::Bool => extracted(value, TensorData::Bool),
        ElementType::Text => {
            let (shape, values) = value.try_extract_strings().map_err(|error| error.to_string())?;
            Tensor::new(sizes(shape), TensorData::Text(values)).map_err(|error| error.to_string())
        }
    }
}

fn extracted<T: PrimitiveTensorElementType + Clone>(
    value: &DynValue,
    data: fn(Vec<T>) -> TensorData,
) -> Result<Tensor, String> {
    let (shape, values) = value.try_extract_tensor::<T>().map_err(|error| error.to_string())?;
    Tensor::new(sizes(shape), data(values.to_vec())).map_err(|error| error.to_string())
}

/// A value of the library, wherever it is.
pub(super) struct Kept {
    value: DynValue,
    element: ElementType,
    shape: Vec<usize>,
    /// The memory that it is in, if the host cannot read it.
    memory: Option<String>,
    backend: &'static str,
    model: String,
}

impl Kept {
    /// Keeps an output or input of a model.
    pub(super) fn new(value: DynValue, backend: &'static str, model: &str) -> Result<Self, String> {
        let (element, shape) = form(&value)?;
        let memory = memory_of(&value).map_err(|error| error.to_string())?;
        Ok(Self { value, element, shape, memory, backend, model: model.to_owned() })
    }

    /// The value as an input of a session whose tensors are in this memory; none where the session must read it.
    pub(super) fn input(&self, memory: Option<&MemoryInfo<'_>>, truth: bool) -> Option<&DynValue> {
        let is_near = self
            .memory
            .as_deref()
            .is_none_or(|there| memory.is_some_and(|memory| memory.allocation_device().as_str() == there));
        (is_near && !(truth && self.element != ElementType::Bool)).then_some(&self.value)
    }
}

impl Held for Kept {
    fn element(&self) -> ElementType {
        self.element
    }

    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    fn read(&self) -> Result<Tensor, BackendError> {
        let read = || match self.memory {
            None => tensor(&self.value),
            Some(_) => moved(&self.value, AllocationDevice::CPU)
                .map_err(|error| error.to_string())
                .and_then(|value| tensor(&value)),
        };
        read().map_err(|reason| BackendError::Run {
            backend: self.backend,
            model: self.model.clone(),
            reason,
        })
    }
}

impl From<Kept> for Resident {
    fn from(kept: Kept) -> Self {
        Self::new(kept)
    }
}

/// The memory of a tensor, if the host cannot read it.
fn memory_of(value: &DynValue) -> ort::Result<Option<String>> {
    let tensor = value.view().downcast::<DynTensorValueType>()?;
    let memory = tensor.memory_info();
    Ok((!memory.is_cpu_accessible()).then(|| memory.allocation_device().as_str().to_owned()))
}

/// Copies a tensor into another memory.
pub(super) fn moved(value: &DynValue, to: AllocationDevice<'_>) -> ort::Result<DynValue> {
    Ok(value.view().downcast::<DynTensorValueType>()?.to(to, 0)?.into_dyn())
}
