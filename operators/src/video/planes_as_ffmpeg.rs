//! Compares pixels converted from planes by [`tidemill_media::planes`] with those of ffmpeg.
use super::program;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use tidemill_media::planes::{Conversion, Matrix};
use tidemill_media::raw_image::RawImage;

/// ffmpeg's pixels for consecutive planes.
fn by_ffmpeg(matrix: Matrix, width: u32, height: u32, planes: &[u8]) -> Vec<u8> {
    let name = matrix.name();
    let mut child = Command::new(program::find(Path::new(".")).expect(program::HELP))
        .args(["-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "yuv420p"])
        .args(["-s", &format!("{width}x{height}"), "-i", "pipe:0", "-vf"])
        .arg(format!(
            "setparams=colorspace={name}:range=tv,scale=flags=bilinear+accurate_rnd+full_chroma_int+bitexact,format=rgb24"
        ))
        .args(["-f", "rawvideo", "pipe:1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let planes = planes.to_vec();
    let write = std::thread::spawn(move || input.write_all(&planes));
    let output = child.wait_with_output().unwrap();
    write.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn pixels_are_those_of_ffmpeg() {
    let mut random = tidemill_random::Random::of_seed(7);
    for matrix in [Matrix::Bt601, Matrix::Bt709] {
        for (width, height) in [(8, 8), (64, 48), (34, 10), (480, 288), (854, 480)] {
            let (row, rows) = (width as usize, height as usize);
            // ffmpeg blends between columns of different chroma.
            let luma: Vec<u8> = (0..row * rows).map(|_| random.below(256) as u8).collect();
            let [first, second] = [0; 2].map(|_| vec![random.below(256) as u8; row * rows / 4]);
            let half = row / 2;
            let side_by_side: Vec<u8> =
                (0..rows / 2).flat_map(|_| [&first[..half], &second[..half]].concat()).collect();
            let mut picture = Vec::new();
            let planes = [&luma[..], &side_by_side].concat();
            Conversion::new(matrix).append(width, height, &planes, &mut picture);
            let ours = RawImage::parse(&picture).unwrap();
            let theirs = by_ffmpeg(matrix, width, height, &[luma, first, second].concat());
            let different =
                ours.pixels.iter().zip(&theirs).filter(|(ours, theirs)| ours.abs_diff(**theirs) > 1).count();
            assert_eq!((ours.pixels.len(), different), (theirs.len(), 0), "{matrix:?}, {width} x {height}");
        }
    }
}
