//! Pictures in a terminal: by the protocol of Kitty or iTerm2, or as coloured characters of two pixels each.
use crate::arguments::PictureForm;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use std::fmt::Write as _;
use std::io::{Cursor, IsTerminal};
use tidemill_inference::preprocess::image::decode;
use tidemill_operators::raw_image;

/// Most cells of a picture: columns and lines.
const MOST: (u16, u16) = (72, 24);
/// Pixels of a cell, as far as terminals have one size: more would not be seen.
const CELL: (u32, u32) = (10, 20);
/// Longest piece of a picture in Kitty's protocol.
const PIECE: usize = 4096;

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pictures {
    Kitty,
    Iterm,
    Blocks,
    Words,
}

impl Pictures {
    pub(super) fn of(form: PictureForm) -> Self {
        match form {
            PictureForm::Auto if !std::io::stdout().is_terminal() => Self::Words,
            PictureForm::Auto => Self::by(|name| std::env::var(name).unwrap_or_default()),
            PictureForm::Kitty => Self::Kitty,
            PictureForm::Iterm => Self::Iterm,
            PictureForm::Blocks => Self::Blocks,
            PictureForm::Words => Self::Words,
        }
    }

    /// By the variables with which terminals name themselves.
    fn by(variable: impl Fn(&str) -> String) -> Self {
        let (term, program) = (variable("TERM"), variable("TERM_PROGRAM"));
        if term == "dumb" || !variable("NO_COLOR").is_empty() {
            return Self::Words;
        }
        // They pass neither protocol on, unless told to.
        if !variable("TMUX").is_empty() || term.starts_with("screen") || term.starts_with("tmux") {
            return Self::Blocks;
        }
        if matches!(program.as_str(), "iTerm.app" | "WezTerm" | "mintty") {
            return Self::Iterm;
        }
        let is_kitty = !variable("KITTY_WINDOW_ID").is_empty() || term.contains("kitty");
        if is_kitty
            || term.contains("ghostty")
            || program == "ghostty"
            || !variable("KONSOLE_VERSION").is_empty()
        {
            return Self::Kitty;
        }
        Self::Blocks
    }

    /// Returns what shows a picture, with a line end; `None` if it cannot be decoded, or is only described.
    pub(super) fn draw(self, bytes: &[u8]) -> Option<String> {
        if self == Self::Words {
            return None;
        }
        let picture = decode(bytes).ok()?;
        let (columns, lines) = match terminal_size::terminal_size_of(std::io::stdout()) {
            Some((width, height)) => (width.0.min(MOST.0), (height.0 / 3 * 2).clamp(4, MOST.1)),
            None => MOST,
        };
        let (columns, lines) = cells(picture.dimensions(), (columns, lines));
        match self {
            Self::Kitty => kitty(&smaller(&picture, columns, lines), columns, lines),
            Self::Iterm => iterm(&smaller(&picture, columns, lines), columns, lines),
            Self::Blocks => Some(blocks(&image::imageops::thumbnail(&picture, columns, 2 * lines))),
            Self::Words => None,
        }
    }
}

/// Width and height of a picture by its first bytes.
pub(super) fn size_of(bytes: &[u8]) -> Option<(u32, u32)> {
    if let Ok(size) = raw_image::size(bytes) {
        return Some(size);
    }
    image::ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?.into_dimensions().ok()
}

/// Encodes a picture, without a loss.
pub(super) fn png(bytes: &[u8]) -> Option<Vec<u8>> {
    encoded(&decode(bytes).ok()?)
}

fn encoded(picture: &RgbImage) -> Option<Vec<u8>> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, image::ImageFormat::Png).ok()?;
    Some(bytes.into_inner())
}

/// Columns and lines of a picture: as large as it is, at most `most`; a cell is twice as high as it is wide.
fn cells((width, height): (u32, u32), most: (u16, u16)) -> (u32, u32) {
    let (width, height) = (f64::from(width.max(1)), f64::from(height.max(1)));
    let scale = (f64::from(most.0) / width).min(2.0 * f64::from(most.1) / height).min(1.0);
    ((width * scale).round().max(1.0) as u32, (height * scale / 2.0).round().max(1.0) as u32)
}

fn smaller(picture: &RgbImage, columns: u32, lines: u32) -> RgbImage {
    let (width, height) = (columns * CELL.0, lines * CELL.1);
    match picture.width() > width || picture.height() > height {
        true => image::imageops::thumbnail(picture, width, height),
        false => picture.clone(),
    }
}

fn kitty(picture: &RgbImage, columns: u32, lines: u32) -> Option<String> {
    let text = STANDARD.encode(encoded(picture)?);
    let mut all = String::with_capacity(text.len() + text.len() / 64 + 64);
    let mut rest = text.as_str();
    // `q=2`: the terminal does not answer.
    let mut first = format!("a=T,f=100,q=2,c={columns},r={lines},");
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.len().min(PIECE));
        rest = more;
        let has_more = u8::from(!rest.is_empty());
        // A string takes it.
        let _ = write!(all, "\u{1b}_G{first}m={has_more};{piece}\u{1b}\\");
        first.clear();
    }
    all.push('\n');
    Some(all)
}

fn iterm(picture: &RgbImage, columns: u32, lines: u32) -> Option<String> {
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, 85).encode_image(picture).ok()?;
    let text = STANDARD.encode(&bytes);
    let about = format!("inline=1;size={};width={columns};height={lines};preserveAspectRatio=1", bytes.len());
    Some(format!("\u{1b}]1337;File={about}:{text}\u{7}\n"))
}

/// A character for two pixels, one above the other.
fn blocks(picture: &RgbImage) -> String {
    let mut all = String::new();
    let below = |column, row| match row < picture.height() {
        true => picture.get_pixel(column, row).0,
        false => [0; 3],
    };
    for row in (0..picture.height()).step_by(2) {
        for column in 0..picture.width() {
            let ([r, g, b], [r2, g2, b2]) = (picture.get_pixel(column, row).0, below(column, row + 1));
            // A string takes it.
            let _ = write!(all, "\u{1b}[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m▀");
        }
        all.push_str("\u{1b}[0m\n");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        raw_image::RawImage::write_header(width, height, &mut bytes);
        bytes.extend((0..width * height).flat_map(|pixel| [pixel as u8, (pixel >> 8) as u8, 200]));
        bytes
    }

    #[test]
    fn terminals_are_known_by_their_variables() {
        let by = |set: &[(&str, &str)]| {
            Pictures::by(|name| {
                set.iter().find(|(of, _)| *of == name).map_or(String::new(), |(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(by(&[("TERM", "xterm-kitty")]), Pictures::Kitty);
        assert_eq!(by(&[("TERM", "xterm-256color"), ("KITTY_WINDOW_ID", "1")]), Pictures::Kitty);
        assert_eq!(by(&[("TERM", "xterm-ghostty")]), Pictures::Kitty);
        assert_eq!(by(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "iTerm.app")]), Pictures::Iterm);
        assert_eq!(by(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "WezTerm")]), Pictures::Iterm);
        assert_eq!(by(&[("TERM", "xterm-256color")]), Pictures::Blocks);
        assert_eq!(by(&[("TERM", "tmux-256color"), ("KITTY_WINDOW_ID", "1")]), Pictures::Blocks);
        assert_eq!(by(&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/x")]), Pictures::Blocks);
        assert_eq!(by(&[("TERM", "dumb")]), Pictures::Words);
        assert_eq!(by(&[("TERM", "xterm-kitty"), ("NO_COLOR", "1")]), Pictures::Words);
    }

    #[test]
    fn a_picture_keeps_its_form_within_the_cells() {
        assert_eq!(cells((640, 360), (72, 24)), (72, 20));
        assert_eq!(cells((360, 640), (72, 24)), (27, 24));
        assert_eq!(cells((16, 16), (72, 24)), (16, 8));
        assert_eq!(cells((5000, 1), (72, 24)), (72, 1));
        assert_eq!(cells((0, 0), (72, 24)), (1, 1));
    }

    #[test]
    fn kitty_gets_the_whole_picture_in_pieces() {
        let text = Pictures::Kitty.draw(&raw(300, 200)).unwrap();
        let pieces: Vec<&str> = text.trim_end().split_terminator("\u{1b}\\").collect();
        assert!(pieces.len() > 1, "{} pieces", pieces.len());
        assert!(pieces[0].starts_with("\u{1b}_Ga=T,f=100,q=2,c=72,r=24,m=1;"), "{}", &pieces[0][..50]);
        assert!(pieces.last().unwrap().starts_with("\u{1b}_Gm=0;"));
        let content: String = pieces.iter().map(|piece| piece.split_once(';').unwrap().1).collect();
        let picture = image::load_from_memory(&STANDARD.decode(content).unwrap()).unwrap();
        assert_eq!((picture.width(), picture.height()), (300, 200), "it is smaller than the cells");
    }

    #[test]
    fn iterm_gets_a_file() {
        let text = Pictures::Iterm.draw(&raw(2000, 1000)).unwrap();
        let (about, content) = text.trim_end().trim_end_matches('\u{7}').split_once(':').unwrap();
        let bytes = STANDARD.decode(content).unwrap();
        let expected = format!(
            "\u{1b}]1337;File=inline=1;size={};width=72;height=18;preserveAspectRatio=1",
            bytes.len()
        );
        assert_eq!(about, expected);
        let picture = image::load_from_memory(&bytes).unwrap();
        assert_eq!((picture.width(), picture.height()), (720, 360));
    }

    #[test]
    fn blocks_have_two_pixels_each() {
        let mut bytes = Vec::new();
        raw_image::RawImage::write_header(1, 2, &mut bytes);
        bytes.extend([1, 2, 3, 4, 5, 6]);
        assert_eq!(Pictures::Blocks.draw(&bytes).unwrap(), "\u{1b}[38;2;1;2;3;48;2;4;5;6m▀\u{1b}[0m\n");
        assert_eq!(Pictures::Blocks.draw(b"no picture"), None);
        assert_eq!(Pictures::Words.draw(&bytes), None);
    }

    #[test]
    fn sizes_come_from_the_first_bytes() {
        assert_eq!(size_of(&raw(3, 5)[..20]), Some((3, 5)));
        assert_eq!(size_of(&png(&raw(7, 4)).unwrap()), Some((7, 4)));
        assert_eq!(size_of(b"RIFF"), None);
    }
}
