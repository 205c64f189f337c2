//! Videos made by ffmpeg, read from the start and from any position, whole and damaged.
use super::*;
use crate::api::SourceRead;
use crate::raw_image::RawImage;
use crate::record::{binary, int64, text};
use crate::sources::test::{check_some_seeks, drain};
use crate::testing::only;
use std::cell::Cell;
use std::process::Command;

thread_local! {
    /// The decoder of the sources that this thread binds.
    static DECODER: Cell<&'static str> = const { Cell::new("process") };
}

/// Runs each of these tests with every decoder.
macro_rules! with_each_decoder {
    ($($name:ident)*) => {
        mod by_process {
            $(#[test] fn $name() { super::$name(); })*
        }
        mod by_library {
            $(#[test] fn $name() { super::DECODER.set("library"); super::$name(); })*
        }
    };
}

with_each_decoder! {
    frames_are_the_same_from_anywhere
    times_are_those_of_the_container
    frames_are_left_out_where_they_come_unevenly
    damaged_frames_are_dead_letters_and_the_others_go_on
    files_that_are_no_videos_are_dead_letters
    a_frame_of_avi_shows_what_was_recorded_as_that_number
    a_frame_of_an_old_or_copied_file_shows_what_was_recorded_as_that_number
    a_frame_of_a_container_with_times_shows_what_was_recorded_as_that_number
    a_frame_of_mpeg_ps_shows_what_was_recorded_as_that_number
    damaged_frames_of_avi_move_no_others
    times_that_start_late_are_read_from_anywhere
    what_was_cut_off_in_front_is_not_lost
    times_that_go_back_are_told
    frames_that_are_too_large_are_dead_letters
    what_begins_where_the_size_is_odd_is_read_as_pixels
    frames_are_read_into_the_same_memory_again_and_again
}

/// Binds a source with the decoder of the test.
fn bind(kind: &Video, folder: &Path, yaml: &str) -> Result<BoundSource, Diagnostics> {
    crate::sources::test::bind(kind, folder, &format!("{yaml}\ndecoder: {}", DECODER.get()))
}

/// Makes a video of moving bars; `more` are options of the encoder.
fn make(file: &Path, frames: u32, more: &str) {
    let program =
        program::find(Path::new(".")).unwrap_or_else(|missing| panic!("{missing}: {}", program::HELP));
    let mut command = Command::new(program);
    command.args([
        "-nostdin",
        "-loglevel",
        "error",
        "-y",
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=64x48:rate=10",
    ]);
    let pixels = if more.contains("mjpeg") { "yuvj420p" } else { "yuv420p" };
    command.args(["-frames:v", &frames.to_string(), "-pix_fmt", pixels]).args(more.split(' ')).arg(file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const H264: &str = "-c:v libx264 -g 6 -bf 2 -threads 1";

/// Camera and number of each frame, their pictures, dead letters by their place.
type Frames = (Vec<(String, i64)>, Vec<Vec<u8>>, Vec<(u64, String)>);

fn frames(source: &BoundSource) -> Frames {
    let (batches, dead) = drain(source, 7, 100_000);
    let (mut names, mut pictures) = (Vec::new(), Vec::new());
    for batch in &batches {
        let (cameras, numbers) = (text(batch.column(0)).unwrap(), int64(batch.column(1)).unwrap());
        names.extend((0..batch.num_rows()).map(|row| (cameras.value(row).to_owned(), numbers.value(row))));
        pictures
            .extend((0..batch.num_rows()).map(|row| binary(batch.column(2)).unwrap().value(row).to_vec()));
    }
    (names, pictures, dead.into_iter().map(|(at, letter)| (at, letter.reason.into_owned())).collect())
}

/// Seeks to every fifth frame, because each starts a program; to every frame where `TIDEMILL_SEEKS` is set.
fn check_seeks(source: &BoundSource) {
    match std::env::var_os("TIDEMILL_SEEKS") {
        Some(_) => check_some_seeks(source, 1, &[1, 2, 3, 1000]),
        None => check_some_seeks(source, 5, &[1, 1000]),
    }
}

fn frames_are_the_same_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("road.mp4"), 14, H264);
    let source = bind(&Video, folder.path(), "path: road.mp4").unwrap();
    assert_eq!(source.output.to_string(), "{camera: text, frame: int64, image: image}");
    let (names, pictures, dead) = frames(&source);
    assert!(dead.is_empty());
    assert_eq!(names, (0..14).map(|frame| ("road".to_owned(), frame)).collect::<Vec<_>>());
    for picture in &pictures {
        let picture = RawImage::parse(picture).unwrap();
        assert_eq!((picture.width, picture.height, picture.pixels.len()), (64, 48, 3 * 64 * 48));
    }
    assert!((1..14).all(|frame| pictures[frame] != pictures[frame - 1]), "it moves");
    check_seeks(&source);
}

fn times_are_those_of_the_container() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("road.mkv"), 5, "-c:v libx264 -threads 1");
    let source = bind(&Video, folder.path(), "path: road.mkv\nstart: 100").unwrap();
    assert!(source.has_event_times);
    let mut reader = (source.make)().unwrap();
    assert_eq!(reader.len_hint(), Some(5));
    let Ok(SourceRead::Rows { times, .. }) = reader.read(9, usize::MAX) else { panic!("rows") };
    assert_eq!(times, Some(vec![100_000_000, 100_100_000, 100_200_000, 100_300_000, 100_400_000]));
    assert_eq!(reader.sizes().unwrap().len(), 5);
}

#[test]
fn cameras_of_a_folder_come_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("b.mp4"), 3, H264);
    make(&folder.path().join("a.avi"), 4, "-c:v mjpeg -q:v 3");
    let source = bind(&Video, folder.path(), "path: .\nscale: 32x20\nevery: 2\nframes: jpeg").unwrap();
    let (names, pictures, dead) = frames(&source);
    assert!(dead.is_empty());
    let expected = [("a", 0), ("b", 0), ("a", 2), ("b", 2)].map(|(name, frame)| (name.to_owned(), frame));
    assert_eq!(names, expected);
    for picture in &pictures {
        let reader = image::ImageReader::with_format(std::io::Cursor::new(picture), image::ImageFormat::Jpeg);
        assert_eq!(reader.into_dimensions().unwrap(), (32, 20));
    }
    check_seeks(&source);
}

fn frames_are_left_out_where_they_come_unevenly() {
    let folder = tempfile::tempdir().unwrap();
    let uneven = format!("-vf setpts=N*N/TB/10 -fps_mode passthrough {H264}");
    make(&folder.path().join("a.mkv"), 6, &uneven);
    let source = bind(&Video, folder.path(), "path: a.mkv\nevery: 3").unwrap();
    let all = bind(&Video, folder.path(), "path: a.mkv").unwrap();
    let ((names, some, _), (_, all, _)) = (frames(&source), frames(&all));
    assert_eq!(names, [("a".to_owned(), 0), ("a".to_owned(), 3)]);
    assert_eq!((&some[0], &some[1]), (&all[0], &all[3]));
    check_seeks(&source);
}

/// Bytes of the packets of a file that is damaged in its last part only.
fn damage(file: &Path, from: f64, to: f64) {
    let mut bytes = std::fs::read(file).unwrap();
    let place = |part: f64| (bytes.len() as f64 * part) as usize;
    let (from, to) = (place(from), place(to));
    bytes[from..to].iter_mut().for_each(|byte| *byte ^= 0x5a);
    std::fs::write(file, bytes).unwrap();
}

fn damaged_frames_are_dead_letters_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.mkv");
    make(&file, 30, H264);
    damage(&file, 0.4, 0.5);
    let source = bind(&Video, folder.path(), "path: a.mkv").unwrap();
    let (names, _, dead) = frames(&source);
    assert!(!dead.is_empty(), "something is damaged");
    assert!(names.len() >= 15 && names.first() == Some(&("a".to_owned(), 0)), "{names:?}");
    assert!(names.iter().any(|(_, frame)| *frame > 20), "what comes behind goes on: {names:?}");
    assert!(
        dead.iter().all(|(_, reason)| reason == "frame_undecodable" || reason == "video_incomplete"),
        "{dead:?}"
    );
    check_seeks(&source);
}

fn files_that_are_no_videos_are_dead_letters() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.mp4");
    make(&cut, 30, &format!("{H264} -movflags +faststart"));
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() * 3 / 4]).unwrap();
    std::fs::write(folder.path().join("text.mp4"), "no video").unwrap();
    std::fs::write(folder.path().join("empty.avi"), "").unwrap();
    make(&folder.path().join("whole.mp4"), 3, H264);
    let source = bind(&Video, folder.path(), "path: .").unwrap();
    let (names, _, dead) = frames(&source);
    assert_eq!(names.iter().filter(|(camera, _)| camera == "whole").count(), 3);
    let of_cut = names.iter().filter(|(camera, _)| camera == "cut").count();
    assert!((10..30).contains(&of_cut), "{of_cut}");
    let count = |wanted: &str| dead.iter().filter(|(_, reason)| reason == wanted).count();
    assert_eq!((count("video_unreadable"), count("video_incomplete")), (2, 1), "{dead:?}");
    check_seeks(&source);
}

/// ffmpeg with these arguments, in a folder.
fn run(folder: &Path, arguments: &str) {
    let mut command = Command::new(program::find(Path::new(".")).expect(program::HELP));
    command.args(["-nostdin", "-loglevel", "error"]).args(arguments.split(' ')).current_dir(folder);
    assert!(command.status().unwrap().success(), "{arguments}");
}

const MPEG_2: &str = "-r 25 -c:v mpeg2video -g 6 -bf 2 -threads 1 -f mpeg";

/// The number of each picture in a clip whose luma rises by ten levels with each frame.
fn recorded(pictures: &[Vec<u8>]) -> Vec<i64> {
    let number = |picture: &Vec<u8>| {
        let level = f64::from(RawImage::parse(picture).unwrap().pixels[0]);
        ((level * 219.0 / 255.0 + 16.0 - 20.0) / 10.0).round() as i64
    };
    pictures.iter().map(number).collect()
}

/// Makes 20 frames in each of these files, and compares the result with each number.
fn look_at_numbers(files: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    for (name, how) in files {
        match how.strip_prefix("-i ") {
            Some(copy) => run(folder.path(), &format!("-i {copy} {name}")),
            None => {
                let bright = "-vf geq=lum='20+10*N':cb=128:cr=128";
                make(&folder.path().join(name), 20, &format!("{bright} {how} -threads 1"));
            }
        }
        for every in [1, 3] {
            let yaml = format!("path: {name}\nevery: {every}");
            let source = bind(&Video, folder.path(), &yaml).unwrap();
            let (names, pictures, dead) = frames(&source);
            let numbers: Vec<i64> = names.iter().map(|(_, number)| *number).collect();
            assert_eq!(dead, [], "{name}");
            assert_eq!(numbers, (0..20).step_by(every).collect::<Vec<_>>(), "{name}");
            if *name == "b.mpg" {
                // Its rate differs from that of its pictures.
                continue;
            }
            assert_eq!(recorded(&pictures), numbers, "{name}, every {every}");
            check_seeks(&source);
        }
    }
}

/// AVI has no display times.
fn a_frame_of_avi_shows_what_was_recorded_as_that_number() {
    look_at_numbers(&[
        ("two.avi", "-c:v libx264 -bf 2"),
        ("few.avi", "-c:v libx264 -bf 3 -g 6"),
        ("none.avi", "-c:v libx264 -bf 0"),
    ]);
}

/// A copy from AVI into MP4 has wrong times.
fn a_frame_of_an_old_or_copied_file_shows_what_was_recorded_as_that_number() {
    look_at_numbers(&[
        ("old.avi", "-c:v mpeg4 -bf 2 -q:v 2"),
        ("two.avi", "-c:v libx264 -bf 2"),
        ("copied.mp4", "-i two.avi -c copy"),
    ]);
}

fn a_frame_of_a_container_with_times_shows_what_was_recorded_as_that_number() {
    look_at_numbers(&[
        ("a.mp4", "-c:v libx264 -bf 2"),
        ("none.mp4", "-c:v libx264 -bf 0"),
        ("a.flv", "-c:v libx264 -bf 2"),
        ("late.mkv", "-c:v libx264 -bf 2 -output_ts_offset 7"),
    ]);
}

fn a_frame_of_mpeg_ps_shows_what_was_recorded_as_that_number() {
    look_at_numbers(&[
        ("a.mpg", "-c:v libx264 -bf 2 -g 6"),
        ("b.mpg", "-r 25 -c:v mpeg2video -g 6 -bf 2 -q:v 2 -f mpeg"),
    ]);
}

/// The other frames keep their numbers, also without times of the container.
fn damaged_frames_of_avi_move_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.avi");
    make(&file, 22, "-vf geq=lum='20+10*N':cb=128:cr=128 -c:v libx264 -bf 2 -g 6 -threads 1");
    damage(&file, 0.7, 0.72);
    let source = bind(&Video, folder.path(), "path: a.avi").unwrap();
    let (names, pictures, _) = frames(&source);
    let numbers: Vec<i64> = names.iter().map(|(_, number)| *number).collect();
    assert!(numbers.len() > 10, "{numbers:?}");
    assert_eq!(recorded(&pictures), numbers);
}

/// As in transport streams and parts of a recording. And not every packet of MPEG-PS has a time.
fn times_that_start_late_are_read_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("a.mkv"), 20, &format!("{H264} -output_ts_offset 100"));
    make(&folder.path().join("b.mpg"), 20, MPEG_2);
    for name in ["a.mkv", "b.mpg"] {
        let source = bind(&Video, folder.path(), &format!("path: {name}")).unwrap();
        let (names, _, dead) = frames(&source);
        assert_eq!((names.len(), dead), (20, vec![]), "{name}");
        check_seeks(&source);
    }
}

/// The clip starts between key frames: earlier frames are in the file but not part of the clip.
fn what_was_cut_off_in_front_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("long.mp4"), 30, H264);
    run(folder.path(), "-ss 0.9 -i long.mp4 -c copy a.mp4");
    let source = bind(&Video, folder.path(), "path: a.mp4").unwrap();
    let (names, _, dead) = frames(&source);
    assert_eq!((names.len(), dead), (21, vec![]));
    check_seeks(&source);
}

/// Two concatenated recordings, each with its own times: frames that cannot be distinguished are reported.
fn times_that_go_back_are_told() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("one.mpg"), 20, MPEG_2);
    let one = std::fs::read(folder.path().join("one.mpg")).unwrap();
    std::fs::write(folder.path().join("a.mpg"), [one.clone(), one].concat()).unwrap();
    let source = bind(&Video, folder.path(), "path: a.mpg").unwrap();
    let (names, _, dead) = frames(&source);
    assert!(names.len() >= 20, "{}", names.len());
    assert_eq!(dead.iter().filter(|(_, reason)| reason == "video_incomplete").count(), 1, "{dead:?}");
}

fn frames_that_are_too_large_are_dead_letters() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("a.mp4"), 2, H264);
    let source = bind(&Video, folder.path(), "path: a.mp4\nmax_pixels: 3000").unwrap();
    let (names, _, dead) = frames(&source);
    assert_eq!((names.len(), dead[0].1.as_str(), dead.len()), (0, "frame_too_large", 2));
    // They would be decoded in full before scaling.
    let source = bind(&Video, folder.path(), "path: a.mp4\nmax_pixels: 3000\nscale: 32x20").unwrap();
    assert_eq!(frames(&source).2.len(), 2);
}

#[test]
fn slips_stand_at_their_place() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("a.mp4"), 1, H264);
    for (yaml, code, message, line, column) in [
        ("path: b.mp4", "E0609", "does not exist", 1, 7),
        ("path: a.mp4\nscale: 320*192", "E0606", "not the size of a picture", 2, 8),
        ("path: a.mp4\nevery: 0", "E0606", "`every` is 0", 2, 8),
    ] {
        let error = only(bind(&Video, folder.path(), yaml).err().unwrap());
        assert_eq!((error.code, error.line(), error.column()), (code, Some(line), Some(column)), "{error}");
        assert!(error.message.contains(message) && error.help.is_some(), "{error}");
    }
    make(&folder.path().join("a.mkv"), 1, H264);
    let error = only(bind(&Video, folder.path(), "path: .").err().unwrap());
    assert!(error.message.contains("the same camera"), "{error}");
}

/// Other names between them in the order hide nothing.
#[test]
fn names_that_differ_in_the_ending_alone_are_one_camera() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.avi", "a.b.mp4", "a.mp4"] {
        std::fs::write(folder.path().join(name), "no video").unwrap();
    }
    let (message, _) = files(folder.path(), ".").unwrap_err();
    assert!(message.contains("a.avi` and `") && message.contains("a.mp4` would be"), "{message}");
    std::fs::remove_file(folder.path().join("a.avi")).unwrap();
    assert_eq!(files(folder.path(), ".").unwrap().len(), 2);
}

#[test]
fn a_decoder_that_dies_is_started_again_at_the_frame() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.mp4");
    make(&file, 100, &format!("-vf scale=640x480 {H264}"));
    let source = bind(&Video, folder.path(), "path: a.mp4").unwrap();
    let (_, expected, _) = frames(&source);
    let mut reader = (source.make)().unwrap();
    let mut found = Vec::new();
    let mut killed = 0;
    while let SourceRead::Rows { payload, dead_letters, .. } = reader.read(5, usize::MAX).unwrap() {
        assert!(dead_letters.is_empty(), "{dead_letters:?}");
        found.extend(binary(payload.column(2)).unwrap().iter().flatten().map(<[u8]>::to_vec));
        if found.len() % 20 == 0 {
            killed += children_of_this_process(&file).inspect(|pid| kill(*pid)).count();
        }
    }
    assert!(killed >= 3, "decoders were killed: {killed}");
    assert!(found == expected, "{} frames of {}", found.len(), expected.len());
}

/// A stream whose second half has an odd size, which has no planes.
fn what_begins_where_the_size_is_odd_is_read_as_pixels() {
    let folder = tempfile::tempdir().unwrap();
    let part = |name: &str, size: &str| {
        make(&folder.path().join(name), 20, &format!("-vf scale={size} -c:v libvpx -g 10"))
    };
    part("one.mkv", "64x48");
    part("two.mkv", "63x47");
    std::fs::write(folder.path().join("parts"), "file one.mkv\nfile two.mkv\n").unwrap();
    let file = folder.path().join("road.mkv");
    let mut command = Command::new(program::find(Path::new(".")).expect(program::HELP));
    command.args(["-nostdin", "-loglevel", "error", "-f", "concat", "-i"]).arg(folder.path().join("parts"));
    assert!(command.args(["-c", "copy"]).arg(&file).status().unwrap().success());
    let index = crate::video::index::Index::read(&program::find(Path::new(".")).unwrap(), &file).unwrap();
    assert!(index.matrix.is_some(), "it begins with planes");
    let source = bind(&Video, folder.path(), "path: road.mkv").unwrap();
    let (names, pictures, dead) = frames(&source);
    assert_eq!((names.len(), pictures.len(), dead), (40, 40, vec![]));
    let mut reader = (source.make)().unwrap();
    reader
        .seek(&crate::api::SourcePosition("32:road/32 of 40".into()))
        .unwrap_or_else(|error| panic!("{error}"));
    let Ok(SourceRead::Rows { payload, dead_letters, .. }) = reader.read(3, usize::MAX) else {
        panic!("rows")
    };
    assert!(dead_letters.is_empty(), "{dead_letters:?}");
    let sizes: Vec<_> = binary(payload.column(2))
        .unwrap()
        .iter()
        .flatten()
        .map(|one| crate::raw_image::size(one).unwrap())
        .collect();
    assert_eq!(sizes, [(63, 47); 3]);
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Processes that this one started and that have the file among their arguments.
fn children_of_this_process(file: &Path) -> impl Iterator<Item = u32> {
    let file = file.to_owned();
    let of = std::process::id();
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(move |entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
        let status = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent: u32 = status.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        let named = String::from_utf8_lossy(&arguments).contains(file.to_str()?);
        (parent == of && named).then_some(pid)
    })
}

/// A frame stays where it was read to, and the buffer is reused when no record refers to it any more.
fn frames_are_read_into_the_same_memory_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("a.mp4"), 60, &format!("-vf scale=320x240 {H264}"));
    let source = bind(&Video, folder.path(), "path: a.mp4").unwrap();
    let mut reader = (source.make)().unwrap();
    let read = |reader: &mut Box<dyn crate::api::Source>| match reader.read(4, usize::MAX).unwrap() {
        SourceRead::Rows { payload, .. } => payload,
        other => panic!("there are more frames: {other:?}"),
    };
    let place =
        |batch: &arrow_array::RecordBatch| binary(batch.column(2)).unwrap().value(0).as_ptr() as usize;
    let mut places = std::collections::BTreeSet::new();
    let mut kept = std::collections::VecDeque::new();
    for _ in 0..12 {
        let batch = read(&mut reader);
        let (before, picture) = (place(&batch), binary(batch.column(2)).unwrap().value(3).to_vec());
        // As records are passed on: slices, and columns in other batches.
        let slice = batch.slice(3, 1);
        assert_eq!(place(&slice) - before, 3 * picture.len(), "a slice is no copy");
        places.insert(before);
        kept.push_back((slice, picture));
        if kept.len() > 1 {
            let (slice, picture) = kept.pop_front().unwrap();
            assert!(binary(slice.column(2)).unwrap().value(0) == picture, "nobody has written over it");
        }
    }
    // The size of frames is unknown at the first read.
    assert!(places.len() <= 4, "{} places for 12 reads, of which two were in use at once", places.len());
}

/// Frames, times and pixels, of what most videos store and of what they seldom do.
#[test]
fn both_decoders_give_the_same_pictures() {
    let folder = tempfile::tempdir().unwrap();
    for (name, how) in [
        ("h264.mp4", H264),
        ("odd.mkv", "-vf scale=63x48 -c:v libvpx -g 10"),
        (
            "hd.mp4",
            "-vf scale=64x48:out_color_matrix=bt709,setparams=colorspace=bt709 -c:v libx264 -threads 1",
        ),
        ("full.avi", "-c:v mjpeg -q:v 3"),
        ("fine.mkv", "-vf format=yuv444p -c:v libx264 -pix_fmt yuv444p -threads 1"),
        (
            "deep.mkv",
            "-vf format=yuv420p10 -c:v libx265 -pix_fmt yuv420p10 -x265-params log-level=none:pools=none",
        ),
        ("vp9.webm", "-c:v libvpx-vp9 -threads 1"),
        ("two.mpg", MPEG_2),
    ] {
        make(&folder.path().join(name), 12, how);
        for options in ["", "\nscale: 32x20", "\nevery: 3", "\nthreads: 2"] {
            let with = |decoder| {
                DECODER.set(decoder);
                let source = bind(&Video, folder.path(), &format!("path: {name}{options}")).unwrap();
                let mut reader = (source.make)().unwrap();
                let Ok(SourceRead::Rows { times, .. }) = reader.read(99, usize::MAX) else { panic!("rows") };
                (frames(&source), times)
            };
            let (process, library) = (with("process"), with("library"));
            assert!(process.0.1.len() >= 4, "{name}{options}: {} frames", process.0.1.len());
            assert!(process == library, "{name}{options}");
        }
    }
}

#[test]
fn what_the_library_does_not_do_is_told() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("a.mp4"), 3, H264);
    let error = only(
        crate::sources::test::bind(&Video, folder.path(), "path: a.mp4\nframes: jpeg\ndecoder: library")
            .err()
            .unwrap(),
    );
    assert_eq!((error.code, error.line(), error.column()), ("E0606", Some(3), Some(10)), "{error}");
    assert!(error.help.unwrap().contains("decoder: process"));
    run(folder.path(), "-display_rotation 90 -i a.mp4 -c copy turned.mp4");
    run(folder.path(), "-display_hflip -i a.mp4 -c copy mirrored.mp4");
    DECODER.set("library");
    for (name, told) in [("turned.mp4", "by 270 degrees"), ("mirrored.mp4", "mirrored")] {
        let source = bind(&Video, folder.path(), &format!("path: {name}")).unwrap();
        let error = (source.make)().unwrap().read(1, usize::MAX).unwrap_err().to_string();
        assert!(
            error.contains(told) && error.contains(name) && error.contains("decoder: process"),
            "{error}"
        );
    }
}

/// Prints the time that a frame takes by each decoder, of this process and its children; best of three:
/// `cargo nextest run -p tidemill-operators --lib --run-ignored only --no-capture -E 'test(time_of_a_frame)'`.
#[test]
#[ignore = "long: make test-long"]
#[expect(clippy::disallowed_methods, reason = "measures real time")]
fn time_of_a_frame() {
    let processor = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        // User and system time, of this process and of its children that ended, in hundredths of a second.
        fields.split(' ').skip(11).take(4).map(|field| field.parse::<u64>().unwrap()).sum::<u64>() as f64
            * 10.0
    };
    let folder = tempfile::tempdir().unwrap();
    let noise = "noise=alls=6:allf=t -c:v libx264 -preset veryfast -crf 24";
    for (size, count) in [("640x360", 1000u32), ("1280x720", 300)] {
        let scale = size.replace('x', ":");
        make(&folder.path().join("a.mp4"), count, &format!("-vf scale={scale},{noise}"));
        for decoder in ["process", "library"] {
            DECODER.set(decoder);
            let source = bind(&Video, folder.path(), "path: a.mp4").unwrap();
            let (mut best, mut shortest) = (f64::INFINITY, f64::INFINITY);
            for _ in 0..3 {
                let (before, start) = (processor(), std::time::Instant::now());
                let mut reader = (source.make)().unwrap();
                let mut frames = 0;
                while let SourceRead::Rows { payload, .. } = reader.read(1024, 512 << 10).unwrap() {
                    frames += payload.num_rows();
                }
                drop(reader);
                assert_eq!(frames, count as usize);
                shortest = shortest.min(start.elapsed().as_secs_f64() * 1e3);
                best = best.min(processor() - before);
            }
            let of = |time: f64| time / f64::from(count);
            println!(
                "{size}, {decoder}: {:.3} ms of processor time, {:.3} ms by the clock",
                of(best),
                of(shortest)
            );
        }
    }
}
