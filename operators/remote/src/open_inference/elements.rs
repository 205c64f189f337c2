//! Element types and the names that the protocol has for them. Their bytes are those of [`crate::tensors`].
use crate::tensors::to_tensor;
use bytes::Bytes;
use tidemill_device::value::{Element, Value};
use tidemill_inference::tensor::Tensor;
use tidemill_spec::types::ElementType;

const NAMES: [(ElementType, Element, &str); 9] = [
    (ElementType::Float32, Element::Float32, "FP32"),
    (ElementType::Float16, Element::Float16, "FP16"),
    (ElementType::Float64, Element::Float64, "FP64"),
    (ElementType::Int64, Element::Int64, "INT64"),
    (ElementType::Int32, Element::Int32, "INT32"),
    (ElementType::Int8, Element::Int8, "INT8"),
    (ElementType::Uint8, Element::Uint8, "UINT8"),
    (ElementType::Bool, Element::Bool, "BOOL"),
    (ElementType::Text, Element::Text, "BYTES"),
];

/// The name of an element type.
pub(super) fn name(element: ElementType) -> &'static str {
    NAMES.iter().find(|(known, ..)| *known == element).map_or("BYTES", |(.., name)| name)
}

/// The tensor of these bytes. An error says what does not fit.
pub(super) fn tensor(datatype: &str, shape: &[i64], bytes: &Bytes) -> Result<Tensor, String> {
    let known = NAMES.iter().find(|(.., name)| *name == datatype);
    let (_, element, _) = known.ok_or_else(|| format!("{datatype} is no element type of a column"))?;
    let sizes = shape.iter().map(|size| usize::try_from(*size));
    let sizes = sizes.collect::<Result<_, _>>().map_err(|_| format!("the shape {shape:?} is open"))?;
    let value = Value::new(*element, sizes, bytes.clone()).map_err(|error| error.to_string())?;
    to_tensor(&value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::bytes_of;

    #[test]
    fn each_type_has_one_name() {
        for (element, _, label) in NAMES {
            assert_eq!(name(element), label);
            let zeros = Tensor::zeros(element, vec![2, 1]);
            let (_, bytes) = bytes_of(&zeros);
            assert_eq!(tensor(label, &[2, 1], &Bytes::copy_from_slice(&bytes)), Ok(zeros), "{label}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_in_words() {
        let reason = |datatype, shape: &[i64], bytes: &'static [u8]| {
            tensor(datatype, shape, &Bytes::from_static(bytes)).unwrap_err()
        };
        assert!(reason("FP32", &[2], &[0; 4]).contains("needs 2 x 4 bytes, found 4"));
        assert!(reason("INT8", &[-1], &[0; 4]).contains("is open"));
        assert!(reason("UINT16", &[2], &[0; 4]).contains("UINT16 is no element type"));
        assert!(reason("BYTES", &[1], &[1, 0, 0, 0, 0xff]).contains("not UTF-8"));
    }
}
