use crate::broker::Broker;
use crate::cable::Cable;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::BoundSink;
use tidemill_operators::kind::{EndContext, InputPort};
use tidemill_operators::record::{first_records, payload_schema};
use tidemill_operators::registry::Registry;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::yaml;

fn stream() -> StreamType {
    StreamType::new([Column::new("line", ColumnType::Text), Column::new("n", ColumnType::Int64)])
}

fn bind(text: &str) -> Result<BoundSink, String> {
    let mut registry = Registry::builtin();
    tidemill_mqtt::register(&mut registry);
    let port = InputPort { from: "hot".into(), stream: stream(), span: Span::nowhere() };
    let id = "alarms".into();
    let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
    let context = EndContext::new(&id, std::path::Path::new("."));
    registry.sink("mqtt").unwrap().bind(&context, &port, &options).map_err(|errors| errors.to_string())
}

fn batch(rows: impl Iterator<Item = (Option<&'static str>, i64)>) -> RecordBatch {
    let (lines, numbers): (Vec<_>, Vec<_>) = rows.unzip();
    let columns: Vec<ArrayRef> =
        vec![Arc::new(StringArray::from(lines)), Arc::new(Int64Array::from(numbers))];
    first_records(&RecordBatch::try_new(payload_schema(&stream()), columns).unwrap()).unwrap()
}

/// Subscribes, and returns what comes as topics and messages.
struct Subscriber(rumqttc::Connection);

impl Subscriber {
    fn start(port: u16) -> Self {
        let options = rumqttc::MqttOptions::new("subscriber", ("127.0.0.1", port));
        let (client, mut connection) = rumqttc::Client::builder(options).capacity(10).build();
        client.subscribe("plant/#", rumqttc::QoS::AtLeastOnce).unwrap();
        while !matches!(
            connection.recv().unwrap().unwrap(),
            rumqttc::Event::Incoming(rumqttc::Incoming::SubAck(_))
        ) {}
        // The connection asks no more when all its clients are gone.
        std::mem::forget(client);
        Self(connection)
    }

    fn next(&mut self) -> (String, String) {
        loop {
            if let rumqttc::Event::Incoming(rumqttc::Incoming::Publish(message)) =
                self.0.recv().unwrap().unwrap()
            {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                return (text(&message.topic), text(&message.payload));
            }
        }
    }
}

#[test]
fn rows_are_messages_when_their_epoch_is_committed() {
    let Some(broker) = Broker::start(None) else { return };
    let mut subscriber = Subscriber::start(broker.port);
    let text =
        format!("broker: 127.0.0.1:{}\ntopic: 'plant/{{line}}/n'\ncolumns: [n]\nretained: true", broker.port);
    let mut sink = (bind(&text).unwrap().make)().unwrap();
    sink.write(&batch([(Some("a"), 8)].into_iter())).unwrap();
    sink.rollback().unwrap();
    sink.write(&batch([(Some("a"), 1), (Some("b/#"), 2), (None, 3)].into_iter())).unwrap();
    sink.commit(1).unwrap();
    let came: Vec<_> = (0..3).map(|_| subscriber.next()).collect();
    let expected = [("plant/a/n", "{\"n\":1}"), ("plant/b/_/n", "{\"n\":2}"), ("plant/_/n", "{\"n\":3}")];
    assert_eq!(came, expected.map(|(topic, message)| (topic.to_owned(), message.to_owned())));
    // The broker has kept the last ones.
    assert!(Subscriber::start(broker.port).next().0.starts_with("plant/"));
    sink.close().unwrap();
}

#[test]
fn no_row_is_lost_by_cuts() {
    let Some(broker) = Broker::start(None) else { return };
    let mut subscriber = Subscriber::start(broker.port);
    let cable = Cable::to(broker.port);
    let text = format!("broker: 127.0.0.1:{}\ntopic: plant/n", cable.port);
    let mut sink = (bind(&text).unwrap().make)().unwrap();
    let (cuts, rows) = (10, 500);
    let (mut broken, mut counts) = (0, BTreeMap::new());
    for epoch in 0..cuts {
        sink.write(&batch((0..rows).map(|row| (Some("a"), epoch * rows + row)))).unwrap();
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| sink.commit(epoch as u64));
            // In the middle: after some of them have come.
            for _ in 0..rows / 5 {
                *counts.entry(subscriber.next().1).or_insert(0) += 1;
            }
            broken += cable.cut();
            commit.join().unwrap().unwrap();
        });
        while (counts.len() as i64) < (epoch + 1) * rows {
            *counts.entry(subscriber.next().1).or_insert(0) += 1;
        }
    }
    assert!(broken >= cuts as usize, "{broken} connections were cut");
    let again: i32 = counts.values().map(|count| count - 1).sum();
    eprintln!("{cuts} cuts, {} rows, {again} of them twice", counts.len());
    assert_eq!(counts.len() as i64, cuts * rows);
}

#[test]
fn a_commit_that_waits_can_be_called_off() {
    let Some(broker) = Broker::start(None) else { return };
    let port = broker.port;
    drop(broker);
    let mut sink = (bind(&format!("broker: 127.0.0.1:{port}\ntopic: plant/n")).unwrap().make)().unwrap();
    let call_off = sink.call_off().unwrap();
    sink.write(&batch([(Some("a"), 1)].into_iter())).unwrap();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| sink.commit(1));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!commit.is_finished(), "it waits for a broker");
        call_off();
        let error = commit.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("it was called off"), "{error}");
    });
}

/// The connection is kept, and the rows after them arrive.
#[test]
fn rows_that_the_broker_cannot_take_are_dead_letters() {
    let Some(broker) = Broker::with(None, "max_packet_size 100000") else { return };
    let mut subscriber = Subscriber::start(broker.port);
    let (long, large): (&str, &str) = ("x".repeat(70_000).leak(), "y".repeat(60_000).leak());
    let text = format!("broker: 127.0.0.1:{}\ntopic: 'plant/{{line}}'", broker.port);
    let mut sink = (bind(&text).unwrap().make)().unwrap();
    for epoch in 0..2 {
        sink.at_epoch(epoch);
        let row = epoch as i64 * 10;
        sink.write(&batch(
            [(Some("a"), row), (Some(long), row + 1), (Some(large), row + 2), (Some("b"), row + 3)]
                .into_iter(),
        ))
        .unwrap();
        sink.commit(epoch + 1).unwrap();
        for (topic, n) in [("a", row), ("b", row + 3)] {
            let expected = (format!("plant/{topic}"), format!("{{\"line\":\"{topic}\",\"n\":{n}}}"));
            assert_eq!(subscriber.next(), expected);
        }
        let letters = sink.take_dead_letters();
        let found: Vec<_> = letters.iter().map(|(of, letter)| (*of, &*letter.reason)).collect();
        assert_eq!(found, [(epoch, "topic_too_long"), (epoch, "message_too_large")]);
        assert!(letters[1].1.detail.contains("the broker takes 100000 at most"), "{}", letters[1].1.detail);
    }
    sink.close().unwrap();
    assert_eq!(broker.log().matches("New client connected").count(), 2, "{}", broker.log());
}

/// mosquitto does not tell this limit: it refuses the message with a code that the protocol does not have there.
#[test]
fn a_limit_that_the_broker_does_not_tell_ends_the_run() {
    let Some(broker) = Broker::with(None, "message_size_limit 1000") else { return };
    let text = format!("broker: 127.0.0.1:{}\ntopic: plant/n", broker.port);
    let mut sink = (bind(&text).unwrap().make)().unwrap();
    sink.write(&batch([(Some("y".repeat(2000).leak() as &str), 1)].into_iter())).unwrap();
    let error = sink.commit(1).unwrap_err().to_string();
    assert!(error.contains("because of its size"), "{error}");
}

#[test]
fn wrong_topics_are_refused_with_what_to_write() {
    for (topic, message) in [
        ("plant/#", "messages cannot be sent to the topic `plant/#`"),
        ("''", "messages cannot be sent"),
        ("'plant/{line'", "is not closed"),
        ("'plant/{lane}'", "there is no column `lane`"),
    ] {
        let error = bind(&format!("broker: 'b:1'\ntopic: {topic}")).err().expect(topic);
        assert!(error.contains(message), "{topic}: {error}");
    }
}
