//! Cameras and microphones of this machine. Machines of tests have none, so a script stands in for ffmpeg: it reads a device
//! that is a file of the test as ffmpeg's own test pictures and tones, and runs the real ffmpeg with all other arguments.
use crate::server::LIMIT;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tidemill_journal::{Journal, LEAST_SIZE};
use tidemill_media::{raw_image, wav};
use tidemill_operators::api::{BoundSource, Source, SourceRead};
use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus};
use tidemill_operators::kind::EndContext;
use tidemill_operators::registry::Registry;
use tidemill_operators::video::program;
use tidemill_spec::{span::SourceFile, yaml};

const STAND_IN: &str = include_str!("device.sh");

/// Runs a test again with the script in place of ffmpeg. Returns whether this is that run.
fn with_stand_in(test: &str) -> bool {
    if std::env::var_os("REAL").is_some() {
        return true;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let real = program::find(&root).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("ffmpeg");
    std::fs::write(&script, STAND_IN).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", test, "--nocapture"]).env("REAL", real).env(program::VARIABLE, script);
    let output = again.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// A source of the folder.
fn bind(kind: &str, folder: &Path, options: &str) -> BoundSource {
    let mut registry = Registry::builtin();
    tidemill_live::register(&mut registry);
    let id = "desk".into();
    let options = yaml::parse(&SourceFile::new("workflow.yaml", options)).unwrap();
    let bound = registry.source(kind).unwrap().bind(&EndContext::new(&id, folder), &options);
    bound.unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

struct Reading {
    bound: BoundSource,
    source: Box<dyn Source>,
    /// Name, number, time and content of each record.
    rows: Vec<(String, i64, i64, Vec<u8>)>,
    /// Watermarks that the source stated.
    idle: Vec<i64>,
}

impl Reading {
    fn start(kind: &str, folder: &Path, options: &str) -> Self {
        let bound = bind(kind, folder, options);
        let source = (bound.make)().unwrap();
        Self { bound, source, rows: Vec::new(), idle: Vec::new() }
    }

    fn feed(&self) -> FeedStatus {
        let feed = self.bound.feeds.as_ref().unwrap().status().remove(0);
        let dropped: u64 = feed.drops.values().sum();
        assert_eq!(feed.received, feed.emitted + dropped + feed.waiting, "{feed:?}");
        feed
    }

    fn order(&self, order: &FeedOrder) {
        self.bound.feeds.as_ref().unwrap().order(order).unwrap();
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < LIMIT, "{what}: {:?}", self.feed());
            match self.source.read(100, 100 << 20).unwrap() {
                SourceRead::Rows { payload, times, .. } => self.take(&payload, &times.unwrap()),
                SourceRead::Idle { watermark } => self.idle.push(watermark),
                SourceRead::End => panic!("a live source has no end"),
            }
        }
    }

    fn take(&mut self, payload: &RecordBatch, times: &[i64]) {
        let (names, numbers) =
            (payload.column(0).as_string::<i32>(), payload.column(1).as_primitive::<Int64Type>());
        let contents = payload.column(2).as_binary::<i32>();
        for (row, time) in times.iter().enumerate() {
            let content = contents.value(row).to_vec();
            self.rows.push((names.value(row).to_owned(), numbers.value(row), *time, content));
        }
    }

    fn until_rows(&mut self, more: usize) {
        let rows = self.rows.len() + more;
        self.until("records", |reading| reading.rows.len() >= rows);
    }

    fn until_state(&mut self, state: FeedState) {
        self.until(state.name(), |reading| reading.feed().state == state);
    }
}

/// Kills the child that reads the device.
fn kill_reader(device: &Path) {
    let id: i32 = std::fs::read_to_string(device).unwrap().trim().parse().unwrap();
    let id = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_camera_of_this_machine_is_pulled_out_and_comes_back() {
    if !with_stand_in("devices::a_camera_of_this_machine_is_pulled_out_and_comes_back") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("video0");
    let options = format!(
        "{{device: {}, capture: 160x120, rate: 20/s, format: mjpeg, scale: 64x48, idle: 50ms}}",
        device.display()
    );
    let mut desk = Reading::start("v4l2", folder.path(), &options);
    desk.until("it is missing", |desk| desk.feed().detail.contains("there is no camera"));
    assert_eq!((desk.feed().state, desk.feed().connects), (FeedState::Connecting, 0));
    std::fs::write(&device, "").unwrap();
    desk.until_rows(5);
    desk.until_state(FeedState::Live);
    std::fs::rename(&device, folder.path().join("pulled")).unwrap();
    kill_reader(&folder.path().join("pulled"));
    desk.until_state(FeedState::Connecting);
    std::fs::write(&device, "").unwrap();
    desk.until_rows(5);
    desk.order(&FeedOrder::Pause { feed: "desk".into() });
    desk.until_state(FeedState::Paused);
    desk.order(&FeedOrder::Resume { feed: "desk".into() });
    desk.until_rows(5);
    for two in desk.rows.windows(2) {
        assert!(two[0].1 < two[1].1 && two[0].2 < two[1].2);
    }
    assert!(
        desk.rows
            .iter()
            .all(|row| row.0 == "desk" && raw_image::size(&row.3).is_ok_and(|size| size == (64, 48)))
    );
    let id: u32 = std::fs::read_to_string(&device).unwrap().trim().parse().unwrap();
    drop(desk);
    assert!(!Path::new(&format!("/proc/{id}")).exists(), "the child ends with the source");
}

#[test]
fn a_microphone_gives_sounds_that_wait() {
    if !with_stand_in("devices::a_microphone_gives_sounds_that_wait") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("hall");
    std::fs::write(&device, "").unwrap();
    let options = format!(
        "{{device: {}, sample_rate: 8000, chunk: 100ms, step: 50ms, keep: 500ms, idle: 50ms}}",
        device.display()
    );
    let mut hall = Reading::start("microphone", folder.path(), &options);
    assert!(hall.bound.waits_for_all);
    hall.until_rows(3);
    for (name, _, _, sound) in &hall.rows {
        assert_eq!(name, "desk");
        let samples = wav::decode(sound, 8000).unwrap();
        assert_eq!(samples.len(), 800);
        let crossings = samples.windows(2).filter(|two| two[0] < 0.0 && two[1] >= 0.0).count();
        assert!((43..=45).contains(&crossings), "440 Hz: {crossings} in 0.1 s");
    }
    // Nobody reads: ten wait, the oldest are dropped.
    let start = Instant::now();
    while hall.feed().drops.get("superseded").is_none_or(|drops| *drops < 5) {
        assert!(start.elapsed() < LIMIT, "{:?}", hall.feed());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(hall.feed().waiting, 10);
    let rows = hall.rows.len();
    hall.until_rows(11);
    let numbers: Vec<i64> = hall.rows.iter().map(|row| row.1).collect();
    assert!(numbers[rows] >= numbers[rows - 1] + 6, "the gap is seen: {numbers:?}");
    assert!(numbers[rows..rows + 10].windows(2).all(|two| two[1] == two[0] + 1), "{numbers:?}");
}

/// The next process reads from the journal the records that a run has seen, byte by byte the same; then the next ones.
#[test]
fn a_journal_gives_the_records_again() {
    if !with_stand_in("devices::a_journal_gives_the_records_again") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("video0");
    std::fs::write(&device, "").unwrap();
    let options = format!("{{device: {}, scale: 64x48, idle: 50ms}}", device.display());
    let start = || {
        let bound = bind("v4l2", folder.path(), &options);
        let journal = Journal::open(&folder.path().join("journal"), 7, LEAST_SIZE).unwrap();
        let source = (bound.journalled.as_ref().unwrap().make)(journal)().unwrap();
        Reading { bound, source, rows: Vec::new(), idle: Vec::new() }
    };
    let mut first = start();
    first.until_rows(3);
    let (place, seen) = (first.source.position(), first.rows.len());
    first.until_rows(5);
    let child = std::fs::read_to_string(&device).unwrap();
    // While the camera is away, statements that nothing came are written.
    std::fs::rename(&device, folder.path().join("pulled")).unwrap();
    kill_reader(&folder.path().join("pulled"));
    let idle = first.idle.len();
    first.until("statements", |first| first.idle.len() >= idle + 2);
    let (rows, idle) = (std::mem::take(&mut first.rows), std::mem::take(&mut first.idle));
    let end = first.source.position();
    drop(first);
    std::fs::write(&device, "").unwrap();

    let mut next = start();
    assert!(next.source.replayable());
    next.source.seek(&place).unwrap();
    next.until("the same records", |next| next.source.position() == end);
    assert_eq!(next.rows, rows[seen..]);
    assert_eq!(next.idle, idle[idle.len() - next.idle.len()..]);
    assert!(next.idle.len() >= 2);
    let again = next.rows.len();
    next.until_rows(3);
    assert!(next.rows[again].2 > rows.last().unwrap().2, "what comes now is newer");
    assert_ne!(std::fs::read_to_string(&device).unwrap(), child);
    assert_eq!((next.bound.journalled.as_ref().unwrap().place)(&place), Some(place.0.parse().unwrap()));
}
