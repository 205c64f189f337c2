//! Bytes of a model's tensors, as a device that runs the model takes and gives them.
//!
//! ```
//! use tidemill_spec::manifest::Manifest;
//! let text = format!("
//! version: 1
//! id: colour
//! description: tells the colour of an image
//! file: colour.onnx
//! sha256: {}
//! licence: Apache-2.0
//! origin: {{kind: external, note: made by hand}}
//! backends: [rten]
//! inputs:
//!   - {{name: image, column: image, type: tensor, dtype: float32, shape: [batch, 3, 32, 32]}}
//! outputs:
//!   - {{name: scores, column: scores, type: tensor, dtype: float32, shape: [batch, 2]}}
//! ", "a".repeat(64));
//! let manifest = Manifest::parse(&text, "colour.yaml")?;
//! let bytes = manifest.tensor_bytes().expect("its shapes are known");
//! assert_eq!((bytes.sent, bytes.received), (4 * 3 * 32 * 32, 4 * 2));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use super::{Dimension, Manifest};
use crate::types::ElementType;
use std::collections::BTreeMap;

/// Bytes of the tensors of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorBytes {
    /// Of the inputs.
    pub sent: u64,
    /// Of the outputs.
    pub received: u64,
}

impl Manifest {
    /// Bytes of a record's tensors; none where a size depends on the record, or where a record takes several calls of the
    /// model or the calls of several records depend on each other.
    pub fn tensor_bytes(&self) -> Option<TensorBytes> {
        let takes_one_call = self.states.is_empty()
            && self.repeat.is_none()
            && self.decoder.is_none()
            && self.generate.is_none();
        if !takes_one_call {
            return None;
        }
        let inputs = self.inputs.iter().map(|input| (&input.name.value, (input.dtype, &input.shape.value)));
        // Several columns may come from one output.
        let outputs =
            self.outputs.iter().map(|output| (&output.name.value, (output.dtype, &output.shape.value)));
        let sum = |tensors: BTreeMap<&String, (ElementType, &Vec<Dimension>)>| -> Option<u64> {
            tensors.into_values().map(|(dtype, shape)| bytes(dtype, shape)).sum()
        };
        Some(TensorBytes { sent: sum(inputs.collect())?, received: sum(outputs.collect())? })
    }
}

/// Bytes of one record's part of a tensor; none where its size is not known.
fn bytes(dtype: ElementType, shape: &[Dimension]) -> Option<u64> {
    let mut sizes = shape.iter().map(|dimension| match dimension {
        Dimension::Batch => Some(1),
        Dimension::Fixed(size) => Some(u64::from(*size)),
        Dimension::Any => None,
    });
    sizes.try_fold(dtype.bytes()?, |product, size| product.checked_mul(size?))
}
