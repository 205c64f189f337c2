//! Single frames of a video.
use super::decoder::{Decoder, Format};
use super::index::Index;
use std::collections::BTreeSet;
use std::path::Path;

/// Most bytes of a frame.
const MOST: usize = 256 << 20;
/// Distance up to which frames are decoded and not skipped by seeking.
const NEAR: u64 = 100;

/// Passes these frames of a video to `each`, by number from 0, as binary PPM (see [`crate::raw_image`]), in `size` or their
/// own. Missing or undecodable frames are left out.
///
/// # Errors
/// ffmpeg cannot be started or ends early, or the file is no video.
pub fn stills(
    program: &Path,
    video: &Path,
    size: Option<(u32, u32)>,
    wanted: &BTreeSet<u64>,
    mut each: impl FnMut(u64, &[u8]),
) -> std::io::Result<()> {
    let index = Index::read(program, video).map_err(std::io::Error::other)?;
    let format = Format { size, jpeg: false, every: 1, threads: 1, planes: false };
    let mut rest = wanted.clone();
    let mut pixels = Vec::new();
    while let Some(first) = rest.pop_first() {
        let Some(place) = usize::try_from(first).ok().filter(|first| *first < index.frames.len()) else {
            break;
        };
        let mut decoder = Decoder::start(program, video, &index, place, &format)?;
        let mut next = Some(first);
        while let (Some(wanted), Some(time)) = (next, decoder.next_time()) {
            pixels.clear();
            decoder.read(&mut pixels, MOST)?;
            let Ok(at) = index.frames.binary_search_by_key(&time, |frame| frame.time) else { continue };
            let at = at as u64;
            let is_wanted;
            (is_wanted, next) = after(wanted, at, &mut rest);
            if is_wanted {
                each(at, &pixels);
            }
        }
    }
    Ok(())
}

/// Returns whether frame `at`, which came while `wanted` was expected, is requested, and the next one to expect. Frames in
/// between could not be decoded; a distant one is decoded from its own position (`None`).
fn after(wanted: u64, at: u64, rest: &mut BTreeSet<u64>) -> (bool, Option<u64>) {
    let mut near = || {
        let later = rest.first().copied().filter(|later| *later < at + NEAR)?;
        rest.remove(&later);
        Some(later)
    };
    let mut next = Some(wanted);
    while next.is_some_and(|frame| frame < at) {
        next = near();
    }
    match next == Some(at) {
        true => (true, near()),
        false => (false, next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_image::RawImage;
    use crate::video::program;
    use std::process::Command;

    #[test]
    fn a_frame_that_cannot_be_decoded_costs_no_other() {
        let rest = |frames: &[u64]| frames.iter().copied().collect::<BTreeSet<u64>>();
        let mut few = rest(&[6, 7, 300]);
        assert_eq!((after(5, 4, &mut few), few.len()), ((false, Some(5)), 3), "before it");
        assert_eq!((after(5, 6, &mut few), few.clone()), ((true, Some(7)), rest(&[300])), "5 could not");
        assert_eq!((after(7, 9, &mut few), few.clone()), ((false, None), rest(&[300])), "7 could not");
        few.clear();
        assert_eq!((after(300, 300, &mut few), few.len()), ((true, None), 0));
    }

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
