//! Pixels and planes of clips, compared with those of the program ffmpeg.
mod clips;

use clips::{MOST, by_program, clip, decode, library};
use std::path::Path;
use tidemill_avcodec::{Scaler, Settings};

const LAW: &str = "-pix_fmt yuv420p -c:v libx264 -preset veryfast";

/// Clips: name, source, options.
const CLIPS: &[(&str, &str, &str)] = &[
    ("b.mp4", "testsrc2=size=640x360:rate=10:duration=3", "-pix_fmt yuv420p -c:v libx264 -bf 3 -preset medium"),
    ("plain.mp4", "testsrc2=size=320x180:rate=10:duration=2", "-pix_fmt yuv420p -c:v libx264 -bf 0 -preset ultrafast"),
    ("odd.mkv", "testsrc2=size=163x91:rate=10:duration=2", "-pix_fmt yuv444p -c:v libx264 -preset veryfast"),
    ("odd420.mkv", "testsrc2=size=163x91:rate=10:duration=2", "-pix_fmt yuv420p -c:v libvpx-vp9 -deadline realtime"),
    ("h709.mp4", "testsrc2=size=320x180:rate=10:duration=2", "-vf setparams=colorspace=bt709:range=tv -pix_fmt yuv420p -c:v libx264 -colorspace bt709 -color_range tv"),
    ("full.mp4", "testsrc2=size=320x180:rate=10:duration=2", "-vf scale=out_range=pc -pix_fmt yuvj420p -c:v libx264"),
    ("h265.mp4", "testsrc2=size=320x184:rate=10:duration=2", "-pix_fmt yuv420p -c:v libx265 -x265-params log-level=none"),
    ("motion.avi", "testsrc2=size=320x180:rate=10:duration=2", "-pix_fmt yuvj420p -c:v mjpeg -q:v 4"),
    ("motion422.avi", "testsrc2=size=162x90:rate=10:duration=2", "-pix_fmt yuvj422p -c:v mjpeg -q:v 4"),
    ("vp8.webm", "testsrc2=size=320x180:rate=10:duration=2", "-pix_fmt yuv420p -c:v libvpx -deadline realtime"),
    ("vp9.webm", "testsrc2=size=320x180:rate=10:duration=2", "-pix_fmt yuv420p -c:v libvpx-vp9 -deadline realtime"),
    ("deep.mp4", "testsrc2=size=320x180:rate=10:duration=2", "-pix_fmt yuv420p10le -c:v libx265 -x265-params log-level=none"),
    ("four.avi", "testsrc2=size=320x180:rate=10:duration=2", "-pix_fmt yuv420p -c:v mpeg4 -q:v 4"),
    ("two.mpg", "testsrc2=size=320x180:rate=25:duration=2", "-pix_fmt yuv420p -c:v mpeg2video -q:v 4"),
];

#[test]
fn probe() {
    let _ = LAW;
    let folder = tempfile::tempdir().unwrap();
    let library = library();
    println!("{:?} {}", library.versions(), library.license());
    for (name, source, options) in CLIPS {
        let file = clip(folder.path(), name, source, options);
        for size in [None, Some((200, 112)), Some((97, 55))] {
            compare(&library, &file, size);
        }
    }
}

fn compare(library: &std::sync::Arc<tidemill_avcodec::Library>, file: &Path, size: Option<(u32, u32)>) {
    let theirs = by_program(file, size);
    let mut ours = Vec::new();
    let mut scaler = Scaler::new(library, size, MOST).unwrap();
    let mut first = None;
    let damaged = decode(library, file, &Settings::default(), |frame| {
        scaler.append(&frame, &mut ours).unwrap();
        first.get_or_insert(frame);
    });
    let differ = ours.iter().zip(&theirs).filter(|(a, b)| a != b).count();
    let most = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).max();
    let f = first.unwrap();
    println!(
        "{:?} {size:?} {:?} {:?} {:?}: {} {} bytes, {differ} differ by at most {most:?}, damaged {damaged:?}",
        file.file_name().unwrap(), f, f.matrix(), f.range(), ours.len(), theirs.len()
    );
}
