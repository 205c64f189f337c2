//! Checks annotated videos by decoding them.
use super::*;
use crate::raw_image::RawImage;
use crate::record::binary;
use crate::sources::test::drain;
use crate::testing::{batch, id, only, options};
use arrow_array::RecordBatch;
use serde_json::json;
use std::process::Command;
use tidemill_spec::span::Span;
use tidemill_spec::types::{Column, StreamType};

/// A grey video of 64 x 48 pixels, 10 frames a second.
fn make(file: &Path, frames: u32) {
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
        "color=gray:size=64x48:rate=10",
    ]);
    command.args(["-frames:v", &frames.to_string(), "-c:v", "libx264", "-pix_fmt", "yuv420p"]).arg(file);
    assert!(command.status().unwrap().success());
}

fn stream() -> StreamType {
    let mut columns = vec![Column::new("camera", ColumnType::Text), Column::new("frame", ColumnType::Int64)];
    columns.extend(["left", "top", "width", "height"].map(|name| Column::new(name, ColumnType::Float64)));
    columns.push(Column::new("track", ColumnType::Int64));
    StreamType::new(columns)
}

fn rows(of: &[(&str, i64, f64)]) -> RecordBatch {
    let row = |(camera, frame, left): &(&str, i64, f64)| json!({"camera": camera, "frame": frame, "left": left, "top": 20.0, "width": 16.0, "height": 12.0, "track": 3});
    batch(&stream(), &of.iter().map(row).collect::<Vec<_>>())
}

fn bind_as(base: &Path, stream: StreamType, yaml: &str) -> Result<BoundSink, Diagnostics> {
    let port = InputPort { from: "tracks".into(), stream, span: Span::nowhere() };
    let id = id("sink");
    crate::kind::SinkKind::bind(&Video, &EndContext::new(&id, base), &port, &options(yaml))
}

fn bind(base: &Path, yaml: &str) -> Result<BoundSink, Diagnostics> {
    bind_as(base, stream(), yaml)
}

/// Red, green and blue at one position in every frame of a video.
fn colours(folder: &Path, file: &str, x: usize, y: usize) -> Vec<[u8; 3]> {
    let source =
        crate::sources::test::bind(&crate::sources::video::Video, folder, &format!("path: {file}")).unwrap();
    let (batches, dead) = drain(&source, 100, usize::MAX);
    assert!(dead.is_empty(), "{dead:?}");
    let mut all = Vec::new();
    for batch in &batches {
        for picture in binary(batch.column(2)).unwrap().iter().flatten() {
            let picture = RawImage::parse(picture).unwrap();
            let at = 3 * (y * picture.width as usize + x);
            all.push([picture.pixels[at], picture.pixels[at + 1], picture.pixels[at + 2]]);
        }
    }
    all
}

fn is_grey([red, green, blue]: [u8; 3]) -> bool {
    red.abs_diff(green) < 25 && green.abs_diff(blue) < 25
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn boxes_are_drawn_on_their_frames_and_all_frames_are_there() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("road.mp4"), 5);
    for (file, yaml) in [("out/a.mp4", "id: track"), ("out/a.avi", "text: [track]")] {
        let bound = bind(folder.path(), &format!("path: {file}\nover: road.mp4\n{yaml}")).unwrap();
        let mut sink = (bound.make)().unwrap();
        sink.write(&rows(&[("road", 1, 30.0), ("road", 3, 30.0)])).unwrap();
        sink.commit(1).unwrap();
        sink.write(&rows(&[("road", 2, 30.0)])).unwrap();
        sink.rollback().unwrap();
        assert!(!folder.path().join(file).exists(), "it appears when it is whole");
        sink.close().unwrap();
        let seen: Vec<bool> = colours(folder.path(), file, 30, 26).into_iter().map(is_grey).collect();
        assert_eq!(seen, [true, false, true, false, true], "{file}");
        assert!(colours(folder.path(), file, 10, 40).into_iter().all(is_grey), "{file}: beside the box");
    }
    assert_eq!(names(&folder.path().join("out")), ["a.avi", "a.mp4"], "nothing else is left");
}

/// A camera that pauses: a player shows each frame when it shows the source's.
#[test]
fn frames_are_shown_when_those_of_the_source_are() {
    use crate::video::index::Index;
    let folder = tempfile::tempdir().unwrap();
    let program = program::find(Path::new(".")).expect(program::HELP);
    let uneven = "settb=1/1000,setpts='if(lt(N,10),N*100,N*100+5000)'";
    let mut command = Command::new(&program);
    command.args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc=size=64x48:rate=10"]);
    command.args(["-frames:v", "20", "-vf", uneven, "-fps_mode", "passthrough", "-enc_time_base", "1:1000"]);
    command.args(["-c:v", "libx264", "-pix_fmt", "yuv420p"]).arg(folder.path().join("road.mkv"));
    assert!(command.status().unwrap().success());
    for (file, every) in [("a.mp4", 1), ("a.mkv", 1), ("a.avi", 1), ("b.mp4", 3)] {
        let yaml = format!("path: {file}\nover: road.mkv\nevery: {every}");
        let mut sink = (bind(folder.path(), &yaml).unwrap().make)().unwrap();
        sink.close().unwrap();
        let index = Index::read(&program, &folder.path().join(file)).unwrap();
        let times: Vec<i64> = (0..index.frames.len()).map(|frame| index.microseconds(frame)).collect();
        let right: Vec<i64> = (0..20)
            .step_by(every)
            .map(|frame| if frame < 10 { frame * 100_000 } else { frame * 100_000 + 5_000_000 })
            .collect();
        let distance = |(one, other): (&i64, &i64)| one.abs_diff(*other);
        let farthest = times.iter().zip(&right).map(distance).max();
        assert!(times.len() == right.len() && farthest <= Some(1000), "{file}: {times:?}");
    }
}

/// A camera whose resolution changes: a source scales all frames to the first one, too, so boxes are in its pixels.
#[test]
fn frames_that_change_their_size_are_drawn_in_the_first_one() {
    let folder = tempfile::tempdir().unwrap();
    let program = program::find(Path::new(".")).expect(program::HELP);
    let ffmpeg = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(folder.path()).args(["-nostdin", "-loglevel", "error", "-f"]).args(arguments);
        assert!(command.status().unwrap().success());
    };
    for (name, size) in [("one.mkv", "64x48"), ("two.mkv", "128x96")] {
        let grey = format!("color=gray:size={size}:rate=10");
        ffmpeg(&["lavfi", "-i", &grey, "-frames:v", "3", "-c:v", "libvpx", "-pix_fmt", "yuv420p", name]);
    }
    std::fs::write(folder.path().join("parts"), "file one.mkv\nfile two.mkv\n").unwrap();
    ffmpeg(&["concat", "-i", "parts", "-c", "copy", "road.mkv"]);
    let bound = bind(folder.path(), "path: out/a.mp4\nover: road.mkv\nid: track").unwrap();
    let mut sink = (bound.make)().unwrap();
    sink.write(&rows(&[("road", 1, 30.0), ("road", 4, 30.0)])).unwrap();
    sink.commit(1).unwrap();
    sink.close().unwrap();
    let seen = colours(folder.path(), "out/a.mp4", 30, 26).into_iter().map(is_grey).collect::<Vec<_>>();
    assert_eq!(seen, [true, false, true, true, false, true]);
}

#[test]
fn each_camera_has_its_video() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("clips")).unwrap();
    for name in ["clips/a.mp4", "clips/b.mp4"] {
        make(&folder.path().join(name), 2);
    }
    let bound = bind(folder.path(), "path: '{camera}-seen.mkv'\nover: clips\nevery: 2").unwrap();
    assert_eq!(bound.files, ["a-seen.mkv", "b-seen.mkv"].map(|name| folder.path().join(name)));
    let mut sink = (bound.make)().unwrap();
    sink.write(&rows(&[("b", 0, 30.0), ("nowhere", 0, 30.0)])).unwrap();
    sink.commit(1).unwrap();
    sink.close().unwrap();
    let of = |file| colours(folder.path(), file, 30, 26).into_iter().map(is_grey).collect::<Vec<_>>();
    assert_eq!((of("a-seen.mkv"), of("b-seen.mkv")), (vec![true], vec![false]));
}

#[test]
fn another_process_goes_on_behind_the_last_commit() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("road.mp4"), 4);
    let bound = bind(folder.path(), "path: out.mp4\nover: road.mp4").unwrap();
    let durable = bound.durable.unwrap();
    let mut first = durable(None).unwrap();
    first.write(&rows(&[("road", 0, 30.0)])).unwrap();
    first.commit(1).unwrap();
    let token = first.token().unwrap().unwrap();
    first.write(&rows(&[("road", 1, 30.0)])).unwrap();
    first.commit(2).unwrap(); // no token knows of it
    drop(first);
    let mut second = durable(Some(&token)).unwrap();
    second.write(&rows(&[("road", 2, 30.0)])).unwrap();
    second.commit(3).unwrap();
    let token = second.token().unwrap().unwrap();
    second.close().unwrap();
    let of = || colours(folder.path(), "out.mp4", 30, 26).into_iter().map(is_grey).collect::<Vec<_>>();
    assert_eq!(of(), [false, true, false, true]);
    // A process that ended before its completion was recorded.
    let mut third = durable(Some(&token)).unwrap();
    third.close().unwrap();
    assert_eq!(of(), [false, true, false, true]);
    std::fs::remove_file(folder.path().join(".out.mp4.rows")).unwrap();
    let error = durable(Some(&token)).err().unwrap();
    assert!(error.message.contains("2 records of it are committed"), "{error}");
}

#[test]
fn boxes_may_be_rows_of_a_tensor() {
    use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array};
    use arrow_schema::{DataType, Field};
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("road.mp4"), 2);
    let tensor = ColumnType::Tensor { element: ElementType::Float32, shape: vec![2, 6] };
    let stream = StreamType::new([Column::new("frame", ColumnType::Int64), Column::new("boxes", tensor)]);
    let bound =
        bind_as(folder.path(), stream.clone(), "path: out.mkv\nover: road.mp4\nbox: [boxes]").unwrap();
    let mut sink = (bound.make)().unwrap();
    let empty = batch(&stream, &[json!({"frame": 1}), json!({"frame": 0})]);
    let values =
        vec![0.0; 12].into_iter().chain([30.0 / 64.0, 20.0 / 48.0, 0.25, 0.25, 0.9, 1.0]).chain([0.0; 6]);
    let field = Arc::new(Field::new("item", DataType::Float32, false));
    let boxes = FixedSizeListArray::new(field, 12, Arc::new(Float32Array::from_iter_values(values)), None);
    let mut columns: Vec<ArrayRef> = empty.columns().to_vec();
    if let Some(last) = columns.last_mut() {
        *last = Arc::new(boxes);
    }
    sink.write(&RecordBatch::try_new(empty.schema(), columns).unwrap().slice(1, 1)).unwrap();
    sink.commit(1).unwrap();
    sink.close().unwrap();
    let seen: Vec<bool> = colours(folder.path(), "out.mkv", 30, 26).into_iter().map(is_grey).collect();
    assert_eq!(seen, [false, true]);
}

#[test]
fn slips_stand_at_their_place() {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("road.mp4"), 1);
    for (yaml, code, message) in [
        ("path: out.mp4\nover: nowhere.mp4", "E0609", "does not exist"),
        ("path: out.gif\nover: road.mp4", "E0606", "no extension of a video format"),
        ("path: '{camera}.mp4'\nover: road.mp4", "E0606", "is not a folder"),
        ("path: out.mp4\nover: .", "E0606", "into one file"),
        ("path: out.mp4\nover: road.mp4\nid: trac", "E0605", "no column `trac`"),
        ("path: out.mp4\nover: road.mp4\nbox: [left, top]", "E0606", "names 2 columns"),
        ("path: out.mp4\nover: road.mp4\nframe: left", "E0601", "expected int64"),
    ] {
        let error = only(bind(folder.path(), yaml).err().unwrap());
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(message), "{error}");
        assert!(error.line().is_some() || error.code == "E0601", "{error}");
    }
    std::fs::write(folder.path().join("out.mp4"), "old").unwrap();
    let bound = bind(folder.path(), "path: out.mp4\nover: road.mp4\noverwrite: false").unwrap();
    assert!((bound.make)().err().unwrap().message.contains("overwrite: true"));
}

#[test]
fn tracks_are_drawn_as_the_last_corrections_say() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("clips")).unwrap();
    for name in ["clips/a.mp4", "clips/b.mp4"] {
        make(&folder.path().join(name), 4);
    }
    let columns = ["camera", "vehicle", "path"].map(|name| Column::new(name, ColumnType::Text));
    let stream = StreamType::new(columns).with_revisions(true);
    let yaml = "path: '{camera}.mkv'\nover: clips\nbox: [path]\nid: vehicle";
    let bound = bind_as(folder.path(), stream.clone(), yaml).unwrap();
    let mut sink = (bound.make)().unwrap();
    assert_eq!(sink.publication(), tidemill_spec::publication::Publication::AtEnd);
    // The track of `a` turns out to show the vehicle that `b` sees, and another track is removed.
    let (path, other) = ("1,30,20,16,12;2,30,20,16,12", "0,2,30,8,8;3,2,30,8,8");
    let said = [
        ("a", "a/1", path, 1),
        ("b", "b/7", path, 1),
        ("a", "a/1", path, -1),
        ("a", "b/7", path, 1),
        ("a", "a/2", other, 1),
        ("a", "a/2", other, -1),
    ];
    for (camera, vehicle, path, change) in said {
        let plain = batch(&stream, &[json!({"camera": camera, "vehicle": vehicle, "path": path})]);
        let mut columns = plain.columns().to_vec();
        columns[crate::record::CHANGE] = Arc::new(arrow_array::Int8Array::from(vec![change]));
        sink.write(&RecordBatch::try_new(plain.schema(), columns).unwrap()).unwrap();
    }
    sink.commit(1).unwrap();
    sink.close().unwrap();
    let edge = |file| colours(folder.path(), file, 30, 26);
    let (a, b) = (edge("a.mkv"), edge("b.mkv"));
    for at in 0..4 {
        assert_eq!(is_grey(a[at]), !(1..3).contains(&at), "{a:?}");
        let distance = a[at].iter().zip(b[at]).map(|(one, other)| one.abs_diff(other)).max();
        assert!(distance < Some(12), "one vehicle has one colour: {a:?} {b:?}");
    }
    assert!(
        colours(folder.path(), "a.mkv", 2, 33).into_iter().all(is_grey),
        "what was taken back is not drawn"
    );
}
