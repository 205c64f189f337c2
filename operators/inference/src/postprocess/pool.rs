//! One vector for each record, of those of its places.
use crate::tensor::{Tensor, TensorData};

/// Returns the means over the second dimension, `[records, places, ...]` to `[records, ...]`, of the places at which `mask`,
/// `[records, places]`, is not 0; without a mask of all. `None` if the shapes do not fit. Of no places, it is 0.
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
    let TensorData::Float32(values) = tensor.into_data().into_f32() else { return None };
    let mut means = vec![0.0f32; records * width];
    for (record, means) in means.chunks_exact_mut(width.max(1)).enumerate() {
        let mut count = 0.0f32;
        for place in 0..places {
            let weight = mask[record * places + place];
            if weight == 0.0 {
                continue;
            }
            count += weight;
            let start = (record * places + place) * width;
            means
                .iter_mut()
                .zip(&values[start..start + width])
                .for_each(|(mean, value)| *mean += weight * value);
        }
        means.iter_mut().for_each(|mean| *mean /= count.max(1e-9));
    }
    Tensor::new(shape, TensorData::Float32(means)).ok()
}

/// Returns one place of the second dimension, counted from the end if it is negative; `None` if there is none.
pub fn pick(tensor: Tensor, at: i32) -> Option<Tensor> {
    let &[records, places, ref rest @ ..] = tensor.shape() else { return None };
    let at = if at < 0 { places.checked_sub(at.unsigned_abs() as usize)? } else { at as usize };
    if at >= places {
        return None;
    }
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
}
