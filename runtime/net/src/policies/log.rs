//! `log`: writes a line for each frame, in JSON, into a file of bounded size.
use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidemill_spec::units::Bytes;

/// See the module.
pub const KIND: Kind = Kind {
    name: "log",
    help: "writes a line for each frame into a file of bounded size",
    example: r#"{"size": "16MiB"}"#,
    make,
};

/// Bytes of a file and the one before it.
const SIZE: u64 = 16 << 20;
/// Time for which lines may wait in memory.
const FLUSH: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Bytes that the file and the one before it may have together.
    size: Option<Bytes>,
}

struct Log {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    written: u64,
    size: u64,
    flushed: Option<Instant>,
}

fn make(value: &Value, site: &Site) -> Result<Box<dyn Policy>, String> {
    let Options { size } = options(value)?;
    let path = site.folder.join(format!("{}.jsonl", if site.id.is_empty() { "log" } else { &site.id }));
    let size = size.map_or(SIZE, |size| size.0).max(64 << 10);
    // The disk is that of the service, not of the user.
    let size = if site.may_load { size } else { size.min(SIZE) };
    Ok(Box::new(Log { path, file: None, written: 0, size, flushed: None }))
}

impl Log {
    fn write(&mut self, line: &str, now: Instant) -> std::io::Result<()> {
        if self.written >= self.size / 2 {
            // The file before is replaced.
            self.file = None;
            std::fs::rename(&self.path, self.path.with_extension("1.jsonl"))?;
            self.written = 0;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let opened = File::options().create(true).append(true).open(&self.path)?;
                self.written = opened.metadata()?.len();
                self.file.insert(BufWriter::new(opened))
            }
        };
        writeln!(file, "{line}")?;
        self.written += line.len() as u64 + 1;
        if self.flushed.is_none_or(|last| now.saturating_duration_since(last) >= FLUSH) {
            file.flush()?;
            self.flushed = Some(now);
        }
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "people compare the lines with other logs of the machine")]
fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Policy for Log {
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String> {
        let line = json!({
            "time": seconds(), "workflow": frame.edge.workflow, "from": frame.edge.from, "to": frame.edge.to,
            "channel": frame.channel, "epoch": frame.epoch(), "rows": frame.rows()?, "bytes": frame.bytes(),
        });
        let now = frame.now;
        self.write(&line.to_string(), now).map_err(|error| format!("{}: {error}", self.path.display()))?;
        Ok(Verdict::Pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, cameras};

    #[test]
    fn each_frame_has_a_line_and_the_files_stay_small() {
        let folder = tempfile::tempdir().expect("a folder");
        let site = Site { id: "all".into(), folder: folder.path().into(), may_load: false };
        let policy = make(&json!({"size": "64KiB"}), &site).expect("its options are right");
        let mut bench = Bench::of(policy);
        for _ in 0..2000 {
            bench.advance(Duration::from_secs(2));
            assert_eq!(bench.look(&cameras(&["a", "b"])).0, Verdict::Pass);
        }
        let sizes: Vec<u64> = ["all.jsonl", "all.1.jsonl"]
            .map(|name| std::fs::metadata(folder.path().join(name)).expect(name).len())
            .to_vec();
        assert!(sizes.iter().sum::<u64>() <= 66 << 10, "{sizes:?}");
        let text = std::fs::read_to_string(folder.path().join("all.jsonl")).expect("a file");
        let last: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
        assert_eq!((last["rows"].as_u64(), last["from"].as_str()), (Some(2), Some("cameras")));
    }
}
