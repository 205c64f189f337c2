//! Boxes with texts on the pixels of a frame.
use embedded_graphics::mono_font::MonoTextStyleBuilder;
use embedded_graphics::mono_font::ascii::{FONT_6X10, FONT_9X15_BOLD};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::{
    DrawTarget, Drawable, OriginDimensions, Pixel, Point, Primitive, RgbColor, Size,
};
use embedded_graphics::primitives::{PrimitiveStyle, Rectangle};
use embedded_graphics::text::{Baseline, Text};
use std::convert::Infallible;
use std::sync::Arc;

/// Frame height from which large letters are used, pixels.
const LARGE: u32 = 540;

/// A frame to draw on: red, green and blue of each pixel, row by row.
pub struct Canvas<'a> {
    width: u32,
    height: u32,
    pixels: &'a mut [u8],
}

/// A box with a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Label {
    /// Left edge, pixels from the left.
    pub left: f64,
    /// Upper edge, pixels from above.
    pub top: f64,
    /// Width, pixels.
    pub width: f64,
    /// Height, pixels.
    pub height: f64,
    /// Determines the colour: equal for equal identities.
    pub colour: u64,
    /// Text above the box, ASCII.
    pub text: Arc<str>,
}

impl Label {
    /// Scales all sides.
    pub fn scaled(&self, wide: f64, high: f64) -> Self {
        Self {
            left: self.left * wide,
            top: self.top * high,
            width: self.width * wide,
            height: self.height * high,
            ..self.clone()
        }
    }
}

impl<'a> Canvas<'a> {
    /// Creates a frame of this size; `None` if there are not three bytes per pixel.
    pub fn new(width: u32, height: u32, pixels: &'a mut [u8]) -> Option<Self> {
        (pixels.len() as u64 == 3 * u64::from(width) * u64::from(height)).then_some(Self {
            width,
            height,
            pixels,
        })
    }

    /// Draws a box; parts outside of the frame are left out.
    pub fn label(&mut self, label: &Label) {
        let colour = colour(label.colour);
        let coordinate = |value: f64| value.clamp(-1e6, 1e6).round() as i32;
        let (left, top) = (coordinate(label.left), coordinate(label.top));
        let size = Size::new(coordinate(label.width).max(1) as u32, coordinate(label.height).max(1) as u32);
        let large = self.height >= LARGE;
        let stroke = PrimitiveStyle::with_stroke(colour, if large { 3 } else { 2 });
        // Infallible: pixels outside are left out.
        let Ok(()) = Rectangle::new(Point::new(left, top), size).into_styled(stroke).draw(self);
        if label.text.is_empty() {
            return;
        }
        let font = if large { &FONT_9X15_BOLD } else { &FONT_6X10 };
        let dark = u32::from(colour.r()) * 3 + u32::from(colour.g()) * 6 + u32::from(colour.b()) < 1275;
        let ink = if dark { Rgb888::WHITE } else { Rgb888::BLACK };
        let style = MonoTextStyleBuilder::new().font(font).text_color(ink).background_color(colour).build();
        let high = font.character_size.height as i32;
        let wide = font.character_size.width as i32 * label.text.len() as i32;
        // Above the box, or in it where there is no room; not beyond the right edge.
        let y = if top >= high { top - high } else { top.max(0) };
        let x = left.min(self.width as i32 - wide).max(0);
        let Ok(_) = Text::with_baseline(&label.text, Point::new(x, y), style, Baseline::Top).draw(self);
    }
}

/// Chooses colours far apart, by the golden angle of their hue. Each hue is full, pale or dark, so that fewer of many
/// objects look alike.
fn colour(number: u64) -> Rgb888 {
    let hue = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / f64::from(1 << 24) * 6.0;
    let (white, bright) = [(0.0, 1.0), (0.6, 1.0), (0.0, 0.55)][(number % 3) as usize];
    let part = |offset: f64| {
        let distance = (hue + offset).rem_euclid(6.0);
        let full = ((distance - 3.0).abs() - 1.0).clamp(0.0, 1.0);
        (255.0 * bright * (full + (1.0 - full) * white)) as u8
    };
    Rgb888::new(part(0.0), part(4.0), part(2.0))
}

impl OriginDimensions for Canvas<'_> {
    fn size(&self) -> Size {
        Size::new(self.width, self.height)
    }
}

impl DrawTarget for Canvas<'_> {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        for Pixel(at, colour) in pixels {
            let (Ok(x), Ok(y)) = (u32::try_from(at.x), u32::try_from(at.y)) else { continue };
            if x < self.width && y < self.height {
                let start = 3 * (y as usize * self.width as usize + x as usize);
                self.pixels[start..start + 3].copy_from_slice(&[colour.r(), colour.g(), colour.b()]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(left: f64, top: f64, text: &str) -> Label {
        Label { left, top, width: 20.0, height: 12.0, colour: 3, text: text.into() }
    }

    #[test]
    fn a_box_is_where_it_was_asked_for() {
        let mut pixels = vec![0; 3 * 64 * 48];
        Canvas::new(64, 48, &mut pixels).unwrap().label(&label(10.0, 20.0, ""));
        let drawn = |x: usize, y: usize| pixels[3 * (y * 64 + x)..][..3] != [0, 0, 0];
        assert!(drawn(10, 20) && drawn(29, 31) && drawn(20, 20), "edges");
        assert!(!drawn(20, 26) && !drawn(5, 20) && !drawn(40, 26), "inside and outside");
        assert!(Canvas::new(64, 47, &mut pixels).is_none());
    }

    #[test]
    fn texts_stand_above_and_what_is_outside_is_left_out() {
        let mut pixels = vec![0; 3 * 64 * 48];
        let mut canvas = Canvas::new(64, 48, &mut pixels).unwrap();
        canvas.label(&label(-5.0, -5.0, "car 7"));
        canvas.label(&label(60.0, 40.0, "a long text that has no room"));
        canvas.label(&Label {
            left: f64::NAN,
            top: 1e300,
            width: -1.0,
            height: 0.0,
            colour: 0,
            text: "".into(),
        });
        let mut above = vec![0; 3 * 64 * 48];
        Canvas::new(64, 48, &mut above).unwrap().label(&label(10.0, 20.0, "7"));
        let row = |y: usize| above[3 * 64 * y..][..3 * 64].iter().filter(|value| **value != 0).count();
        assert!(row(12) > 0 && row(5) == 0);
    }

    #[test]
    fn neighbours_have_different_colours() {
        let distance = |a: Rgb888, b: Rgb888| {
            a.r().abs_diff(b.r()) as u32 + u32::from(a.g().abs_diff(b.g())) + u32::from(a.b().abs_diff(b.b()))
        };
        for number in 0..50 {
            assert!(distance(colour(number), colour(number + 1)) > 150, "{number}");
        }
    }
}
