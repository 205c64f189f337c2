//! Boxes in pictures: left, top, width, height, in pixels; the picture's upper left corner is (0, 0).
use serde::{Deserialize, Serialize};

/// A box with sides parallel to those of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BoundingBox {
    /// Left side, pixels; may be outside of the picture.
    pub left: f64,
    /// Upper side, pixels.
    pub top: f64,
    /// Pixels, not negative.
    pub width: f64,
    /// Pixels, not negative.
    pub height: f64,
}

impl BoundingBox {
    /// Limit of places and sides, in pixels: the variances of a filter are squares, and have to stay finite.
    pub const LARGEST: f64 = 1e7;

    /// Creates a box around a centre.
    pub fn around(x: f64, y: f64, width: f64, height: f64) -> Self {
        Self { left: x - width / 2.0, top: y - height / 2.0, width, height }
    }

    /// Returns the horizontal and vertical place of the centre.
    pub fn centre(&self) -> (f64, f64) {
        (self.left + self.width / 2.0, self.top + self.height / 2.0)
    }

    /// Returns the area in square pixels.
    pub fn area(&self) -> f64 {
        self.width * self.height
    }

    /// Returns the square pixels that both boxes cover.
    pub fn intersection(&self, other: &Self) -> f64 {
        let side = |start: f64, length: f64, other_start: f64, other_length: f64| {
            ((start + length).min(other_start + other_length) - start.max(other_start)).max(0.0)
        };
        side(self.left, self.width, other.left, other.width)
            * side(self.top, self.height, other.top, other.height)
    }

    /// Returns intersection over union, 0 to 1; 0 where both boxes are empty.
    pub fn overlap(&self, other: &Self) -> f64 {
        let common = self.intersection(other);
        let union = self.area() + other.area() - common;
        if union > 0.0 { common / union } else { 0.0 }
    }

    /// Whether all four numbers are at most [`Self::LARGEST`] in size and no side is negative.
    pub fn is_valid(&self) -> bool {
        [self.left, self.top, self.width, self.height].iter().all(|value| value.abs() <= Self::LARGEST)
            && self.width >= 0.0
            && self.height >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_shares_of_the_union() {
        let a = BoundingBox { left: 0.0, top: 0.0, width: 2.0, height: 2.0 };
        let b = BoundingBox { left: 1.0, top: 0.0, width: 2.0, height: 2.0 };
        assert!((a.overlap(&b) - 2.0 / 6.0).abs() < 1e-15);
        assert_eq!(a.overlap(&a), 1.0);
        let beside = BoundingBox { left: 2.0, top: 0.0, width: 1.0, height: 1.0 };
        assert_eq!(a.overlap(&beside), 0.0);
        let empty = BoundingBox::default();
        assert_eq!(empty.overlap(&empty), 0.0);
    }

    #[test]
    fn absurd_boxes_are_none() {
        let wide = |width: f64| BoundingBox { left: -5.0, top: 0.0, width, height: 2.0 };
        assert!(wide(0.0).is_valid() && wide(1e7).is_valid());
        for width in [-1.0, 1.1e7, 1e160, f64::INFINITY, f64::NAN] {
            assert!(!wide(width).is_valid(), "{width}");
        }
        assert!(!BoundingBox { left: -1e160, ..BoundingBox::default() }.is_valid());
    }
}
