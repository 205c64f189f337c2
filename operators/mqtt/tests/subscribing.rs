use crate::broker::Broker;
use crate::cable::Cable;
use crate::publisher::Publisher;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_journal::{Journal, LEAST_SIZE};
use tidemill_operators::api::{BoundSource, Source, SourceRead};
use tidemill_operators::feeds::{FeedOrder, FeedState};
use tidemill_operators::kind::EndContext;
use tidemill_operators::registry::Registry;
use tidemill_spec::{span::SourceFile, yaml};

fn bind(base: &Path, text: &str) -> Result<BoundSource, String> {
    let mut registry = Registry::builtin();
    tidemill_mqtt::register(&mut registry);
    let id = "numbers".into();
    let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
    let bound = registry.source("mqtt").unwrap().bind(&EndContext::new(&id, base), &options);
    bound.map_err(|errors| errors.to_string())
}

/// Reads once; counts the values of `n` and returns the topics and the reasons of dead letters.
fn read(reader: &mut dyn Source, counts: &mut BTreeMap<i64, u64>) -> (Vec<String>, Vec<String>) {
    use arrow_array::cast::AsArray;
    match reader.read(1000, usize::MAX).unwrap() {
        SourceRead::Rows { payload, dead_letters, .. } => {
            let numbers = payload.column(0).as_primitive::<arrow_array::types::Int64Type>();
            numbers.values().iter().for_each(|number| *counts.entry(*number).or_default() += 1);
            let topics = payload.columns().get(1).map(|column| {
                column.as_string::<i32>().iter().map(|topic| topic.unwrap().to_owned()).collect()
            });
            (
                topics.unwrap_or_default(),
                dead_letters.iter().map(|letter| letter.reason.to_string()).collect(),
            )
        }
        other => panic!("{other:?}"),
    }
}

/// Starts to read. Opening waits for the first message.
fn start(source: &BoundSource) -> JoinHandle<Box<dyn Source>> {
    let make = Arc::clone(&source.make);
    std::thread::spawn(move || make().unwrap())
}

fn wait_for_state(source: &BoundSource, state: FeedState) -> String {
    loop {
        let status = source.feeds.as_ref().unwrap().status().remove(0);
        if status.state == state {
            return status.detail;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Cuts the connection under load `cuts` times, each second time by restarting the broker.
fn cut(cuts: usize, is_journalled: bool) {
    let Some(mut broker) = Broker::start(None) else { return };
    let cable = Cable::to(broker.port);
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "broker: 127.0.0.1:{}\ntopics: [numbers/+]\ncolumns: {{n: int64}}\nin_flight: 100",
        cable.port
    );
    let mut source = bind(folder.path(), &text).unwrap();
    if is_journalled {
        let journal = Journal::open(&folder.path().join("journal"), 7, LEAST_SIZE).unwrap();
        source.make = (source.journalled.as_ref().unwrap().make)(journal);
    }
    let reader = start(&source);
    wait_for_state(&source, FeedState::Live);
    let publisher = Publisher::start(broker.port);
    let mut reader = reader.join().unwrap();
    let mut counts = BTreeMap::new();
    let mut broken = 0;
    for number in 0..cuts {
        // Each cut is under load: after more messages.
        let before = counts.len();
        while counts.len() < before + 200 {
            read(reader.as_mut(), &mut counts);
        }
        let connects = source.feeds.as_ref().unwrap().status()[0].connects;
        broken += cable.cut();
        if number % 2 == 1 {
            broker.restart();
        }
        while source.feeds.as_ref().unwrap().status()[0].connects == connects {
            std::thread::sleep(Duration::from_millis(2));
        }
        wait_for_state(&source, FeedState::Live);
    }
    assert!(broken >= cuts, "{broken} connections were cut");
    let sent = publisher.acknowledged.load(Ordering::Acquire);
    assert!(sent > 0);
    let published = publisher.stop();
    while (counts.len() as u64) < published {
        read(reader.as_mut(), &mut counts);
    }
    let status = source.feeds.as_ref().unwrap().status().remove(0);
    let again: u64 = counts.values().map(|count| count - 1).sum();
    eprintln!(
        "{cuts} cuts, {published} messages published, {} received, {again} of them twice, {} connections",
        status.received, status.connects
    );
    assert_eq!(counts.len() as u64, published, "none is lost");
    assert!(counts.keys().copied().eq(0..published as i64));
    assert!(status.connects > cuts as u64 && status.drops.is_empty());
}

#[test]
fn nothing_is_lost_by_ten_cuts() {
    cut(10, true);
}

#[test]
fn nothing_is_lost_by_ten_cuts_without_a_journal() {
    cut(10, false);
}

#[test]
#[ignore = "long: make test-long"]
fn nothing_is_lost_by_a_hundred_cuts() {
    cut(100, true);
}

#[test]
fn topics_are_a_column_and_broken_messages_dead_letters() {
    let Some(broker) = Broker::start(None) else { return };
    let text = format!(
        "broker: 127.0.0.1:{}\ntopics: ['a/#']\ncolumns: {{n: int64, where: text}}\ntopic_column: where\nmax_line: 50B",
        broker.port
    );
    let source = bind(broker.folder(), &text).unwrap();
    let reader = start(&source);
    wait_for_state(&source, FeedState::Live);
    let long = format!("{{\"n\": 1, \"more\": \"{}\"}}", "x".repeat(100));
    for (topic, message) in
        [("a/b", "{\"n\":\n 1}"), ("a", "21"), ("a/c", &long), ("b", "{\"n\": 7}"), ("a/d/e", "{\"n\": 2}")]
    {
        let mut command = std::process::Command::new("mosquitto_pub");
        command.args(["-V", "5", "-q", "1", "-p", &broker.port.to_string(), "-t", topic, "-m", message]);
        assert!(command.status().unwrap().success());
    }
    let mut reader = reader.join().unwrap();
    let (mut counts, mut topics, mut reasons) = (BTreeMap::new(), Vec::new(), Vec::new());
    while topics.len() < 2 {
        let (more, dead) = read(reader.as_mut(), &mut counts);
        topics.extend(more);
        reasons.extend(dead);
    }
    assert_eq!(topics, ["a/b", "a/d/e"]);
    assert_eq!(counts.into_keys().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(reasons, ["bad_value", "line_too_long"]);
}

/// Publishes a message from a file.
fn publish(broker: &Broker, topic: &str, message: &str) {
    let file = broker.folder().join("message");
    std::fs::write(&file, message).unwrap();
    let mut command = std::process::Command::new("mosquitto_pub");
    command.args(["-V", "5", "-q", "1", "-p", &broker.port.to_string(), "-t", topic, "-f"]).arg(file);
    assert!(command.status().unwrap().success());
}

/// The broker knows the limit, and the source goes on.
#[test]
fn a_message_far_beyond_max_line_is_left_out_by_the_broker() {
    let Some(broker) = Broker::start(None) else { return };
    let text =
        format!("broker: 127.0.0.1:{}\ntopics: [a]\ncolumns: {{n: int64}}\nmax_line: 50B", broker.port);
    let source = bind(broker.folder(), &text).unwrap();
    let reader = start(&source);
    wait_for_state(&source, FeedState::Live);
    let long = |bytes: usize| format!("{{\"n\": 1, \"more\": \"{}\"}}", "x".repeat(bytes));
    for message in [&long(2 << 20), &long(1 << 19), "{\"n\": 2}"] {
        publish(&broker, "a", message);
    }
    let mut reader = reader.join().unwrap();
    let (mut counts, mut reasons) = (BTreeMap::new(), Vec::new());
    while counts.is_empty() {
        reasons.extend(read(reader.as_mut(), &mut counts).1);
    }
    assert_eq!((counts, reasons), (BTreeMap::from([(2, 1)]), vec!["line_too_long".to_owned()]));
    let status = source.feeds.as_ref().unwrap().status().remove(0);
    assert_eq!((status.received, status.connects), (2, 1));
}

/// While nobody reads, 64 MiB wait and no more, though the broker has more and may send it.
#[test]
fn waiting_bytes_are_bounded() {
    let Some(broker) = Broker::start(None) else { return };
    let text =
        format!("broker: 127.0.0.1:{}\ntopics: [a]\ncolumns: {{n: int64}}\nmax_line: 4MiB", broker.port);
    let source = bind(broker.folder(), &text).unwrap();
    let reader = start(&source);
    wait_for_state(&source, FeedState::Live);
    let (size, all) = (3 << 20, 40);
    for n in 0..all {
        publish(&broker, "a", &format!("{{\"n\": {n}, \"more\": \"{}\"}}", "x".repeat(size)));
    }
    let waiting = || source.feeds.as_ref().unwrap().status()[0].waiting;
    let most = (64 << 20) / size as u64 + 1;
    while waiting() < most {
        std::thread::yield_now();
    }
    let mut reader = reader.join().unwrap();
    let mut counts = BTreeMap::new();
    while counts.len() < all {
        read(reader.as_mut(), &mut counts);
        assert!(waiting() <= most, "{} wait", waiting());
    }
    assert!(counts.into_keys().eq(0..all as i64));
}

#[test]
fn a_wrong_password_fails_and_can_be_resumed() {
    let Some(broker) = Broker::start(Some(("viewer", "S3cret"))) else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "broker: 127.0.0.1:{}\ntopics: [a]\ncolumns: {{n: int64}}\nuser: viewer\npassword_file: password",
        broker.port
    );
    for (password, state) in [("wrong", FeedState::Failed), ("S3cret\n", FeedState::Live)] {
        std::fs::write(folder.path().join("password"), password).unwrap();
        let source = bind(folder.path(), &text).unwrap();
        let _reader = start(&source);
        let detail = wait_for_state(&source, state);
        assert!(!detail.contains(password.trim_end()), "{detail}");
        if state == FeedState::Failed {
            assert_eq!(detail, "the broker rejects the user or its password");
            let feeds = source.feeds.as_ref().unwrap();
            feeds.order(&FeedOrder::Resume { feed: "numbers".into() }).unwrap();
            while feeds.status()[0].state != FeedState::Failed {
                std::thread::yield_now();
            }
            assert!(feeds.order(&FeedOrder::Pause { feed: "numbers".into() }).is_err());
        }
    }
}

#[test]
fn wrong_options_are_refused_with_what_to_write() {
    for (text, message) in [
        ("broker: b\ntopics: [a]\ncolumns: {n: int64}", "`b` is not a host with a port"),
        ("broker: 'mqtt://u:S3cret@b:1'\ntopics: [a]\ncolumns: {n: int64}", "`broker` is a URL"),
        ("broker: 'b:1'\ntopics: []\ncolumns: {n: int64}", "there is no topic"),
        ("broker: 'b:1'\ntopics: ['a/#/b']\ncolumns: {n: int64}", "`a/#/b` is not a topic"),
        (
            "broker: 'b:1'\ntopics: [a]\ncolumns: {n: int64}\ntopic_column: t",
            "`topic_column: t` is not a column",
        ),
        ("broker: 'b:1'\ntopics: [a]\ncolumns: {n: int64}\npassword_env: P", "a password and no user"),
        (
            "broker: 'b:1'\ntopics: [a]\ncolumns: {n: int64}\nuser: u\npassword_env: TIDEMILL_NOT_SET",
            "is not set",
        ),
        ("broker: 'b:1'\ntopics: [a]\ncolumns: {n: int64}\nin_flight: 0", "`in_flight: 0`"),
    ] {
        let error = bind(Path::new("."), text).err().expect(text);
        assert!(error.contains(message), "{text}: {error}");
        assert!(!error.contains("S3cret"), "{error}");
    }
}
