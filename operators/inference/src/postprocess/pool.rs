//! One vector for each record, of those of its places.
use crate::postprocess::scores::Real;
use crate::tensor::{Tensor, TensorData};
use tidemill_spec::types::ElementType;

/// Element type of a mean, and of the results of other steps that compute: floats keep theirs, large whole numbers need
/// 64 bits.
pub fn computed(element: ElementType) -> ElementType {
    match element {
        ElementType::Float16 => ElementType::Float16,
        ElementType::Float64 | ElementType::Int64 | ElementType::Int32 => ElementType::Float64,
        _ => ElementType::Float32,
    }
}

/// Returns the means over the second dimension, `[records, places, ...]` to `[records, ...]`, of the places at which `mask`,
/// `[records, places]`, is not 0; without a mask of all. Their type is that of [`computed`]. `None` if the shapes do not fit,
/// or the tensor has texts. Of no places, it is 0.
///
/// This is the pooling of sentence-transformers: the sum over the tokens divided by their number, at least 1e-9.
pub fn mean(tensor: Tensor, mask: Option<&Tensor>) -> Option<Tensor> {
    let &[records, places, ref rest @ ..] = tensor.shape() else { return None };
    let width: usize = rest.iter().product();
    let shape = [&[records], rest].concat();
    let mask = match mask {
        None => vec![1.0; records * places],
        Some(mask) => match mask.data().clone().into_f32() {
            TensorData::Float32(mask) if mask.len() == records * places => mask,
            _ => return None,
        },
    };
    let element = tensor.data().element();
    let means = match tensor.into_data().computable() {
        TensorData::Float32(values) => {
            let means = means(&values, &mask, (records, places, width));
            TensorData::Float32(means).narrowed(element)
        }
        TensorData::Float64(values) => {
            let mask: Vec<f64> = mask.into_iter().map(f64::from).collect();
            TensorData::Float64(means(&values, &mask, (records, places, width)))
        }
        _ => return None,
    };
    Tensor::new(shape, means).ok()
}

fn means<T: Real>(values: &[T], mask: &[T], (records, places, width): (usize, usize, usize)) -> Vec<T> {
    let mut means = vec![T::ZERO; records * width];
    for (record, means) in means.chunks_exact_mut(width.max(1)).enumerate() {
        let mut count = T::ZERO;
        for place in 0..places {
            let weight = mask[record * places + place];
            if weight == T::ZERO {
                continue;
            }
            count = count + weight;
            let start = (record * places + place) * width;
            let values = means.iter_mut().zip(&values[start..start + width]);
            values.for_each(|(mean, value)| *mean = *mean + weight * *value);
        }
        let count = if count > T::TINY { count } else { T::TINY };
        means.iter_mut().for_each(|mean| *mean = *mean / count);
    }
    means
}

/// Returns the place `at` among so many, counted from the end if it is negative; `None` if there is none.
pub fn place(at: i32, places: usize) -> Option<usize> {
    let at = if at < 0 { places.checked_sub(at.unsigned_abs() as usize)? } else { at as usize };
    (at < places).then_some(at)
}

/// Returns one place of the second dimension, counted from the end if it is negative; `None` if there is none.
pub fn pick(tensor: Tensor, at: i32) -> Option<Tensor> {
    let &[records, places, ref rest @ ..] = tensor.shape() else { return None };
    let at = place(at, places)?;
    let width: usize = rest.iter().product();
    let shape = [&[records], rest].concat();
    let mut picked = TensorData::zeros(tensor.data().element(), 0);
    for record in 0..records {
        let start = (record * places + at) * width;
        picked.append(tensor.data().part(start..start + width)).ok()?;
    }
    Tensor::new(shape, picked).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_count_are_averaged() {
        let values = TensorData::Float32(vec![1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 5.0, 6.0, 7.0, 7.0, 8.0, 8.0]);
        let tensor = Tensor::new(vec![2, 3, 2], values).unwrap();
        let mask = Tensor::new(vec![2, 3], TensorData::Int64(vec![1, 1, 0, 1, 0, 0])).unwrap();
        let means = mean(tensor.clone(), Some(&mask)).unwrap();
        assert_eq!((means.shape(), means.as_f32().unwrap()), (&[2, 2][..], &[2.0, 3.0, 5.0, 6.0][..]));
        assert!(mean(tensor.clone(), Some(&means)).is_none());
        assert_eq!(pick(tensor.clone(), -1).unwrap().as_f32().unwrap(), [9.0, 9.0, 8.0, 8.0]);
        assert_eq!(pick(tensor.clone(), 1).unwrap().as_f32().unwrap(), [3.0, 4.0, 7.0, 7.0]);
        assert!(pick(tensor.clone(), 3).is_none() && pick(tensor, -4).is_none());
    }

    #[test]
    fn means_have_the_precision_of_their_values() {
        let mean_of =
            |data: TensorData| mean(Tensor::new(vec![1, 2], data).unwrap(), None).unwrap().into_data();
        let wide = mean_of(TensorData::Float64(vec![1.0, 1.000_000_000_2]));
        assert_eq!(wide, TensorData::Float64(vec![f64::midpoint(1.0, 1.000_000_000_2)]));
        assert_eq!(
            mean_of(TensorData::Int64(vec![16_777_217, 16_777_217])),
            TensorData::Float64(vec![16_777_217.0])
        );
        assert_eq!(mean_of(TensorData::Uint8(vec![1, 2])), TensorData::Float32(vec![1.5]));
        let half = |value| half::f16::from_f32(value);
        assert_eq!(
            mean_of(TensorData::Float16(vec![half(1.0), half(2.0)])),
            TensorData::Float16(vec![half(1.5)])
        );
    }
}
