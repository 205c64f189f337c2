//! Tensors of a client on a device: in the memory of the host, or where the last model computed.
use crate::tensors::bytes_of;
use tidemill_inference::backend::resident::Resident;
use tidemill_inference::backend::{BackendError, Session};
use tidemill_inference::tensor::Tensor;
use tidemill_spec::types::ElementType;

/// A tensor of a client.
#[derive(Clone)]
pub(crate) enum Held {
    /// In the memory of the host.
    Host(Tensor),
    /// A value of the back end that computed or read it last.
    Near(Resident),
    /// Its back end had no memory for it.
    Lost(BackendError),
}

impl Held {
    /// The tensor as a session reads it. It moves there when the first model reads it, and stays.
    pub(crate) fn near(&mut self, session: &mut dyn Session) -> Result<Resident, BackendError> {
        let near = match std::mem::replace(self, Self::Host(nothing())) {
            Self::Host(tensor) => session.upload(tensor),
            Self::Near(near) => Ok(near),
            Self::Lost(error) => Err(error),
        };
        *self = match &near {
            Ok(near) => Self::Near(near.clone()),
            Err(error) => Self::Lost(error.clone()),
        };
        near
    }

    /// Takes the tensor out of this, which the caller fills again.
    pub(crate) fn taken(&mut self) -> Result<Tensor, BackendError> {
        match self {
            Self::Host(tensor) => Ok(std::mem::replace(tensor, nothing())),
            Self::Near(near) => near.read(),
            Self::Lost(error) => Err(error.clone()),
        }
    }

    /// Reads the tensor, without a copy where it is in the memory of the host.
    pub(crate) fn read<T>(&self, by: impl FnOnce(&Tensor) -> T) -> Result<T, BackendError> {
        match self {
            Self::Host(tensor) => Ok(by(tensor)),
            Self::Near(near) => near.read().map(|tensor| by(&tensor)),
            Self::Lost(error) => Err(error.clone()),
        }
    }

    /// Bytes of its values.
    pub(crate) fn bytes(&self) -> u64 {
        let known = if let Self::Near(near) = self { near.bytes() } else { None };
        let counted = || self.read(|tensor| bytes_of(tensor).1.len() as u64).unwrap_or_default();
        known.unwrap_or_else(counted)
    }
}

/// A tensor in the place of one that is taken out.
fn nothing() -> Tensor {
    Tensor::zeros(ElementType::Uint8, vec![0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tidemill_inference::backend::backend;
    use tidemill_inference::inspect;
    use tidemill_inference::tensor::TensorData;

    fn floats(values: &[f32]) -> Tensor {
        Tensor::new(vec![1, values.len()], TensorData::Float32(values.to_vec())).unwrap()
    }

    /// A back end without memory.
    struct Full;

    impl Session for Full {
        fn run(&mut self, _: &[Tensor], _: &[usize]) -> Result<Vec<Tensor>, BackendError> {
            Ok(Vec::new())
        }

        fn upload(&mut self, _: Tensor) -> Result<Resident, BackendError> {
            let reason = "out of memory".to_owned();
            Err(BackendError::Run { backend: "full", model: "m".to_owned(), reason })
        }
    }

    #[test]
    fn a_tensor_stays_where_it_was_read_and_comes_back_as_it_was() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inference/testdata");
        let facts = inspect(&folder.join("identity.onnx")).unwrap();
        for name in ["rten", "ort"] {
            let Ok(opened) = backend(name, &folder) else { continue };
            let mut session = opened.load(&facts).unwrap();
            let tensor = floats(&[1.0, -2.0, 3.5, 0.0]);
            let mut held = Held::Host(tensor.clone());
            let near = held.near(session.as_mut()).unwrap();
            assert!(matches!(held, Held::Near(_)));
            assert_eq!((held.bytes(), held.read(Tensor::clone).unwrap()), (16, tensor.clone()));
            let result = session.run_resident(&[near], &[0]).unwrap().remove(0);
            assert_eq!(Held::Near(result).taken().unwrap(), tensor, "{name}");
            assert_eq!(held.taken().unwrap(), tensor);
        }
    }

    #[test]
    fn a_tensor_that_found_no_memory_is_an_error_from_then_on() {
        let mut held = Held::Host(floats(&[1.0]));
        for _ in 0..2 {
            assert!(held.near(&mut Full).is_err_and(|error| error.to_string().contains("out of memory")));
        }
        assert!(held.taken().is_err() && held.read(Tensor::clone).is_err());
        assert_eq!(held.bytes(), 0);
    }
}
