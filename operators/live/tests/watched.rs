//! A source of cameras that is read by the test.
use crate::server::LIMIT;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tidemill_media::raw_image;
use tidemill_operators::api::{BoundSource, Source, SourceRead};
use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus};
use tidemill_operators::kind::EndContext;
use tidemill_operators::registry::Registry;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::{Located, SourceFile};
use tidemill_spec::yaml;

/// A row of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) camera: String,
    pub(crate) frame: i64,
    pub(crate) time: i64,
    pub(crate) size: (u32, u32),
}

pub(crate) struct Watched {
    pub(crate) bound: BoundSource,
    pub(crate) source: Box<dyn Source>,
    pub(crate) rows: Vec<Row>,
    /// Watermarks of the reports that nothing came.
    pub(crate) idle: Vec<i64>,
    /// Last row of each camera.
    last: BTreeMap<String, (i64, i64)>,
}

pub(crate) fn bind(options: &str) -> Result<BoundSource, Diagnostics> {
    let mut registry = Registry::builtin();
    tidemill_live::register(&mut registry);
    let id: Located<String> = "cameras".into();
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let options = yaml::parse(&SourceFile::new("workflow.yaml", options)).unwrap();
    registry.source("rtsp").unwrap().bind(&EndContext::new(&id, &root), &options)
}

impl Watched {
    pub(crate) fn start(options: &str) -> Self {
        let bound = bind(options).unwrap_or_else(|found| panic!("{}", found.render(false)));
        let source = (bound.make)().unwrap();
        Self { bound, source, rows: Vec::new(), idle: Vec::new(), last: BTreeMap::new() }
    }

    /// Reads once, and checks what comes.
    pub(crate) fn read(&mut self) {
        match self.source.read(100, 100 << 20).unwrap() {
            SourceRead::Rows { payload, times, .. } => {
                let (cameras, frames, images) = (
                    payload.column(0).as_string::<i32>(),
                    payload.column(1).as_primitive::<Int64Type>(),
                    payload.column(2).as_binary::<i32>(),
                );
                for (row, time) in times.unwrap().into_iter().enumerate() {
                    let (camera, frame) = (cameras.value(row).to_owned(), frames.value(row));
                    let picture = images.value(row);
                    let size = if raw_image::RawImage::is_one(picture) {
                        raw_image::size(picture).unwrap()
                    } else {
                        (0, 0)
                    };
                    assert!(size != (0, 0) || picture.starts_with(&[0xFF, 0xD8]), "neither pixels nor JPEG");
                    if let Some((last_frame, last_time)) = self.last.insert(camera.clone(), (frame, time)) {
                        assert!(frame > last_frame && time > last_time, "{camera}: {frame} {time}");
                    }
                    self.rows.push(Row { camera, frame, time, size });
                }
            }
            SourceRead::Idle { watermark } => self.idle.push(watermark),
            SourceRead::End => panic!("a live source has no end"),
        }
        for feed in self.status() {
            let dropped: u64 = feed.drops.values().sum();
            assert_eq!(feed.received, feed.emitted + dropped + feed.waiting, "{feed:?}");
        }
    }

    /// Reads until something is so.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}; {:?}", self.status());
            self.read();
        }
    }

    /// Reads so many more frames of a camera.
    pub(crate) fn frames(&mut self, camera: &str, count: usize) {
        let before = self.of(camera).count();
        self.until(&format!("{count} frames of {camera}"), |watched| {
            watched.of(camera).count() >= before + count
        });
    }

    pub(crate) fn of<'a>(&'a self, camera: &'a str) -> impl Iterator<Item = &'a Row> + 'a {
        self.rows.iter().filter(move |row| row.camera == camera)
    }

    pub(crate) fn until_state(&mut self, camera: &str, state: FeedState) -> FeedStatus {
        self.until(&format!("{camera} is {}", state.name()), |watched| watched.feed(camera).state == state);
        self.feed(camera)
    }

    pub(crate) fn status(&self) -> Vec<FeedStatus> {
        self.bound.feeds.as_ref().unwrap().status()
    }

    pub(crate) fn feed(&self, camera: &str) -> FeedStatus {
        self.status().into_iter().find(|feed| feed.feed == camera).unwrap()
    }

    pub(crate) fn order(&mut self, order: &FeedOrder) -> Result<(), String> {
        if let FeedOrder::Remove { feed } = order {
            // Another camera of its name counts from the start.
            self.last.remove(feed);
        }
        self.bound.feeds.as_ref().unwrap().order(order)
    }
}
