//! The sink with a real server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[path = "../../../cluster/postgres/tests/server/mod.rs"]
mod server;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use postgres::{Client, NoTls};
use server::Server;
use std::sync::Arc;
use tidemill_operators::api::{BoundSink, DeadLetter, Sink};
use tidemill_operators::kind::{EndContext, InputPort};
use tidemill_operators::record::{first_records, payload_schema};
use tidemill_operators::registry::Registry;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::yaml;

fn stream() -> StreamType {
    StreamType::new([
        Column::new("sensor", ColumnType::Text),
        Column::new("n", ColumnType::Int64),
        Column::new("celsius", ColumnType::Float64),
    ])
}

fn bind(server: &Server, more: &str) -> Result<BoundSink, String> {
    let mut registry = Registry::builtin();
    tidemill_postgres_sink::register(&mut registry);
    let port = InputPort { from: "readings".into(), stream: stream(), span: Span::nowhere() };
    let id = "latest".into();
    let text = format!("server: '{}'\ntable: latest\n{more}", server.address());
    let options = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
    let context = EndContext::new(&id, std::path::Path::new("."));
    registry.sink("postgres").unwrap().bind(&context, &port, &options).map_err(|errors| errors.to_string())
}

fn batch(rows: &[(&str, i64, Option<f64>)]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(Float64Array::from_iter(rows.iter().map(|row| row.2))),
    ];
    first_records(&RecordBatch::try_new(payload_schema(&stream()), columns).unwrap()).unwrap()
}

fn client(server: &Server) -> Client {
    Client::connect(&server.address(), NoTls).unwrap()
}

fn rows(server: &Server) -> Vec<(String, i64, Option<f64>)> {
    let rows = client(server)
        .query("SELECT sensor, n::bigint, celsius FROM latest ORDER BY sensor, n", &[])
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

const CREATED: &str = "key: [sensor]\ncreate: true";

#[test]
fn the_last_row_of_each_key_stays() {
    let Some(server) = Server::start() else { return };
    let bound = bind(&server, CREATED).unwrap();
    let mut sink = (bound.make)().unwrap();
    sink.write(&batch(&[("a", 1, Some(1.5)), ("b", 1, None), ("a", 2, None)])).unwrap();
    assert!(rows(&server).is_empty(), "nothing is visible before the commit");
    sink.commit(3).unwrap();
    sink.write(&batch(&[("b", 5, Some(0.5))])).unwrap();
    sink.write(&batch(&[("c", 9, None)])).unwrap();
    sink.rollback().unwrap();
    sink.write(&batch(&[("b", 2, Some(2.5))])).unwrap();
    sink.commit(6).unwrap();
    assert_eq!(rows(&server), [("a".into(), 2, None), ("b".into(), 2, Some(2.5))]);
    sink.close().unwrap();
    let left = client(&server).query_one("SELECT count(*) FROM tidemill_commits", &[]).unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}

/// A trigger counts what is written, so that a repetition shows.
#[test]
fn a_process_that_continues_repeats_nothing_and_leaves_nothing_out() {
    let Some(server) = Server::start() else { return };
    let bound = bind(&server, "key: [sensor, n]\ncreate: true").unwrap();
    let durable = bound.durable.unwrap();
    let mut first = durable(None).unwrap();
    client(&server)
        .batch_execute(
            "CREATE TABLE writes (n bigint); CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN INSERT INTO writes VALUES (NEW.n); RETURN NEW; END$$; \
             CREATE TRIGGER told AFTER INSERT OR UPDATE ON latest FOR EACH ROW EXECUTE FUNCTION told()",
        )
        .unwrap();
    let writes = || -> Vec<i64> {
        let rows = client(&server).query("SELECT n FROM writes ORDER BY n", &[]).unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    first.write(&batch(&[("a", 1, None)])).unwrap();
    first.commit(10).unwrap();
    let token = first.token().unwrap().unwrap();
    // The state does not know of this commit: the process is killed before its checkpoint is written.
    first.write(&batch(&[("a", 2, None)])).unwrap();
    first.commit(20).unwrap();
    let mut second = durable(Some(&token)).unwrap();
    second.write(&batch(&[("a", 2, None)])).unwrap();
    second.commit(20).unwrap();
    assert_eq!(writes(), [1, 2]);
    second.write(&batch(&[("a", 3, None)])).unwrap();
    second.commit(30).unwrap();
    assert_eq!(writes(), [1, 2, 3]);
    // The first one was believed dead and wakes up.
    first.write(&batch(&[("a", 7, None)])).unwrap();
    let error = first.commit(30).unwrap_err().to_string();
    assert!(error.contains("another process of the run writes there now"), "{error}");
    assert_eq!(writes(), [1, 2, 3]);
    // A database that was restored from before the checkpoint.
    let token = second.token().unwrap().unwrap();
    client(&server).execute("UPDATE tidemill_commits SET epoch = 10", &[]).unwrap();
    let error = durable(Some(&token)).map(drop).unwrap_err().to_string();
    assert!(error.contains("it has lost rows"), "{error}");
}

#[test]
fn a_commit_waits_for_a_server_that_restarts() {
    let Some(server) = Server::start() else { return };
    let bound = bind(&server, CREATED).unwrap();
    let mut sink = (bound.make)().unwrap();
    for epoch in 1..=3 {
        sink.write(&batch(&[("a", epoch, None)])).unwrap();
        server.down();
        assert!(Client::connect(&server.address(), NoTls).is_err(), "it is down");
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| sink.commit(epoch as u64));
            server.up();
            commit.join().unwrap().unwrap();
        });
        assert_eq!(rows(&server), [("a".into(), epoch, None)]);
    }
}

#[test]
fn tables_that_do_not_fit_are_refused_with_what_to_do() {
    let Some(server) = Server::start() else { return };
    let refused = |more: &str, messages: &[&str]| {
        let error = bind(&server, more).err().expect(more);
        messages.iter().for_each(|message| assert!(error.contains(message), "{more}: {error}"));
    };
    refused("key: [sensor]", &["there is no table \"latest\"", "create: true"]);
    refused("key: []", &["has no key"]);
    refused("key: [other]", &["there is no column `other`"]);
    refused("key: [n]\ncolumns: [sensor]", &["`n` is not among the `columns`"]);
    refused(
        "key: [sensor]\npassword_env: TIDEMILL_NOT_SET",
        &["`TIDEMILL_NOT_SET` of the environment is not set"],
    );
    for (table, message) in [
        ("sensor text PRIMARY KEY, n bigint", "has no column `celsius`"),
        (
            "sensor text PRIMARY KEY, n text, celsius double precision",
            "column `n` of the table \"latest\" is text",
        ),
        ("sensor text, n bigint, celsius double precision", "several rows with the same \"sensor\""),
        (
            "sensor text PRIMARY KEY, n bigint, celsius double precision, who text NOT NULL",
            "`who` of the table \"latest\" needs a value",
        ),
    ] {
        client(&server)
            .batch_execute(&format!("DROP TABLE IF EXISTS latest; CREATE TABLE latest ({table})"))
            .unwrap();
        refused("key: [sensor]", &[message]);
    }
    let fits = "DROP TABLE latest; CREATE TABLE latest (sensor varchar UNIQUE, n numeric, celsius double precision, x int DEFAULT 1)";
    client(&server).batch_execute(fits).unwrap();
    bind(&server, "key: [sensor]").map(drop).unwrap();
}

/// What a sink could not write: epoch, value of `n`, and the finding.
fn letters(sink: &mut dyn Sink) -> Vec<(u64, String, String)> {
    let number = |letter: &DeadLetter| format!("{:?}", letter.values);
    let letters = sink.take_dead_letters();
    assert!(letters.iter().all(|(_, letter)| letter.reason == "refused"));
    letters.iter().map(|(epoch, letter)| (*epoch, number(letter), letter.detail.clone())).collect()
}

fn found(letters: &[(u64, String, String)], expected: &[(u64, &str, &str)]) {
    assert_eq!(letters.len(), expected.len(), "{letters:?}");
    for ((epoch, values, detail), (in_epoch, value, finding)) in letters.iter().zip(expected) {
        assert_eq!(epoch, in_epoch, "{letters:?}");
        assert!(values.contains(value), "{values}: {value}");
        assert!(detail.contains(finding), "{detail}: {finding}");
    }
}

#[test]
fn rows_without_a_key_or_with_nul_are_dead_letters() {
    let Some(server) = Server::start() else { return };
    let bound = bind(&server, "key: [celsius]\ncreate: true").unwrap();
    let mut sink = (bound.make)().unwrap();
    sink.at_epoch(4);
    sink.write(&batch(&[("a", 1, Some(1.0)), ("b", 77, None), ("x\0y", 78, Some(2.0)), ("c", 3, Some(3.0))]))
        .unwrap();
    sink.commit(5).unwrap();
    found(
        &letters(sink.as_mut()),
        &[(4, "77", "the key `celsius` is empty"), (4, "78", "`sensor` has the character NUL")],
    );
    assert_eq!(rows(&server), [("a".into(), 1, Some(1.0)), ("c".into(), 3, Some(3.0))]);
}

/// Also after the process was killed: its dead letters may not be on the disk yet.
#[test]
fn rows_that_the_table_refuses_are_dead_letters_and_the_others_arrive() {
    let Some(server) = Server::start() else { return };
    let table = "CREATE TABLE latest (sensor varchar(8) PRIMARY KEY, n numeric(6, 0) CHECK (n <> 5), celsius double precision)";
    client(&server).batch_execute(table).unwrap();
    let durable = bind(&server, "key: [sensor]").unwrap().durable.unwrap();
    let mut first = durable(None).unwrap();
    let token = first.token().unwrap().unwrap();
    let many: Vec<String> = (0..1500).map(|number| format!("s{number}")).collect();
    let mut given: Vec<(&str, i64, Option<f64>)> = many.iter().map(|name| (name.as_str(), 1, None)).collect();
    // The last row of a key is refused: the one before it stays, and if that is refused too, the one before that.
    given.extend([("s7", 4, None), ("s7", 5, None), ("s8", 5, None), ("far too long", 33, None)]);
    let commit = |sink: &mut dyn Sink| {
        sink.at_epoch(0);
        sink.write(&batch(&given)).unwrap();
        sink.at_epoch(1);
        sink.write(&batch(&[("s7", 12_345_678, None), ("last", 2, None)])).unwrap();
        sink.commit(2).unwrap();
        letters(sink)
    };
    let expected = [
        (0, "5", "violates check constraint"),
        (0, "5", "violates check constraint"),
        (0, "33", "value too long"),
        (1, "12345678", "numeric field overflow"),
    ];
    found(&commit(first.as_mut()), &expected);
    let all = rows(&server);
    assert_eq!(all.len(), 1501);
    let others: Vec<_> = all.iter().filter(|row| row.1 != 1).map(|row| (row.0.as_str(), row.1)).collect();
    assert_eq!(others, [("last", 2), ("s7", 4)]);
    let mut next = durable(Some(&token)).unwrap();
    found(&commit(next.as_mut()), &expected);
    next.write(&batch(&[("last", 3, None)])).unwrap();
    next.commit(4).unwrap();
    assert!(letters(next.as_mut()).is_empty());
    assert_eq!(rows(&server)[0], ("last".into(), 3, None));
    // What is no fault of a row still ends the run.
    client(&server).batch_execute("ALTER TABLE latest RENAME TO away").unwrap();
    next.write(&batch(&[("last", 4, None)])).unwrap();
    let error = next.commit(6).unwrap_err().to_string();
    assert!(error.contains("\"latest\" does not exist"), "{error}");
}
