//! Single frames of a video.
use super::decoder::{Decoder, Format};
use super::index::Index;
use std::collections::BTreeSet;
use std::path::Path;

/// Most bytes of a frame.
const MOST: usize = 256 << 20;
/// Frames that are rather decoded than jumped over.
const NEAR: u64 = 100;

/// Gives these frames of a video to `each`, by number from 0, as binary PPM (see [`crate::raw_image`]), in this size or
/// their own. Frames that are not there or cannot be decoded are left out.
///
/// # Errors
/// ffmpeg cannot be started or ends in the middle, or the file is no video.
pub fn stills(
    program: &Path,
    video: &Path,
    size: Option<(u32, u32)>,
    wanted: &BTreeSet<u64>,
    mut each: impl FnMut(u64, &[u8]),
) -> std::io::Result<()> {
    let index = Index::read(program, video).map_err(std::io::Error::other)?;
    let format = Format { size, jpeg: false, every: 1, threads: 1 };
    let mut rest = wanted.clone();
    let mut pixels = Vec::new();
    while let Some(first) = rest.pop_first() {
        let Some(place) = usize::try_from(first).ok().filter(|first| *first < index.frames.len()) else {
            break;
        };
        let mut decoder = Decoder::start(program, video, &index, place, &format)?;
        let mut next = Some(first);
        while let (Some(number), Some(time)) = (next, decoder.next_time()) {
            pixels.clear();
            decoder.read(&mut pixels, MOST)?;
            let Ok(at) = index.frames.binary_search_by_key(&time, |frame| frame.time) else { continue };
            let at = at as u64;
            if at == number {
                each(number, &pixels);
            }
            if at < number {
                continue;
            }
            // What is far away is decoded from its own place.
            let near = rest.first().copied().filter(|later| *later < at + NEAR);
            next = near;
            rest.retain(|later| Some(*later) != near);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_image::RawImage;
    use crate::video::program;
    use std::process::Command;

    #[test]
    fn the_frames_that_were_asked_for_come() {
        let program =
            program::find(Path::new(".")).unwrap_or_else(|missing| panic!("{missing}: {}", program::HELP));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("grey.mp4");
        // Each frame is one step brighter.
        let made = Command::new(&program)
            .args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i"])
            .arg("color=black:size=32x32:rate=10,geq=lum='N':cb=128:cr=128")
            .args(["-frames:v", "220", "-c:v", "libx264", "-qp", "0", "-g", "10", "-pix_fmt", "yuv420p"])
            .arg(&file)
            .status();
        assert!(made.unwrap().success());
        let wanted = BTreeSet::from([0, 30, 31, 200, 900]);
        let mut seen = Vec::new();
        stills(&program, &file, None, &wanted, |number, picture| {
            let picture = RawImage::parse(picture).unwrap();
            assert_eq!((picture.width, picture.height), (32, 32));
            seen.push((number, picture.pixels[0]));
        })
        .unwrap();
        assert_eq!(seen.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 30, 31, 200]);
        // Video levels: 16 is black.
        for (number, level) in seen {
            let expected = (number as f64 - 16.0).max(0.0) * 255.0 / 219.0;
            assert!((f64::from(level) - expected).abs() < 4.0, "frame {number} has {level}");
        }
    }
}
