//! Tensors of libtorch as values of a session, and back.
use tch::{Kind, TchError, Tensor};
use tidemill_device::value::{Element, Value};

fn kind(element: Element) -> Option<Kind> {
    Some(match element {
        Element::Float32 => Kind::Float,
        Element::Float16 => Kind::Half,
        Element::Float64 => Kind::Double,
        Element::Int64 => Kind::Int64,
        Element::Int32 => Kind::Int,
        Element::Int8 => Kind::Int8,
        Element::Uint8 => Kind::Uint8,
        Element::Bool => Kind::Bool,
        Element::Text => return None,
    })
}

/// Copies values into a tensor of libtorch.
pub(crate) fn to_tensor(element: Element, shape: &[usize], bytes: &[u8]) -> Result<Tensor, String> {
    let kind = kind(element).ok_or("libtorch has no tensors of texts")?;
    let shape: Result<Vec<i64>, _> = shape.iter().map(|size| i64::try_from(*size)).collect();
    let shape = shape.map_err(|error| error.to_string())?;
    Tensor::f_from_data_size(bytes, &shape, kind).map_err(|error| reason(&error))
}

/// Copies a tensor of libtorch into values.
pub(crate) fn to_value(tensor: &Tensor) -> Result<Value, String> {
    let found = tensor.f_kind().map_err(|error| reason(&error))?;
    let element = Element::ALL.into_iter().find(|element| kind(*element) == Some(found));
    let element = element.ok_or_else(|| {
        format!("it gave a tensor of {found:?}, which a session does not carry; convert it in the model")
    })?;
    let shape: Result<Vec<usize>, _> = tensor.size().into_iter().map(usize::try_from).collect();
    let shape = shape.map_err(|error| error.to_string())?;
    let tensor = tensor.f_contiguous().map_err(|error| reason(&error))?;
    let mut bytes = vec![0; tensor.numel() * element.bytes().unwrap_or_default()];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel()).map_err(|error| reason(&error))?;
    Value::new(element, shape, bytes).map_err(|error| error.to_string())
}

/// Bytes of a tensor.
pub(crate) fn bytes_of(tensor: &Tensor) -> u64 {
    let each = tensor.f_kind().map_or(0, |kind| kind.elt_size_in_bytes());
    (tensor.numel() * each) as u64
}

/// The message of libtorch, without the addresses of its call stack.
pub(crate) fn reason(error: &TchError) -> String {
    let text = error.to_string();
    let text = text.split("Exception raised from").next().unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_went() {
        for element in Element::ALL.into_iter().filter(|element| *element != Element::Text) {
            let count = 6 * element.bytes().unwrap_or_default();
            // Truth values are 0 or 1.
            let bytes: Vec<u8> = (0..count).map(|at| (at % 2) as u8).collect();
            let tensor = to_tensor(element, &[2, 3], &bytes).expect("a tensor");
            assert_eq!(bytes_of(&tensor), count as u64);
            let value = to_value(&tensor).expect("a value");
            assert_eq!(
                (value.element(), value.shape(), &value.bytes()[..]),
                (element, &[2, 3][..], &bytes[..])
            );
        }
        assert!(to_tensor(Element::Text, &[0], &[]).is_err());
    }

    #[test]
    fn a_tensor_with_strides_is_copied_in_order() {
        let bytes: Vec<u8> = (0..6).collect();
        let tensor = to_tensor(Element::Uint8, &[2, 3], &bytes).expect("a tensor").transpose(0, 1);
        let value = to_value(&tensor).expect("a value");
        assert_eq!((value.shape(), &value.bytes()[..]), (&[3, 2][..], &[0, 3, 1, 4, 2, 5][..]));
    }
}
