//! Files, streams, times, seeking, and decoders with threads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod clips;

use clips::{clip, decode, ffmpeg, library};
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_avcodec::{Codec, Decoder, Error, File, Frame, Range, Settings};

const SOURCE: &str = "testsrc2=size=160x96:rate=10:duration=4";
const LAW: &str = "-pix_fmt yuv420p -c:v libx264 -bf 3 -g 12 -preset medium";

fn luma(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.planes()[0].append(&mut bytes);
    bytes
}

/// Frames by their time.
fn frames(path: &Path, settings: &Settings) -> BTreeMap<i64, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut last = None;
    let take = |frame: Frame| {
        assert!(frame.pts() > last, "they come in order: {frame:?} after {last:?}");
        assert_eq!(frame.pts(), frame.guessed_pts());
        last = frame.pts();
        all.insert(last.unwrap(), luma(&frame));
    };
    assert_eq!(decode(&library(), path, settings, take), Ok(0));
    all
}

#[test]
fn streams_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let file = clip(folder.path(), "a.mp4", SOURCE, LAW);
    let both = folder.path().join("both.mkv");
    let made = ffmpeg()
        .args(["-f", "lavfi", "-i", "sine=duration=4", "-i"])
        .arg(&file)
        .args(["-map", "0", "-map", "1", "-c:v", "copy", "-c:a", "pcm_s16le"])
        .arg(&both)
        .status();
    assert!(made.unwrap().success());
    let library = library();
    let opened = File::open(&library, &file, &Settings::default()).unwrap();
    let video = opened.video().unwrap();
    assert_eq!((video.number, video.codec, video.size, video.rotation), (0, Codec::H264, (160, 96), 0));
    assert_eq!((video.time_base, video.frames, video.start), ((1, 10240), Some(40), Some(0)));
    assert_eq!((video.duration, video.rate), (Some(40 * 1024), Some((10, 1))));
    assert_eq!((video.codec.name(&library).as_str(), video.extradata[0]), ("h264", 1));
    assert!(video.is_video && !video.is_cover);
    let mut opened = File::open(&library, &both, &Settings::default()).unwrap();
    let kinds: Vec<bool> = opened.streams().iter().map(|stream| stream.is_video).collect();
    assert_eq!((kinds.as_slice(), opened.video().unwrap().number), (&[false, true][..], 1));
    opened.select(1).unwrap();
    let mut packets = 0;
    while let Some(packet) = opened.read().unwrap() {
        assert_eq!(packet.stream(), 1, "{packet:?}");
        packets += 1;
    }
    assert_eq!(packets, 40);
    assert_eq!((opened.select(2), opened.seek(7, 0)), (Err(Error::NoStream(2)), Err(Error::NoStream(7))));
    assert_eq!(Decoder::of_stream(&opened, 2, &Settings::default()).err(), Some(Error::NoStream(2)));
}

#[test]
fn rotations_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = clip(folder.path(), "a.mp4", SOURCE, LAW);
    for (anticlockwise, clockwise) in [("90", 270), ("180", 180), ("-90", 90), ("0", 0)] {
        let turned = folder.path().join("turned.mp4");
        let made = ffmpeg()
            .args(["-display_rotation", anticlockwise, "-i"])
            .arg(&file)
            .args(["-c", "copy"])
            .arg(&turned)
            .status();
        assert!(made.unwrap().success());
        let opened = File::open(&library(), &turned, &Settings::default()).unwrap();
        assert_eq!(opened.video().unwrap().rotation, clockwise);
    }
}

#[test]
fn what_is_no_video_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let library = library();
    let open =
        |name: &str| File::open(&library, &folder.path().join(name), &Settings::default()).unwrap_err();
    let missing = open("missing.mp4").to_string();
    assert!(missing.contains("missing.mp4") && missing.contains("No such file"), "{missing}");
    std::fs::write(folder.path().join("text.mp4"), "no video at all").unwrap();
    assert!(matches!(open("text.mp4"), Error::Open { .. }), "{}", open("text.mp4"));
    assert!(open("").to_string().contains("no regular file"));
    // ffmpeg would take such a name for an address.
    assert!(open("http://127.0.0.1:1/a.mp4").to_string().contains("No such file"));
    let unknown = Decoder::new(&library, Codec::Other(123_456), &[], &Settings::default()).unwrap_err();
    assert!(matches!(unknown, Error::NoDecoder(_)), "{unknown}");
    let wrong = Decoder::new(&library, Codec::H264, &[1, 2, 3, 4, 5, 6, 7], &Settings::default());
    assert!(wrong.is_err());
}

#[test]
fn a_frame_is_found_from_the_key_frame_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let library = library();
    for (name, options) in [
        ("a.mp4", LAW),
        ("a.mkv", LAW),
        ("a.webm", "-pix_fmt yuv420p -c:v libvpx-vp9 -deadline realtime -g 12"),
    ] {
        let path = clip(folder.path(), name, SOURCE, options);
        let all = frames(&path, &Settings::default());
        assert_eq!(all.len(), 40);
        let mut file = File::open(&library, &path, &Settings::default()).unwrap();
        let (entries, error) = file.index(0).unwrap();
        assert_eq!(error, None);
        let mut times: Vec<i64> = entries.iter().filter_map(|entry| entry.pts).collect();
        times.sort_unstable();
        assert_eq!(times, all.keys().copied().collect::<Vec<_>>(), "{name}");
        assert!(entries.iter().filter(|entry| entry.is_key).count() >= 4, "{name}");
        let mut decoder = Decoder::of_stream(&file, 0, &Settings::default()).unwrap();
        for (pts, pixels) in all.iter().rev() {
            file.seek(0, *pts).unwrap();
            decoder.flush();
            let mut skipped = 0;
            let found = loop {
                match decoder.receive().unwrap() {
                    Some(frame) if frame.pts() == Some(*pts) => break frame,
                    Some(frame) => {
                        assert!(frame.pts() < Some(*pts), "{name}: {frame:?}, {pts} wanted");
                        skipped += 1;
                    }
                    None => match file.read().unwrap() {
                        Some(packet) => decoder.send_packet(&packet).unwrap(),
                        None => decoder.drain().unwrap(),
                    },
                }
            };
            assert!(luma(&found) == *pixels, "{name}: {pts}");
            assert!(skipped < 12, "{name}: {skipped} frames before {pts}");
        }
    }
}

#[test]
fn frames_are_the_same_with_threads_and_low_delay() {
    let folder = tempfile::tempdir().unwrap();
    for (name, options) in [
        ("a.mp4", LAW),
        ("b.mp4", "-pix_fmt yuv420p -c:v libx265 -x265-params log-level=none"),
        ("c.webm", "-pix_fmt yuv420p -c:v libvpx-vp9 -deadline realtime"),
    ] {
        let path = clip(folder.path(), name, SOURCE, options);
        let one = frames(&path, &Settings::default());
        let four = frames(&path, &Settings { threads: 4, ..Settings::default() });
        assert!(one == four, "{name}");
    }
    let path = clip(folder.path(), "d.mp4", SOURCE, "-pix_fmt yuv420p -c:v libx264 -bf 0 -tune zerolatency");
    let one = frames(&path, &Settings::default());
    let settings = Settings { threads: 3, low_delay: true, ..Settings::default() };
    assert!(one == frames(&path, &settings));
    // Each frame comes before the next packet.
    let library = library();
    let mut file = File::open(&library, &path, &Settings::default()).unwrap();
    let mut decoder = Decoder::of_stream(&file, 0, &settings).unwrap();
    while let Some(packet) = file.read().unwrap() {
        decoder.send_packet(&packet).unwrap();
        assert_eq!(decoder.receive().unwrap().and_then(|frame| frame.pts()), packet.pts());
    }
}

#[test]
fn units_from_elsewhere_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = clip(folder.path(), "a.mp4", SOURCE, LAW);
    let expected = frames(&path, &Settings::default());
    let library = library();
    let mut file = File::open(&library, &path, &Settings::default()).unwrap();
    let stream = file.video().unwrap().clone();
    let settings = Settings::default();
    let mut decoder = Decoder::new(&library, stream.codec, &stream.extradata, &settings).unwrap();
    let mut kept = Vec::new();
    while let Some(packet) = file.read().unwrap() {
        decoder.send(packet.data(), packet.pts().unwrap()).unwrap();
        while let Some(frame) = decoder.receive().unwrap() {
            kept.push(frame);
        }
    }
    decoder.drain().unwrap();
    decoder.drain().unwrap();
    assert!(!decoder.has_ended());
    while let Some(frame) = decoder.receive().unwrap() {
        kept.push(frame.clone());
    }
    assert!(decoder.has_ended());
    assert_eq!(decoder.send(&[0, 0, 1], 0), Err(Error::Drained));
    decoder.flush();
    assert!(matches!(decoder.send(&[], 0), Err(Error::Damaged(_))));
    // Frames outlive what they came from, on any thread.
    drop((decoder, file));
    let keys = kept.iter().filter(|frame| frame.is_key()).count();
    let got = std::thread::spawn(move || {
        kept.iter().map(|frame| (frame.pts().unwrap(), luma(frame))).collect::<BTreeMap<_, _>>()
    });
    assert!(got.join().unwrap() == expected);
    assert_eq!(keys, 4);
}

#[test]
fn many_threads_decode_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [
        clip(folder.path(), "a.mp4", SOURCE, LAW),
        clip(folder.path(), "b.avi", SOURCE, "-pix_fmt yuvj420p -c:v mjpeg"),
        clip(folder.path(), "c.webm", SOURCE, "-pix_fmt yuv420p -c:v libvpx-vp9 -deadline realtime"),
    ];
    let expected: Vec<_> = paths.iter().map(|path| frames(path, &Settings::default())).collect();
    std::thread::scope(|scope| {
        for number in 0..12 {
            let (path, expected) = (&paths[number % 3], &expected[number % 3]);
            let settings = Settings { threads: 1 + number as u32 % 2, ..Settings::default() };
            scope.spawn(move || assert!(frames(path, &settings) == *expected, "{}", path.display()));
        }
    });
}

/// Those that `scripts/fetch-library.sh` fetches cannot; those of the package `av` can.
#[test]
fn av1_is_decoded_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = "testsrc2=size=64x48:rate=10:duration=1";
    let path = clip(folder.path(), "a.mp4", source, "-pix_fmt yuv420p -c:v libaom-av1 -cpu-used 8");
    let library = library();
    let file = File::open(&library, &path, &Settings::default()).unwrap();
    assert_eq!(file.video().unwrap().codec, Codec::Av1);
    match Decoder::of_stream(&file, 0, &Settings::default()) {
        Ok(_) => assert_eq!(frames(&path, &Settings::default()).len(), 10),
        Err(error) => {
            assert_eq!(error, Error::NoDecoder("av1".to_owned()));
            assert!(error.to_string().contains("`av`"), "{error}");
        }
    }
}

#[test]
fn a_unit_waits_where_the_decoder_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = clip(folder.path(), "a.avi", SOURCE, "-pix_fmt yuvj420p -c:v mjpeg");
    let library = library();
    let mut file = File::open(&library, &path, &Settings::default()).unwrap();
    let mut decoder = Decoder::of_stream(&file, 0, &Settings::default()).unwrap();
    let mut packets = std::iter::from_fn(|| file.read().unwrap());
    let full = packets.find_map(|packet| decoder.send_packet(&packet).err().map(|error| (error, packet)));
    let (error, packet) = full.unwrap();
    assert_eq!(error, Error::Full);
    let frame = decoder.receive().unwrap().unwrap();
    assert_eq!((frame.has_full_range(), frame.range(), frame.is_key()), (true, Range::Full, true));
    while decoder.receive().unwrap().is_some() {}
    assert_eq!(decoder.send_packet(&packet), Ok(()));
}

#[test]
fn frames_above_the_limit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = clip(folder.path(), "a.mp4", SOURCE, LAW);
    let library = library();
    let settings = Settings { max_pixels: 160 * 96 - 1, ..Settings::default() };
    let mut file = File::open(&library, &path, &Settings::default()).unwrap();
    let error = Decoder::of_stream(&file, 0, &settings).unwrap_err();
    assert_eq!(error, Error::TooLarge { width: 160, height: 96, most: 160 * 96 - 1 });
    // Where the size is found in the data, the decoder refuses them.
    let extradata = file.video().unwrap().extradata.clone();
    let mut all = Vec::new();
    if let Ok(mut decoder) = Decoder::new(&library, Codec::H264, &extradata, &settings) {
        while let Some(packet) = file.read().unwrap() {
            all.push(decoder.send_packet(&packet).is_err());
            all.push(!matches!(decoder.receive(), Ok(None)));
        }
        assert!(all.iter().any(|failed| *failed), "it says so");
        decoder.flush();
        assert!(matches!(decoder.receive(), Ok(None)));
    }
    let enough = Settings { max_pixels: 160 * 96, ..Settings::default() };
    assert_eq!(frames(&path, &enough).len(), 40);
}
