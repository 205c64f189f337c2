use crate::server::{LIMIT, Server};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidemill_machine::Process;
use tidemill_media::raw_image::RawImage;
use tidemill_operators::api::{BoundSource, Source, SourceRead};
use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus};
use tidemill_operators::kind::EndContext;
use tidemill_operators::registry::Registry;
use tidemill_spec::{span::SourceFile, yaml};

fn bind(text: &str) -> BoundSource {
    let mut registry = Registry::builtin();
    tidemill_live::register(&mut registry);
    let id = "cameras".into();
    let context = EndContext::new(&id, Path::new(env!("CARGO_MANIFEST_DIR")));
    let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
    registry.source("rtsp").unwrap().bind(&context, &options).unwrap()
}

/// A row: camera, number, event time, width and height.
type Row = (String, i64, i64, (u32, u32));

struct Reading {
    source: BoundSource,
    reader: Box<dyn Source>,
    rows: Vec<Row>,
}

impl Reading {
    fn start(text: &str) -> Self {
        let source = bind(text);
        let reader = (source.make)().unwrap();
        Self { source, reader, rows: Vec::new() }
    }

    fn status(&self) -> Vec<FeedStatus> {
        let status = self.source.feeds.as_ref().unwrap().status();
        for feed in &status {
            assert_eq!(
                feed.received,
                feed.emitted + feed.drops.values().sum::<u64>() + feed.waiting,
                "{feed:?}"
            );
        }
        status
    }

    fn order(&self, order: &FeedOrder) -> Result<(), String> {
        self.source.feeds.as_ref().unwrap().order(order)
    }

    /// Reads once.
    fn read(&mut self) {
        match self.reader.read(16, 1 << 30).unwrap() {
            SourceRead::Rows { payload, times, .. } => {
                let (times, names) = (times.unwrap(), payload.column(0).as_string::<i32>());
                let (frames, images) =
                    (payload.column(1).as_primitive::<Int64Type>(), payload.column(2).as_binary::<i32>());
                for (row, time) in times.into_iter().enumerate() {
                    let image = RawImage::parse(images.value(row)).unwrap();
                    self.rows.push((
                        names.value(row).to_owned(),
                        frames.value(row),
                        time,
                        (image.width, image.height),
                    ));
                }
            }
            SourceRead::Idle { watermark } => {
                let newest = self.rows.iter().map(|row| row.2).max().unwrap_or(0);
                // A camera's own clock may be a minute late.
                assert!(
                    watermark > 1_700_000_000_000_000 && watermark >= newest - 62_000_000,
                    "{watermark} {newest}"
                );
            }
            SourceRead::End => panic!("a camera has no end"),
        }
    }

    /// Reads until this holds.
    fn until(&mut self, what: &str, holds: impl Fn(&[FeedStatus], &[Row]) -> bool) {
        let start = Instant::now();
        loop {
            let status = self.status();
            if holds(&status, &self.rows) {
                return;
            }
            assert!(start.elapsed() < LIMIT, "{what}: {status:?}");
            self.read();
        }
    }

    fn until_frames(&mut self, more: usize) {
        let rows = self.rows.len() + more;
        self.until("frames come", |_, all| all.len() >= rows);
    }

    fn until_state(&mut self, state: FeedState) {
        self.until(state.name(), |status, _| status[0].state == state);
    }
}

fn check_order(rows: &[Row]) {
    for two in rows.windows(2) {
        assert!(two[0].2 < two[1].2 && two[0].1 < two[1].1, "{two:?}");
    }
}

#[test]
fn frames_of_all_codecs_arrive() {
    let Some(server) = Server::start(&[]) else { return };
    let own = ["plain", "b", "h265", "jpeg", "slow"].map(|path| (path, "own"));
    for (path, session) in
        own.into_iter().chain([("plain", "ffmpeg"), ("h265", "ffmpeg"), ("jpeg", "ffmpeg")])
    {
        let mut gate = Reading::start(&format!("url: {}\nsession: {session}", server.url(path)));
        gate.until_frames(30);
        check_order(&gate.rows);
        assert!(gate.rows.iter().all(|row| row.0 == "cameras" && row.3 == (160, 120)), "{:?}", gate.rows[0]);
        let status = &gate.status()[0];
        assert_eq!((status.state, status.connects), (FeedState::Live, 1));
    }
}

/// The certificate is one of the test, signed by nobody.
#[test]
fn a_camera_that_encrypts_is_read_by_ffmpeg() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let file = folder.path().join("camera.pem");
    std::fs::write(&file, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
    let Some(server) = Server::start(&["--tls", file.to_str().unwrap()]) else { return };
    let url = server.url("plain").replace("rtsp:", "rtsps:");
    let mut gate = Reading::start(&format!("url: {url}\nsession: ffmpeg\nscale: 64x48"));
    gate.until_frames(30);
    check_order(&gate.rows);
    assert!(gate.rows.iter().all(|row| row.3 == (64, 48)));
    // Without encryption it is no camera.
    let mut plain = Reading::start(&format!("url: {}\nsession: ffmpeg", server.url("plain")));
    plain.until("it is refused", |status, _| status[0].detail.starts_with("ffmpeg ended"));
    assert!(plain.rows.is_empty());
}

#[test]
fn options_form_the_records() {
    let Some(server) = Server::start(&[]) else { return };
    let url = server.url("plain");
    let mut both = Reading::start(&format!(
        "cameras: {{a: '{url}', b: {{url: '{url}'}}}}\nscale: 64x48\nmost: 5/s\nidle: 100ms\nclock: camera"
    ));
    both.until("both are dropped by rate", |status, _| {
        status.iter().all(|feed| feed.drops.get("rate").is_some_and(|drops| *drops > 20))
    });
    let of = |name: &str| both.rows.iter().filter(|row| row.0 == name).cloned().collect::<Vec<_>>();
    for name in ["a", "b"] {
        check_order(&of(name));
        assert!(of(name).iter().all(|row| row.3 == (64, 48)));
        let (first, last) = (of(name)[0].clone(), of(name).pop().unwrap());
        assert!(
            (last.2 - first.2) / 150_000 >= of(name).len() as i64 - 1,
            "at most 5 a second: {:?}",
            of(name)
        );
    }
    // The reader is gone, so the cameras are.
    drop(both);
}

/// Ten cuts; `TIDEMILL_CHAOS_ROUNDS` asks for a twentieth of as many.
#[test]
fn recovery_from_power_cuts() {
    let rounds = std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|text| text.parse::<u64>().ok());
    let cuts = rounds.map_or(10, |rounds| (rounds / 20).max(10));
    let Some(mut server) = Server::start(&[]) else { return };
    let mut gate = Reading::start(&format!("url: {}\nidle: 50ms", server.url("plain")));
    let mut waits = Vec::new();
    for cut in 1..=cuts {
        gate.until_frames(3);
        gate.until_state(FeedState::Live);
        let port = server.kill();
        gate.until_state(FeedState::Connecting);
        assert!(!gate.status()[0].detail.is_empty(), "{:?}", gate.status());
        server = Server::at(port, &[]).unwrap();
        let back = Instant::now();
        gate.until_frames(1);
        waits.push(back.elapsed());
        assert_eq!(gate.status()[0].connects, cut + 1);
    }
    check_order(&gate.rows);
    waits.sort();
    let at = |share: usize| waits[(waits.len() * share / 100).min(waits.len() - 1)];
    println!(
        "from the server's return to a frame, {cuts} cuts: median {:?}, p95 {:?}, longest {:?}",
        at(50),
        at(95),
        at(100)
    );
}

#[test]
fn closed_connections_are_made_again() {
    let Some(mut server) = Server::start(&[]) else { return };
    let mut gate = Reading::start(&format!("url: {}\nidle: 50ms", server.url("plain")));
    for cut in 1..=3 {
        gate.until_frames(3);
        server.order("drop");
        gate.until("it has connected again", |status, _| status[0].connects == cut + 1);
    }
    gate.until_frames(3);
}

#[test]
fn a_silent_camera_is_stalled() {
    let Some(mut server) = Server::start(&[]) else { return };
    let mut gate = Reading::start(&format!("url: {}\nidle: 50ms\nstall: 1500ms", server.url("plain")));
    gate.until_frames(3);
    server.order("mute");
    gate.until_state(FeedState::Stalled);
    assert!(gate.status()[0].detail.contains("no frame came for 1.5 s"), "{:?}", gate.status());
    server.order("drop");
    gate.until("it comes back with new media", |status, _| status[0].state == FeedState::Live);
}

#[test]
fn a_change_of_the_resolution_goes_through() {
    let Some(mut server) = Server::start(&[]) else { return };
    let mut gate = Reading::start(&format!("url: {}\nidle: 50ms", server.url("plain")));
    gate.until_frames(3);
    server.order("size 320 240");
    gate.until("larger pictures come", |_, rows| rows.last().is_some_and(|row| row.3 == (320, 240)));
    gate.until_frames(5);
    assert!(gate.rows.iter().all(|row| [(160, 120), (320, 240)].contains(&row.3)), "no picture is torn");
    assert_eq!(gate.status()[0].connects, 1, "over the same connection");
}

/// A server that answers every request with this status; returns its port and the number of connections so far.
fn refusing(status: &'static str) -> (u16, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            *counted.lock().unwrap() += 1;
            let mut bytes = [0; 4096];
            let length = stream.read(&mut bytes).unwrap_or(0);
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let sequence = text
                .lines()
                .find(|line| line.to_lowercase().starts_with("cseq"))
                .unwrap_or("CSeq: 1")
                .to_owned();
            let _ = write!(stream, "RTSP/1.0 {status}\r\n{sequence}\r\n\r\n");
        }
    });
    (port, count)
}

#[test]
fn refusals_fail_at_once_and_are_not_repeated() {
    for (status, cause) in [("403 Forbidden", "(403)"), ("404 Not Found", "(404)")] {
        let (port, count) = refusing(status);
        let mut gate = Reading::start(&format!("url: rtsp://127.0.0.1:{port}/x\nidle: 50ms"));
        gate.until_state(FeedState::Failed);
        assert!(gate.status()[0].detail.contains(cause), "{:?}", gate.status());
        for _ in 0..20 {
            gate.read();
        }
        assert_eq!(*count.lock().unwrap(), 1);
        gate.order(&FeedOrder::Resume { feed: "cameras".into() }).unwrap();
        gate.until("somebody acted", |_, _| *count.lock().unwrap() == 2);
    }
}

#[test]
fn all_ends_with_the_reader() {
    let Some(server) = Server::start(&[]) else { return };
    let mut gate = Reading::start(&format!("cameras: {{a: '{}'}}\nidle: 50ms", server.url("plain")));
    gate.until_frames(2);
    gate.order(&FeedOrder::Add { feed: "b".into(), address: server.url("jpeg") }).unwrap();
    gate.until("b comes", |_, rows| rows.iter().any(|row| row.0 == "b"));
    gate.order(&FeedOrder::Pause { feed: "a".into() }).unwrap();
    gate.until_state(FeedState::Paused);
    let received = gate.status()[0].received;
    gate.until_frames(10);
    assert_eq!(gate.status()[0].received, received, "it is paused");
    gate.order(&FeedOrder::Resume { feed: "a".into() }).unwrap();
    gate.until("a comes back", |status, _| status[0].received > received + 3);
    let error = gate.order(&FeedOrder::Remove { feed: "c".into() }).unwrap_err();
    assert!(error.contains("no camera `c`") && error.contains("a, b"), "{error}");
    drop(gate);
    let start = Instant::now();
    while Process::this().threads() > 3 {
        assert!(start.elapsed() < LIMIT, "{} threads", Process::this().threads());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_decoder_that_dies_is_replaced_at_a_key_frame() {
    let Some(server) = Server::start(&[]) else { return };
    let mut gate = Reading::start(&format!("url: {}\nidle: 50ms", server.url("plain")));
    gate.until_frames(3);
    for _ in 0..2 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let all: Vec<i32> = children
            .flat_map(|all| all.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<i32>>())
            .collect();
        let is_decoder = |id: &&i32| {
            std::fs::read_to_string(format!("/proc/{id}/cmdline")).is_ok_and(|all| all.contains("pipe:0"))
        };
        let decoder = *all.iter().find(is_decoder).expect("it decodes");
        let id = rustix::process::Pid::from_raw(decoder).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
        gate.until("it is reaped", |_, _| !Path::new(&format!("/proc/{decoder}")).exists());
        gate.until_frames(5);
    }
    check_order(&gate.rows);
    assert_eq!(gate.status()[0].connects, 1, "over the same connection");
}
