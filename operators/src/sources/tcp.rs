//! `tcp`: JSON objects from TCP connections, one per line.
//!
//! ```yaml
//! - {id: readings, kind: tcp, journal: {}, options: {listen: 127.0.0.1:4100, columns: {sensor: text, temperature: float64}}}
//! ```
//! With `listen` others connect, up to 64 at one time; with `connect` the source does, and again whenever the connection
//! ends. Columns, `event_time`, `time_unit`, `time_zone`, `out_of_order`, `max_jump` and dead letters are those of
//! [`super::jsonl`]. Lines of several connections come one after the other, each whole. Data is not acknowledged: lines in
//! transit when a process dies are lost. Clients are not authenticated and traffic is not encrypted: listen on an address
//! that only authorised senders can reach.
//!
//! ```
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let id = "readings".into();
//! let context = EndContext::new(&id, std::path::Path::new("."));
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "listen: 127.0.0.1:4100\ncolumns: {t: float64}")).unwrap();
//! let readings = Registry::builtin().source("tcp").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(readings.stream.as_deref(), Some("connections to `127.0.0.1:4100`"));
//! ```
use super::connections::{Connections, Side};
use super::received::{self, LineOptions, MaxJump, TimeUnit};
use crate::api::BoundSource;
use crate::columns::DeclaredType;
use crate::kind::{EndContext, SourceKind};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::Value;

/// Largest accepted `max_line`: each connection may hold one line in memory.
const LINE_LIMIT: u64 = 64 << 20;

/// The kind `tcp`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Tcp;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TcpOptions {
    /// Address and port for connections, on the machine that reads the source: `127.0.0.1:4100`, `0.0.0.0:4100`.
    #[serde(default)]
    listen: Option<Located<String>>,
    /// Host and port to connect to, repeatedly: `gateway.local:4100`.
    #[serde(default)]
    connect: Option<Located<String>>,
    /// Number of connections after whose end the source ends. Each process counts from 0: a run that continues from a
    /// state waits for this number again. Default: the source has no end.
    #[serde(default)]
    connections: Option<Located<u64>>,
    /// Columns to read, each with its type: int64, float64, text, bool or a tensor such as "tensor<float32>[8]".
    #[schemars(with = "BTreeMap<String, DeclaredType>")]
    columns: Value,
    /// Column with the event time, of type int64 or float64, or of type text with times such as `2026-03-29T01:59:59Z`. Default: none;
    /// record number i has the time i / `rate`, or i milliseconds without a rate.
    #[serde(default)]
    event_time: Option<Located<String>>,
    /// Unit of event times that are numbers, counted from 1970: s, ms, us or ns. Default: ms.
    #[serde(default)]
    time_unit: Option<Located<TimeUnit>>,
    /// Zone of event times in text without a zone: an offset such as `+01:00`, or `Z` for UTC. Default: none; a time
    /// without a zone is a dead letter.
    #[serde(default)]
    time_zone: Option<Located<String>>,
    /// Longest time by which a record may be older than the newest event time. Default: 0s.
    #[serde(default)]
    out_of_order: TimeSpan,
    /// How far ahead of the newest event time so far a record may be if the next good record does not confirm it; a
    /// record that is further ahead is a dead letter. At least `out_of_order`. `none`: any. Default: 365d.
    #[serde(default)]
    max_jump: MaxJump,
    /// Longest record, up to 64MiB; longer ones are skipped. Each connection may hold as much in memory. Default: 1MiB.
    #[serde(default = "default_max_line")]
    max_line: Bytes,
}

fn default_max_line() -> Bytes {
    Bytes(1 << 20)
}

impl SourceKind for Tcp {
    fn kind(&self) -> &'static str {
        "tcp"
    }

    fn summary(&self) -> &'static str {
        "JSON objects from TCP connections, one per line."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(TcpOptions)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { reads: &[], listens: &["listen"], connects: &["connect"], ..SourceFacts::DEFAULT }
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let TcpOptions {
            listen,
            connect,
            connections,
            columns,
            event_time,
            time_unit,
            time_zone,
            out_of_order,
            max_jump,
            max_line,
        } = options.deserialize_into()?;
        let wrong = |message: String, help: &str| Diagnostic::error("E0606", message).with_help(help);
        let (address, side) = match (listen, connect) {
            (Some(address), None) => (address.clone(), Side::Listen(address.value)),
            (None, Some(address)) => (address.clone(), Side::Connect(address.value)),
            _ => {
                let message = format!("source `{}` needs either `listen` or `connect`", context.id);
                let help = "write `listen: 127.0.0.1:4100` where others connect to it, `connect: HOST:PORT` where it connects itself";
                return Err(wrong(message, help).at(context.id.span.clone()).into());
            }
        };
        check_address(&address, &side)?;
        if let Some(none) = connections.as_ref().filter(|count| count.value == 0) {
            return Err(wrong(
                "`connections: 0` would end before it starts".into(),
                "write 1 or more, or leave it out",
            )
            .at(none.span.clone())
            .into());
        }
        let max_line = Bytes(max_line.0.clamp(1, LINE_LIMIT));
        let connections =
            Connections { side, limit: max_line.0 as usize, count: connections.map(|count| count.value) };
        let lines = LineOptions {
            place: address,
            columns,
            event_time,
            time_unit,
            time_zone,
            out_of_order,
            max_jump,
            max_line,
        };
        received::bind(self.kind(), context, options, lines, Arc::new(connections))
    }
}

/// Checks that an address has a port, and that one to listen at is of this machine.
fn check_address(address: &Located<String>, side: &Side) -> Result<(), Diagnostics> {
    let parts = address.value.rsplit_once(':');
    let has_port = |least: u16| {
        parts.is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port >= least)
        })
    };
    // The port chosen by the system would be unknown to clients.
    if has_port(1) {
        return Ok(());
    }
    let example = match side {
        Side::Listen(_) => {
            "127.0.0.1:4100` for programs of the same machine, `0.0.0.0:4100` for all that reach it"
        }
        Side::Connect(_) => "gateway.local:4100`",
    };
    Err(Diagnostic::error("E0606", format!("`{address}` is not an address with a port"))
        .at(address.span.clone())
        .with_help(format!("write `{example}"))
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::test::{bind, drain};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use tidemill_journal::{Journal, LEAST_SIZE};

    fn free() -> String {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    #[test]
    fn lines_of_connections_are_records() {
        let address = free();
        let yaml = format!("listen: {address}\nconnections: 2\nmax_line: 1kB\ncolumns: {{n: int64}}");
        let source = bind(&Tcp, Path::new("."), &yaml).unwrap();
        let sender = std::thread::spawn(move || {
            for text in [
                "{\"n\": 1}\n{\"n\": 2}\nnonsense\n".to_owned(),
                format!("{{\"n\": 3, \"more\": \"{}\"}}\n{{\"n\": 4}}", "x".repeat(300_000)),
            ] {
                let mut stream = loop {
                    match TcpStream::connect(&address) {
                        Ok(stream) => break stream,
                        Err(_) => std::thread::yield_now(),
                    }
                };
                stream.write_all(text.as_bytes()).unwrap();
                // The next one is read in parallel, so it connects when this one has ended.
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = std::io::Read::read(&mut stream, &mut [0]);
            }
        });
        let (batches, dead) = drain(&source, 100, usize::MAX);
        sender.join().unwrap();
        assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 3);
        let reasons: Vec<String> = dead.iter().map(|(_, letter)| letter.reason.to_string()).collect();
        assert_eq!(reasons, ["bad_value", "line_too_long"]);
        assert!(dead[0].1.detail.starts_with("connections to `127.0.0.1:"), "{}", dead[0].1.detail);
    }

    /// The first bytes of gzip and of zstd do not affect the lines of other connections.
    #[test]
    fn a_line_that_begins_like_compressed_data_is_one_bad_line() {
        let folder = tempfile::tempdir().unwrap();
        for (at, magic) in [&b"\x1f\x8b"[..], b"\x28\xb5\x2f\xfd"].into_iter().enumerate() {
            for is_journalled in [false, true] {
                let address = free();
                let yaml = format!("listen: {address}\nconnections: 1\ncolumns: {{n: int64}}");
                let mut source = bind(&Tcp, Path::new("."), &yaml).unwrap();
                if is_journalled {
                    let path = folder.path().join(format!("journal {at}"));
                    let journal = Journal::open(&path, 7, LEAST_SIZE).unwrap();
                    source.make = (source.journalled.as_ref().unwrap().make)(journal);
                }
                let text = [magic, b" and more\n{\"n\": 1}\n"].concat();
                let sender = std::thread::spawn(move || {
                    let mut stream = loop {
                        match TcpStream::connect(&address) {
                            Ok(stream) => break stream,
                            Err(_) => std::thread::yield_now(),
                        }
                    };
                    stream.write_all(&text).unwrap();
                });
                let (batches, dead) = drain(&source, 100, usize::MAX);
                sender.join().unwrap();
                assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1);
                let reasons: Vec<&str> = dead.iter().map(|(_, letter)| letter.reason.as_ref()).collect();
                assert_eq!(reasons, ["invalid_utf8"], "{magic:?}");
            }
        }
    }

    #[test]
    fn wrong_addresses_are_refused_with_what_to_write() {
        for (yaml, message) in [
            ("columns: {n: int64}", "either `listen` or `connect`"),
            ("listen: a:1\nconnect: b:1\ncolumns: {n: int64}", "either `listen` or `connect`"),
            ("listen: 127.0.0.1\ncolumns: {n: int64}", "`127.0.0.1` is not an address with a port"),
            ("listen: 127.0.0.1:0\ncolumns: {n: int64}", "not an address with a port"),
            ("connect: ':4100'\ncolumns: {n: int64}", "not an address with a port"),
            ("listen: a:1\nconnections: 0\ncolumns: {n: int64}", "`connections: 0`"),
            (
                "listen: a:1\ncolumns: {n: int64}\nmax_jump: none",
                "`max_jump` has no effect without `event_time`",
            ),
        ] {
            let error = bind(&Tcp, Path::new("."), yaml).err().expect(yaml).to_string();
            assert!(error.contains(message), "{yaml}: {error}");
        }
    }
}
