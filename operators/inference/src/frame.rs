//! Place of a model's input in the picture from which it was made.

/// The part of a picture that a model sees, in shares of the picture (0 to 1); parts that were filled lie outside of it.
///
/// ```
/// use tidemill_inference::frame::Frame;
/// // A picture twice as wide as high in the middle of a square.
/// let frame = Frame::WHOLE.inside([0.0, 0.25, 1.0, 0.5]);
/// assert_eq!(frame.original([0.5, 0.25, 0.5, 0.25]), [0.5, 0.0, 0.5, 0.5]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    left: f32,
    top: f32,
    width: f32,
    height: f32,
}

impl Frame {
    /// The whole picture and nothing else.
    pub const WHOLE: Self = Self { left: 0.0, top: 0.0, width: 1.0, height: 1.0 };

    /// The frame after the picture was placed at left, top, width and height, as shares of a new one.
    #[must_use]
    pub fn inside(self, [left, top, width, height]: [f32; 4]) -> Self {
        // Whatever is at `left` in the new picture was at 0 in the old one.
        Self {
            left: self.left - self.width * left / width,
            top: self.top - self.height * top / height,
            width: self.width / width,
            height: self.height / height,
        }
    }

    /// Converts left, top, width and height of a box in the model's input to those in the original picture.
    pub fn original(&self, [left, top, width, height]: [f32; 4]) -> [f32; 4] {
        [
            self.left + left * self.width,
            self.top + top * self.height,
            width * self.width,
            height * self.height,
        ]
    }
}

impl Default for Frame {
    fn default() -> Self {
        Self::WHOLE
    }
}
