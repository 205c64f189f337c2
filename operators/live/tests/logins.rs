//! Users, passwords and paths that a real server refuses, and that no password is told.
use crate::server::{PASSWORD, Server};
use crate::watched::{Watched, bind as bind_source};
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use tidemill_operators::feeds::{FeedOrder, FeedState};

/// What was logged by this process, on all levels.
fn logged() -> &'static Arc<Mutex<Vec<u8>>> {
    static LOGGED: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
    LOGGED.get_or_init(|| {
        let logged = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&logged);
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || Into(Arc::clone(&into)))
            .init();
        logged
    })
}

struct Into(Arc<Mutex<Vec<u8>>>);

impl Write for Into {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const WRONG: &str = "wr0ng@word";
/// Secrets of these tests, as they are and as they are written in addresses and requests.
const SECRETS: [&str; 8] = [
    PASSWORD,
    "s3cr%40t",
    "s3cr@t",
    WRONG,
    "wr0ng%40word",
    "wr0ng",
    "dmlld2Vy", // `viewer` in Base64
    "viewer",
];

fn assert_tells_nothing(text: &str) {
    for secret in SECRETS {
        let line = text.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "`{secret}` in {line:?}");
    }
}

/// Arguments of the children of this process, in one text.
fn arguments_of_children() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = tasks.flat_map(|task| {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    children
        .map(|child| std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default())
        .collect()
}

fn logins(arguments: &[&str], session: &str) {
    let Some(server) = Server::start(arguments) else { return };
    let logged = logged();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let at = format!("127.0.0.1:{}", server.port);
    let mut watched = Watched::start(&format!(
        "{{idle: 50ms, session: {session}, cameras: {{
            good: 'rtsp://viewer:s3cr%40t%2F%C3%84X%3A7@{at}/auth',
            file: {{url: 'rtsp://{at}/auth', user: viewer, password_file: '{}'}},
            open: 'rtsp://{at}/plain'
        }}}}",
        file.display()
    ));
    for camera in ["good", "file", "open"] {
        watched.frames(camera, 5);
    }
    let arguments = arguments_of_children();
    assert!(arguments.contains("ffmpeg"), "{arguments}");
    assert_tells_nothing(&arguments);
    let attempts = server.attempts("/auth");
    for (camera, address, cause) in [
        ("wrong", format!("rtsp://viewer:wr0ng%40word@{at}/auth"), "refuses user and password (401)"),
        ("nobody", format!("rtsp://{at}/auth"), "wants a user and a password (401)"),
        ("missing", format!("rtsp://{at}/none"), "no such path (404)"),
    ] {
        watched.order(&FeedOrder::Add { feed: camera.to_owned(), address }).unwrap();
        let failed = watched.until_state(camera, FeedState::Failed);
        assert!(failed.detail.contains(cause), "{}", failed.detail);
        assert_eq!(failed.connects, 0);
    }
    // It is not tried again while others give many frames.
    watched.frames("open", 60);
    let attempts = server.attempts("/auth") - attempts;
    // ffmpeg asks without a user first, and after a refusal once more.
    assert!((2..=4).contains(&attempts), "each is asked once: {attempts}");
    for camera in ["good", "file", "open"] {
        assert_eq!(watched.feed(camera).connects, 1);
    }
    // Somebody acts.
    watched.order(&FeedOrder::Resume { feed: "wrong".to_owned() }).unwrap();
    watched.until_state("wrong", FeedState::Failed);
    let status = format!("{:?}", watched.status());
    drop(watched);
    let text = String::from_utf8_lossy(&logged.lock().unwrap().clone()).into_owned();
    assert!(
        text.contains("refuses user and password") && text.contains("rtsp://***@127.0.0.1"),
        "it is captured"
    );
    assert_tells_nothing(&text);
    assert_tells_nothing(&status);
}

#[test]
fn a_wrong_password_fails_at_once_and_is_not_tried_again() {
    logins(&[], "own");
}

#[test]
fn digests_are_answered() {
    logins(&["--digest"], "own");
}

#[test]
fn ffmpeg_has_the_password_and_nobody_else() {
    logins(&["--digest"], "ffmpeg");
}

#[test]
fn findings_tell_no_password() {
    for options in [
        "{url: 'rtsp://viewer:wr0ng@word@@127.0.0.1/a@b'}",
        "{url: 'rtps://viewer:wr0ng@10.0.0.1/a'}",
        "{url: 'rtsp://viewer:wr0ng@10.0.0.1/a', scale: no}",
        "{url: 'rtsp://viewer:wr0ng@10.0.0.1/a', unknown: 1}",
        "{cameras: {gate: 'rtsp://viewer:wr0ng@[::1/a'}}",
        "{cameras: {gate: {url: 'rtsp://viewer:wr0ng@10.0.0.1/a', user: other, password_env: PATH}}}",
        "{cameras: {gate: {url: 'rtsp://viewer:wr0ng@10.0.0.1/a', pasword_env: PATH}}}",
        "{cameras: ['rtsp://viewer:wr0ng@10.0.0.1/a']}",
        "{url: 'rtsps://viewer:wr0ng@10.0.0.1/a'}",
        "{url: 'rtsp://viewer:wr0ng@10.0.0.1/a', session: ffmpeg, clock: camera}",
    ] {
        let found = bind_source(options).err().unwrap_or_else(|| panic!("no finding: {options}"));
        assert_tells_nothing(&found.render(false));
        assert_tells_nothing(&format!("{found:?}"));
    }
}
