//! Average precision of a detector by the rules of COCO (Lin et al. 2014): boxes in the order of their scores, each
//! takes the true box that it overlaps most and that is still free, precision is made monotone and sampled at 101
//! recalls.
use super::ROUNDING;
use crate::bounding_box::BoundingBox;

/// A found box with its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// Its box.
    pub area: BoundingBox,
    /// Confidence of the detector; only the order counts.
    pub score: f64,
}

/// One picture with the boxes of one class.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Picture {
    /// True boxes.
    pub truth: Vec<BoundingBox>,
    /// Found boxes.
    pub found: Vec<Scored>,
}

/// Returns the average precision at one limit of overlap, 0 to 1; none without a true box.
pub fn average_precision(pictures: &[Picture], overlap: f64) -> Option<f64> {
    let truth: usize = pictures.iter().map(|picture| picture.truth.len()).sum();
    if truth == 0 {
        return None;
    }
    let mut hits: Vec<(f64, bool)> = pictures.iter().flat_map(|picture| hits(picture, overlap)).collect();
    // Stable: equal scores stay in the order of the pictures.
    hits.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut right = 0u64;
    let mut curve: Vec<(f64, f64)> = hits
        .iter()
        .enumerate()
        .map(|(index, (_, is_hit))| {
            right += u64::from(*is_hit);
            (right as f64 / truth as f64, right as f64 / (index + 1) as f64)
        })
        .collect();
    for index in (1..curve.len()).rev() {
        curve[index - 1].1 = curve[index - 1].1.max(curve[index].1);
    }
    let at = |recall: f64| {
        let first = curve.partition_point(|(reached, _)| *reached < recall);
        curve.get(first).map_or(0.0, |(_, precision)| *precision)
    };
    // Counts as numpy.linspace does, so that recalls that are met exactly are equal.
    Some((0..=100).map(|step| at(f64::from(step) * 0.01)).sum::<f64>() / 101.0)
}

/// Returns the mean over the limits 0.5, 0.55 ... 0.95, as COCO does.
pub fn mean_average_precision(pictures: &[Picture]) -> Option<f64> {
    let values: Option<Vec<f64>> =
        (0..10).map(|step| average_precision(pictures, 0.5 + 0.05 * f64::from(step))).collect();
    values.map(|values| values.iter().sum::<f64>() / 10.0)
}

/// Scores of the boxes found in a picture, and whether each is a true one.
fn hits(picture: &Picture, overlap: f64) -> Vec<(f64, bool)> {
    let mut found: Vec<&Scored> = picture.found.iter().collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    let mut is_free = vec![true; picture.truth.len()];
    let mut result = Vec::with_capacity(found.len());
    for scored in found {
        let mut best = (overlap.min(1.0 - 1e-10) - ROUNDING, None);
        for (index, truth) in picture.truth.iter().enumerate().filter(|(index, _)| is_free[*index]) {
            let common = scored.area.overlap(truth);
            if common >= best.0 {
                best = (common, Some(index));
            }
        }
        if let Some(index) = best.1 {
            is_free[index] = false;
        }
        result.push((scored.score, best.1.is_some()));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_find_has_no_precision() {
        assert_eq!(average_precision(&[Picture::default()], 0.5), None);
        let area = BoundingBox { left: 0.0, top: 0.0, width: 5.0, height: 5.0 };
        let missed = Picture { truth: vec![area], found: vec![] };
        assert_eq!(average_precision(&[missed], 0.5), Some(0.0));
        let found = Picture { truth: vec![area], found: vec![Scored { area, score: 0.3 }; 2] };
        assert_eq!(mean_average_precision(&[found]), Some(1.0));
    }
}
