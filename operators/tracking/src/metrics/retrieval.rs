//! Rank-1 and mAP of embeddings by the protocol of Market-1501 (Zheng et al. 2015): each query is compared with a
//! gallery by the cosine of the angle between their embeddings; pictures of the query's object by its own camera are
//! left out. The average precision of a query is the mean of the precision at each right answer, as in scikit-learn's
//! `average_precision_score`, and not the area by trapezoids of that benchmark's own program, which is never larger.

/// A picture of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The object.
    pub identity: u64,
    /// The camera.
    pub camera: u64,
    /// The model's embedding of the picture.
    pub embedding: Vec<f32>,
}

/// Means over the queries that have an answer in the gallery.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retrieval {
    /// Share of the queries whose nearest picture shows the same object.
    pub rank_1: f64,
    /// Mean of the queries' average precision.
    pub mean_average_precision: f64,
    /// Queries with an answer.
    pub queries: u64,
}

/// Searches the gallery for each query; none where no query has an answer.
pub fn retrieval(queries: &[Sample], gallery: &[Sample]) -> Option<Retrieval> {
    let lengths: Vec<f64> = gallery.iter().map(|sample| length(&sample.embedding)).collect();
    let (mut first, mut precision, mut count) = (0u64, 0.0, 0u64);
    for query in queries {
        let own = length(&query.embedding);
        let mut ranked: Vec<(f64, bool)> = gallery
            .iter()
            .zip(&lengths)
            .filter(|(sample, _)| sample.identity != query.identity || sample.camera != query.camera)
            .map(|(sample, length)| {
                let product = product(&query.embedding, &sample.embedding);
                let whole = own * length;
                (if whole > 0.0 { product / whole } else { 0.0 }, sample.identity == query.identity)
            })
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let right = ranked.iter().filter(|(_, is_same)| *is_same).count();
        if right == 0 {
            continue;
        }
        count += 1;
        first += u64::from(ranked[0].1);
        let places = ranked.iter().enumerate().filter(|(_, (_, is_same))| *is_same);
        let sum: f64 =
            places.enumerate().map(|(found, (place, _))| (found + 1) as f64 / (place + 1) as f64).sum();
        precision += sum / right as f64;
    }
    (count > 0).then(|| Retrieval {
        rank_1: first as f64 / count as f64,
        mean_average_precision: precision / count as f64,
        queries: count,
    })
}

fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn length(values: &[f32]) -> f64 {
    product(values, values).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(identity: u64, camera: u64, angle: f32) -> Sample {
        Sample { identity, camera, embedding: vec![angle.cos(), angle.sin()] }
    }

    #[test]
    fn the_same_camera_does_not_answer() {
        let queries = [sample(1, 1, 0.0)];
        let gallery = [sample(1, 1, 0.0), sample(2, 1, 0.1), sample(1, 2, 0.2), sample(1, 3, 0.3)];
        let found = retrieval(&queries, &gallery).unwrap();
        assert_eq!((found.rank_1, found.queries), (0.0, 1));
        assert!((found.mean_average_precision - (0.5 + 2.0 / 3.0) / 2.0).abs() < 1e-12);
        assert_eq!(retrieval(&queries, &gallery[..2]), None);
    }
}
