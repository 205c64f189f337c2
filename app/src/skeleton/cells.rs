//! Numbers of cells that detection heads lay over a picture.

/// Strides of heads with three levels.
pub(super) const STRIDES: [usize; 3] = [8, 16, 32];

/// Number of cells of these strides in a picture.
pub(super) fn count(height: usize, width: usize, strides: &[usize]) -> usize {
    let cells = |stride: usize| height.div_ceil(stride).saturating_mul(width.div_ceil(stride));
    strides.iter().fold(0, |all, stride| all.saturating_add(cells(*stride)))
}

/// Returns the stride and the anchors of a cell with which a level has this number of places.
pub(super) fn stride(height: usize, width: usize, places: usize) -> Option<(usize, usize)> {
    let all =
        [4, 8, 16, 32, 64, 128].into_iter().flat_map(|stride| [1, 2, 3].map(|anchors| (stride, anchors)));
    all.into_iter()
        .find(|(stride, anchors)| count(height, width, &[*stride]).saturating_mul(*anchors) == places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_known_heads() {
        assert_eq!(count(320, 320, &STRIDES), 2100);
        assert_eq!(count(416, 416, &STRIDES), 3549);
        assert_eq!(count(640, 640, &STRIDES) * 3, 25_200);
        assert_eq!(stride(800, 608, 130), Some((64, 1)));
        assert_eq!(stride(640, 640, 12_800), Some((8, 2)));
        assert_eq!(stride(640, 640, 77), None);
    }
}
