//! Objects that were followed by cameras: when which camera saw them, and how they look in each.
//!
//! Driven by what a sink wrote, not by who made it: rows with a camera, a name of the object, `start` and `end` in milliseconds
//! and the boxes of the track as a text ([`steps`]). Where the sink is judged by boxes its ground truth names the columns, else they
//! are `camera`, `path` and `vehicle`, or `track` where there is no such one. Pictures are cut out of the videos that the workflow reads.
use super::bars::{COLOURS, in_colours, legend};
use super::records::{Medium, picture};
use super::written::{self, Row};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tidemill_app::figures::grouped;
use tidemill_app::preparation::{Prepared, kinds};
use tidemill_drawing::axis::Axis;
use tidemill_drawing::chart::time_marks;
use tidemill_drawing::markup::{Attribute, Markup, Short};
use tidemill_drawing::sheet;
use tidemill_operators::api::SourceInput;
use tidemill_operators::raw_image::RawImage;
use tidemill_operators::sources::video::parse_size;
use tidemill_operators::video::{program, stills};
use tidemill_operators::vision::track_path::{Step, steps};
use tidemill_spec::kinds::Form;

/// Objects that are drawn over time.
const ROWS: usize = 12;
/// Bars of an object over time; where there are more, those that are close together become one.
const BARS: usize = 100;
/// Objects that are shown as pictures.
const CARDS: usize = 6;
/// Pictures of one object.
const PICTURES: usize = 6;
/// Bytes of all pictures of objects.
const BUDGET: usize = 1 << 20;
/// Room around a box, as a share of its sides.
const AROUND: f64 = 0.2;

/// One track of an object.
struct Track {
    camera: String,
    /// Its name in its own camera, where the rows have one.
    track: Option<String>,
    class: Option<String>,
    /// Milliseconds.
    start: i64,
    end: i64,
    path: Vec<Step>,
}

/// The largest box that a camera has of an object, with its picture.
struct View {
    camera: String,
    track: Option<String>,
    picture: Medium,
}

/// The objects that a sink wrote.
pub(super) struct Objects {
    sink: String,
    cameras: Vec<String>,
    /// All tracks of each; those of most cameras first.
    objects: Vec<(String, Vec<Track>)>,
    /// Views of the first objects.
    views: BTreeMap<String, Vec<View>>,
    is_cut: bool,
    /// The measure that judges the sink.
    judged: Option<String>,
    /// Number of true objects, and of those seen by several cameras.
    truth: Option<(usize, usize)>,
}

/// Names of the columns.
struct Columns {
    camera: String,
    object: String,
    path: String,
}

impl Track {
    fn of(row: &Row, columns: &Columns) -> Option<(String, Self)> {
        let text = |name: &str| row.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| row.get(name).and_then(Value::as_i64);
        let (object, camera) = (name(row.get(&columns.object)?)?, name(row.get(&columns.camera)?)?);
        let (start, end) = (number("start")?, number("end")?);
        let path = steps(row.get(&columns.path)?.as_str()?).collect();
        let track = row.get("track").and_then(name);
        Some((object, Self { camera, track, class: text("class"), start, end, path }))
    }

    /// Frame and box where it is largest.
    fn largest(&self) -> Option<Step> {
        let area = |step: &Step| step.1[2] * step.1[3];
        self.path.iter().copied().max_by(|a, b| area(a).total_cmp(&area(b)))
    }
}

/// Returns the value as a name; an empty value is none.
fn name(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is_so) => Some(is_so.to_string()),
        _ => None,
    }
}

/// When which camera saw an object: camera, begin and end.
fn bars(tracks: &[Track]) -> Vec<(&str, i64, i64)> {
    let mut bars: Vec<_> =
        tracks.iter().map(|track| (track.camera.as_str(), track.start, track.end)).collect();
    if bars.len() <= BARS {
        return bars;
    }
    bars.sort_unstable();
    let (first, last) = tracks
        .iter()
        .fold((i64::MAX, i64::MIN), |(first, last), track| (first.min(track.start), last.max(track.end)));
    let all = last.saturating_sub(first);
    let mut gap = (all / 1000).max(1);
    loop {
        bars.dedup_by(|next, kept| {
            let is_near = next.0 == kept.0 && next.1 <= kept.2.saturating_add(gap);
            if is_near {
                kept.2 = kept.2.max(next.2);
            }
            is_near
        });
        if bars.len() <= BARS || gap >= all {
            break;
        }
        gap = gap.saturating_mul(2);
    }
    bars.truncate(BARS);
    bars
}

fn cameras_of(tracks: &[Track]) -> BTreeSet<&str> {
    tracks.iter().map(|track| track.camera.as_str()).collect()
}

/// The objects of each sink that has some.
pub(super) fn collect(prepared: &Prepared, judged: impl Fn(&str) -> Option<String>) -> Vec<Objects> {
    let sinks = prepared.workflow.sinks.iter().filter_map(|sink| {
        let truth = sink.ground_truth.as_ref().filter(|truth| truth.boxes.is_some());
        let bound = prepared.program.sinks.get(&sink.id.value)?;
        let name = |column: Option<&str>, default: &str| column.unwrap_or(default).to_owned();
        let default = if bound.input.column("vehicle").is_some() { "vehicle" } else { "track" };
        let columns = Columns {
            camera: name(truth.map(|truth| truth.key.as_str()), "camera"),
            object: name(truth.map(|truth| truth.prediction.as_str()), default),
            path: name(truth.and_then(|truth| truth.boxes.as_ref()).map(|boxes| boxes.as_str()), "path"),
        };
        let named = [&columns.camera, &columns.object, &columns.path].map(String::as_str);
        let written =
            written::read(bound, |has| named.iter().chain(&["start", "end"]).all(|name| has(name)))?;
        let mut all: BTreeMap<String, Vec<Track>> = BTreeMap::new();
        for (object, track) in written.rows.iter().filter_map(|row| Track::of(row, &columns)) {
            all.entry(object).or_default().push(track);
        }
        let cameras = all.values().flat_map(|tracks| cameras_of(tracks)).collect::<BTreeSet<_>>();
        let cameras = cameras.into_iter().map(str::to_owned).collect();
        let mut objects: Vec<_> = all.into_iter().collect();
        let seen = |tracks: &[Track]| tracks.iter().map(|track| track.path.len()).sum::<usize>();
        objects.sort_by_cached_key(|(name, tracks)| {
            (std::cmp::Reverse((cameras_of(tracks).len(), seen(tracks))), name.clone())
        });
        let judged = truth.and_then(|_| judged(&sink.id));
        let truth = bound.ground_truth.as_ref().and_then(|truth| truth.tracks.as_ref());
        let truth = truth.map(|truth| truth.objects());
        let (sink, is_cut) = (written.sink, written.is_cut);
        let views = BTreeMap::new();
        (!objects.is_empty()).then_some(Objects { sink, cameras, objects, views, is_cut, judged, truth })
    });
    let mut found: Vec<Objects> = sinks.collect();
    let videos = videos(prepared);
    let mut budget = BUDGET;
    for objects in &mut found {
        objects.look(&videos, &prepared.workflow.directory.0, &mut budget);
    }
    found
}

/// A video by its camera, and the size that its frames are read in.
type Videos = BTreeMap<String, (PathBuf, Option<(u32, u32)>)>;

fn videos(prepared: &Prepared) -> Videos {
    let mut videos = Videos::new();
    for source in &prepared.workflow.sources {
        let Some(size) = kinds().source(&source.kind).size_of_frames else { continue };
        let Some(bound) = prepared.program.sources.get(&source.id.value) else { continue };
        let files = match &bound.input {
            Some(SourceInput::File { path, .. }) => vec![path.clone()],
            Some(SourceInput::Folder { path, names, .. }) => {
                names().unwrap_or_default().into_iter().map(|name| path.join(name)).collect()
            }
            _ => continue,
        };
        let size = source.options.get(size).and_then(|scale| parse_size(scale.as_str()?));
        for file in files {
            if let Some(camera) = file.file_stem().and_then(|stem| stem.to_str()) {
                videos.insert(camera.to_owned(), (file.clone(), size));
            }
        }
    }
    videos
}

/// Objects of one camera to cut out, with the names of their tracks and their boxes, by frame.
type Wanted<'a> = BTreeMap<u64, Vec<(&'a str, Option<&'a str>, [f64; 4])>>;

impl Objects {
    /// Cuts out what the first objects look like. What cannot be read is not shown: the figures are there all the same.
    fn look(&mut self, videos: &Videos, directory: &Path, budget: &mut usize) {
        let Ok(program) = program::find(directory) else { return };
        let mut wanted: BTreeMap<&str, Wanted<'_>> = BTreeMap::new();
        for (name, tracks) in self.objects.iter().take(CARDS) {
            for camera in cameras_of(tracks).into_iter().take(PICTURES) {
                let own = tracks.iter().filter(|track| track.camera == camera);
                let own = own.filter_map(|track| Some((track.largest()?, track.track.as_deref())));
                let largest = own.max_by(|(a, _), (b, _)| (a.1[2] * a.1[3]).total_cmp(&(b.1[2] * b.1[3])));
                if let Some(((frame, area), track)) = largest {
                    let frames = wanted.entry(camera).or_default();
                    frames.entry(frame).or_default().push((name.as_str(), track, area));
                }
            }
        }
        let mut views: BTreeMap<String, Vec<View>> = BTreeMap::new();
        for (camera, frames) in wanted {
            let Some((file, size)) = videos.get(camera) else { continue };
            let numbers = frames.keys().copied().collect();
            let found = stills::stills(&program, file, *size, &numbers, |number, frame| {
                for (object, track, area) in frames.get(&number).into_iter().flatten() {
                    let Some(picture) = cut(frame, *area).and_then(|part| picture(&part, budget)) else {
                        continue;
                    };
                    let track = track.map(str::to_owned);
                    let view = View { camera: camera.to_owned(), track, picture };
                    views.entry((*object).to_owned()).or_default().push(view);
                }
            });
            if let Err(error) = found {
                tracing::debug!(video = %file.display(), "no pictures for the report: {error}");
            }
        }
        self.views = views;
    }

    fn colour(&self, camera: &str) -> usize {
        self.cameras.iter().position(|known| known == camera).unwrap_or(0) % COLOURS + 1
    }

    /// Writes the facts about them.
    pub(super) fn section(&self, part: &mut Markup) {
        let several = self.objects.iter().filter(|(_, tracks)| cameras_of(tracks).len() > 1).count();
        let tracks: usize = self.objects.iter().map(|(_, tracks)| tracks.len()).sum();
        let mut text = format!(
            "{} tracks of {} cameras are {} objects, {} of which several cameras saw ({}).",
            grouped(tracks as u64),
            self.cameras.len(),
            grouped(self.objects.len() as u64),
            grouped(several as u64),
            self.sink
        );
        if let Some((all, several)) = self.truth {
            text.push_str(&format!(
                " In truth there were {} objects, and several cameras saw {} of them.",
                grouped(all as u64),
                grouped(several as u64)
            ));
        }
        if let Some(judged) = &self.judged {
            text.push_str(&format!(" IDF1 over all cameras: {judged}."));
        }
        if self.is_cut {
            text.push_str(" Only the start of the file was read.");
        }
        part.leaf("p", &[], &text);
        part.leaf("h3", &[], "Times at each camera");
        let names: Vec<&str> = self.cameras.iter().map(String::as_str).collect();
        legend(in_colours(&names), part);
        self.timeline(part);
        let more = self.objects.len().saturating_sub(ROWS);
        if more > 0 {
            let text = format!("Those of most cameras, then those seen longest; {more} more are not drawn.");
            part.leaf("p", &[("class", &"note")], &text);
        }
        let shown: Vec<_> =
            self.objects.iter().take(CARDS).filter(|(name, _)| self.views.contains_key(name)).collect();
        if shown.is_empty() {
            return;
        }
        part.leaf("h3", &[], "As each camera saw them");
        part.element("div", &[("class", &"samples")], |grid| {
            for (name, tracks) in shown {
                self.card(name, tracks, grid);
                grid.break_line();
            }
        });
        let note = "Pictures with the largest box. The pictures of one card show one object only if the workflow recognised it.";
        part.leaf("p", &[("class", &"note")], note);
    }

    fn timeline(&self, part: &mut Markup) {
        const WIDTH: f64 = 1000.0;
        const LEFT: f64 = 150.0;
        const LINE: f64 = 18.0;
        let shown = &self.objects[..self.objects.len().min(ROWS)];
        let tracks = || shown.iter().flat_map(|(_, tracks)| tracks);
        let first = tracks().map(|track| track.start).min().unwrap_or(0);
        let last = tracks().map(|track| track.end).max().unwrap_or(first);
        let seconds = |time: i64| time.saturating_sub(first) as f64 / 1e3;
        let length = seconds(last).max(1e-3);
        let across = Axis::linear((0.0, length), (LEFT, WIDTH - 20.0));
        let height = shown.len() as f64 * LINE + 34.0;
        let bottom = height - 28.0;
        let view = format!("0 0 {WIDTH} {height}");
        let attributes: [Attribute<'_>; 4] = [
            ("class", &"chart timeline"),
            ("viewBox", &view),
            ("role", &"img"),
            ("aria-label", &"times of each object at each camera"),
        ];
        part.element("div", &[("class", &"scroll")], |scroll| {
            scroll.element("svg", &attributes, |svg| {
                for (at, name) in time_marks(length) {
                    let x = across.place(at);
                    sheet::line(svg, "grid", (x, 2.0), (x, bottom));
                    let at: [Attribute<'_>; 3] =
                        [("x", &Short(x)), ("y", &Short(height - 8.0)), ("text-anchor", &"middle")];
                    svg.leaf("text", &at, &name);
                }
                for (row, (name, tracks)) in shown.iter().enumerate() {
                    let y = row as f64 * LINE + 4.0;
                    let at: [Attribute<'_>; 3] =
                        [("x", &Short(LEFT - 10.0)), ("y", &Short(y + 11.0)), ("text-anchor", &"end")];
                    svg.leaf("text", &at, &short(name));
                    for (camera, start, end) in bars(tracks) {
                        let (from, to) = (across.place(seconds(start)), across.place(seconds(end)));
                        let class = format!("f{} seen", self.colour(camera));
                        let (x, y, width) = (Short(from), Short(y), Short((to - from).max(2.0)));
                        let bar: [Attribute<'_>; 6] = [
                            ("class", &class),
                            ("x", &x),
                            ("y", &y),
                            ("width", &width),
                            ("height", &13),
                            ("rx", &3),
                        ];
                        svg.element("rect", &bar, |bar| {
                            let (from, to) = (seconds(start), seconds(end));
                            bar.leaf("title", &[], &format!("{camera}: {from:.1} s to {to:.1} s"));
                        });
                    }
                }
            });
        });
    }

    fn card(&self, name: &str, tracks: &[Track], grid: &mut Markup) {
        let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
        for track in tracks {
            if let Some(class) = &track.class {
                *classes.entry(class).or_default() += track.path.len();
            }
        }
        let class = classes.into_iter().max_by_key(|(_, boxes)| *boxes).map(|(class, _)| class);
        grid.element("article", &[("class", &"sample")], |card| {
            card.element("div", &[("class", &"top")], |top| {
                top.leaf("span", &[("class", &"id")], name);
                top.leaf("span", &[("class", &"soft")], class.unwrap_or_default());
            });
            card.element("div", &[("class", &"views")], |views| {
                for view in self.views.get(name).into_iter().flatten() {
                    let Medium::Picture(address) = &view.picture else { continue };
                    views.element("figure", &[], |figure| {
                        let alt = format!("{name} as {} sees it", view.camera);
                        figure.empty("img", &[("src", address), ("alt", &alt)]);
                        figure.element("figcaption", &[], |caption| {
                            caption.leaf("i", &[("class", &format!("b{}", self.colour(&view.camera)))], "");
                            match &view.track {
                                // Many name a track by its camera.
                                Some(track) if track.starts_with(&view.camera) => caption.text(track),
                                Some(track) => caption.text(&format!("{}, track {track}", view.camera)),
                                None => caption.text(&view.camera),
                            }
                        });
                    });
                }
            });
        });
    }
}

/// A name that has room beside the timeline.
fn short(name: &str) -> String {
    const MOST: usize = 20;
    match name.chars().count() {
        0..=MOST => name.to_owned(),
        all => format!("…{}", name.chars().skip(all - MOST + 1).collect::<String>()),
    }
}

/// A part of a frame and some room around it; none where there is nothing of it.
fn cut(frame: &[u8], [left, top, width, height]: [f64; 4]) -> Option<image::RgbImage> {
    let frame = RawImage::parse(frame).ok()?;
    let from = |edge: f64, side: f64, all: u32| (edge - AROUND * side).clamp(0.0, f64::from(all)) as u32;
    let to = |edge: f64, side: f64, all: u32| {
        (edge + (1.0 + AROUND) * side).clamp(0.0, f64::from(all)).ceil() as u32
    };
    let (x, y) = (from(left, width, frame.width), from(top, height, frame.height));
    let (right, bottom) = (to(left, width, frame.width), to(top, height, frame.height));
    let (wide, high) = (right.checked_sub(x)?, bottom.checked_sub(y)?);
    if wide < 4 || high < 4 {
        return None;
    }
    Some(image::RgbImage::from_fn(wide, high, |column, row| {
        let at = 3 * ((y + row) as usize * frame.width as usize + (x + column) as usize);
        match frame.pixels.get(at..at + 3) {
            Some(&[red, green, blue]) => image::Rgb([red, green, blue]),
            _ => image::Rgb([0, 0, 0]),
        }
    }))
}

/// Links to the videos that sinks of this run drew.
pub(super) fn links(prepared: &Prepared, page: &Path, part: &mut Markup) -> bool {
    let drawn = prepared.program.sinks.values().filter(|sink| kinds().sink(&sink.kind).form == Form::Videos);
    let files: Vec<&PathBuf> = drawn.flat_map(|sink| &sink.files).filter(|file| file.is_file()).collect();
    if files.is_empty() {
        return false;
    }
    part.element("p", &[], |line| {
        line.text("Annotated videos, in files beside this page: ");
        for (index, file) in files.iter().enumerate() {
            line.text(if index > 0 { ", " } else { "" });
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            match relative(page, file) {
                Some(address) => line.leaf("a", &[("href", &address)], &name),
                None => line.text(&name),
            }
        }
        line.text(".");
    });
    true
}

/// The address of a file as seen from a page.
fn relative(page: &Path, file: &Path) -> Option<String> {
    let folder = page.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (folder, file) = (folder.canonicalize().ok()?, file.canonicalize().ok()?);
    let common = folder.components().zip(file.components()).take_while(|(one, other)| one == other).count();
    let up = folder.components().skip(common).map(|_| "..".to_owned());
    let down = file.components().skip(common).map(|part| encoded(&part.as_os_str().to_string_lossy()));
    Some(up.chain(down).collect::<Vec<_>>().join("/"))
}

/// A part of an address.
fn encoded(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    part.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_page_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a b/out")).unwrap();
        let file = folder.path().join("a b/out/1#.mp4");
        std::fs::write(&file, "").unwrap();
        let from = |page: &str| relative(&folder.path().join(page), &file).unwrap();
        assert_eq!(from("page.html"), "a%20b/out/1%23.mp4");
        assert_eq!(from("a b/out/page.html"), "1%23.mp4");
        std::fs::create_dir(folder.path().join("other")).unwrap();
        assert_eq!(from("other/page.html"), "../a%20b/out/1%23.mp4");
    }

    #[test]
    fn objects_and_cameras_have_names() {
        let columns =
            Columns { camera: "camera".to_owned(), object: "vehicle".to_owned(), path: "path".to_owned() };
        let of = |camera: Value, vehicle: Value| {
            let row = serde_json::json!({
                "camera": camera, "vehicle": vehicle, "start": 0, "end": 9, "path": "",
            });
            Track::of(row.as_object().unwrap(), &columns).map(|(object, track)| (object, track.camera))
        };
        let some = |object: &str, camera: &str| Some((object.to_owned(), camera.to_owned()));
        assert_eq!(of("c1".into(), "v".into()), some("v", "c1"));
        assert_eq!(of(41.into(), 7.into()), some("7", "41"));
        for nobody in [Value::Null, "".into()] {
            assert_eq!(of("c1".into(), nobody.clone()), None, "not seen to be the same");
            assert_eq!(of(nobody, "v".into()), None);
        }
    }

    #[test]
    fn bars_of_an_object_are_few_and_cover_all_that_was_seen() {
        let track = |camera: &str, start: i64| Track {
            camera: camera.to_owned(),
            track: None,
            class: None,
            start,
            end: start + 5,
            path: Vec::new(),
        };
        let few: Vec<Track> = (0..3).map(|n| track("b", 10 * (3 - n))).collect();
        assert_eq!(bars(&few), [("b", 30, 35), ("b", 20, 25), ("b", 10, 15)], "as they are");
        let many: Vec<Track> =
            (0..5000).map(|n| track(if n % 3 == 0 { "a" } else { "b" }, 1000 * n)).collect();
        let drawn = bars(&many);
        assert!(drawn.len() <= BARS && drawn.len() >= 2, "{}", drawn.len());
        for seen in &many {
            let covers = |(camera, start, end): &(&str, i64, i64)| {
                *camera == seen.camera && *start <= seen.start && seen.end <= *end
            };
            assert!(drawn.iter().any(covers), "{} at {}", seen.camera, seen.start);
        }
        let cameras: Vec<Track> =
            (0..500).map(|n| track(&n.to_string(), i64::MIN / 2 * (n % 3 - 1))).collect();
        assert_eq!(bars(&cameras).len(), BARS, "a bar for each camera would be too many");
    }

    #[test]
    fn parts_of_frames_stay_inside() {
        let mut frame = b"P6 8 6 255\n".to_vec();
        frame.extend((0..8 * 6).flat_map(|at| [at as u8, 0, 0]));
        let part = cut(&frame, [-3.0, 2.0, 8.0, 10.0]).unwrap();
        assert_eq!((part.width(), part.height()), (7, 6));
        assert_eq!(part.get_pixel(1, 1).0, [9, 0, 0]);
        assert!(cut(&frame, [20.0, 20.0, 4.0, 4.0]).is_none());
    }
}
