//! Values that stay where a session computes, from one model to the next.
//!
//! ```
//! use tidemill_inference::backend::resident::Resident;
//! use tidemill_inference::tensor::{Tensor, TensorData};
//! let tensor = Tensor::new(vec![2], TensorData::Int64(vec![1, 2]))?;
//! let resident = Resident::host(tensor.clone());
//! assert_eq!((resident.bytes(), resident.clone().read()?), (Some(16), tensor));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
use super::BackendError;
use crate::tensor::Tensor;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use tidemill_spec::types::ElementType;

/// A value of a backend. What it looks like is known without reading it.
pub trait Held: Any + Send + Sync {
    /// Type of the values.
    fn element(&self) -> ElementType;
    /// Sizes of its dimensions.
    fn shape(&self) -> Vec<usize>;
    /// Copies it into the memory of the host.
    ///
    /// # Errors
    /// [`BackendError::Run`] if the copy fails.
    fn read(&self) -> Result<Tensor, BackendError>;
}

/// A handle of a value, which is freed with its last handle. Sessions of the backend that made it take it as it is, those of
/// others read it.
#[derive(Clone)]
pub struct Resident(Arc<dyn Held>);

impl Resident {
    /// Holds a value of a backend.
    pub fn new(held: impl Held) -> Self {
        Self(Arc::new(held))
    }

    /// Holds a tensor in the memory of the host.
    pub fn host(tensor: Tensor) -> Self {
        Self::new(Host(tensor))
    }

    /// Type of the values.
    pub fn element(&self) -> ElementType {
        self.0.element()
    }

    /// Sizes of its dimensions.
    pub fn shape(&self) -> Vec<usize> {
        self.0.shape()
    }

    /// Bytes of its values; none for texts, which have a length each.
    pub fn bytes(&self) -> Option<u64> {
        let of_one = match self.element() {
            ElementType::Float64 | ElementType::Int64 => 8,
            ElementType::Float32 | ElementType::Int32 => 4,
            ElementType::Float16 => 2,
            ElementType::Int8 | ElementType::Uint8 | ElementType::Bool => 1,
            ElementType::Text => return None,
        };
        Some(self.shape().iter().product::<usize>() as u64 * of_one)
    }

    /// Copies it into the memory of the host.
    ///
    /// # Errors
    /// [`BackendError::Run`] if the copy fails.
    pub fn read(&self) -> Result<Tensor, BackendError> {
        self.0.read()
    }

    /// The value, if it is one of a backend's own.
    pub fn held<T: Held>(&self) -> Option<&T> {
        let held: &dyn Any = self.0.as_ref();
        held.downcast_ref()
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.element(), self.shape())
    }
}

/// A tensor in the memory of the host.
struct Host(Tensor);

impl Held for Host {
    fn element(&self) -> ElementType {
        self.0.data().element()
    }

    fn shape(&self) -> Vec<usize> {
        self.0.shape().to_vec()
    }

    fn read(&self) -> Result<Tensor, BackendError> {
        Ok(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Session, backend};
    use crate::facts::inspect;
    use crate::tensor::TensorData;
    use std::path::{Path, PathBuf};

    fn testdata(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
    }

    fn loaded(backend_name: &str, file: &str) -> Box<dyn Session> {
        let facts = inspect(&testdata(file)).unwrap();
        backend(backend_name, &testdata("")).unwrap().load(&facts).unwrap()
    }

    /// The backends that can be used here.
    fn here() -> Vec<&'static str> {
        let all = super::super::usable(&testdata(""));
        all.into_iter().filter_map(|(name, is_usable)| is_usable.then_some(name)).collect()
    }

    fn floats(shape: &[usize]) -> Tensor {
        let values = (0..shape.iter().product::<usize>()).map(|at| (at as f32).mul_add(0.37, -1.5).sin());
        Tensor::new(shape.to_vec(), TensorData::Float32(values.collect())).unwrap()
    }

    #[test]
    fn a_chain_of_models_by_handle_gives_what_reading_back_gives() {
        for name in here() {
            // The second reads the `[batch, 4]` that the first gives: twice its input, of one record, or a copy.
            for (first, rows) in [("fixed_batch.onnx", 1), ("identity.onnx", 3)] {
                let (mut first, mut second) = (loaded(name, first), loaded(name, "linear.onnx"));
                let input = floats(&[rows, 4]);
                let between = first.run(std::slice::from_ref(&input), &[0]).unwrap();
                let read_back = second.run(&between, &[0]).unwrap();

                let uploaded = first.upload(input).unwrap();
                assert_eq!((uploaded.element(), uploaded.shape()), (ElementType::Float32, vec![rows, 4]));
                let between = first.run_resident(&[uploaded], &[0]).unwrap();
                let last = second.run_resident(&between, &[0]).unwrap();
                let read: Vec<Tensor> = last.iter().map(|one| one.read().unwrap()).collect();
                assert_eq!(read, read_back, "{name}");
                assert_eq!((last[0].element(), last[0].shape()), (ElementType::Float32, vec![rows, 3]));
            }
        }
    }

    #[test]
    fn a_value_outlives_its_session_and_serves_several_inputs_and_other_backends() {
        let text =
            Tensor::new(vec![2, 6], TensorData::Int64(vec![1, 0, 2, 1, 0, 0, 2, 2, 1, 0, 1, 2])).unwrap();
        let inputs = [text, floats(&[2, 2])];
        for name in here() {
            let expected = loaded(name, "text_sum.onnx").run(&inputs, &[0]).unwrap();
            let mut session = loaded(name, "text_sum.onnx");
            let uploaded: Vec<Resident> =
                inputs.iter().map(|tensor| session.upload(tensor.clone()).unwrap()).collect();
            let twice = session.run_resident(&uploaded, &[0, 0]).unwrap();
            drop(session);
            assert_eq!(
                twice.iter().map(|one| one.read().unwrap()).collect::<Vec<_>>(),
                [expected.clone(), expected].concat()
            );
            for other in here() {
                let theirs = loaded(other, "text_sum.onnx").run_resident(&uploaded, &[0]).unwrap();
                assert_eq!(theirs[0].shape(), twice[0].shape(), "{name} -> {other}");
            }
        }
    }

    #[test]
    fn a_wrong_number_of_values_is_an_error() {
        for name in here() {
            let mut session = loaded(name, "text_sum.onnx");
            let one = session.upload(floats(&[1, 2])).unwrap();
            assert!(matches!(session.run_resident(&[one], &[0]), Err(BackendError::Run { .. })), "{name}");
        }
    }
}
