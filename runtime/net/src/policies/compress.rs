//! `compress`: makes frames smaller with LZ4 before they leave the host. Every receiver reads them.
use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use serde::Deserialize;
use serde_json::Value;

/// See the module.
pub const KIND: Kind = Kind {
    name: "compress",
    help: "compresses frames (LZ4) of at least so many bytes",
    example: r#"{"at_least": 1024}"#,
    make,
};

/// Smaller frames are mostly headers.
const AT_LEAST: u64 = 512;
/// Frames that are not tried after one that did not become smaller: images and sounds are compressed already.
const PAUSE: u32 = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Bytes of a frame.
    at_least: Option<u64>,
}

struct Compress {
    at_least: u64,
    pause: u32,
}

fn make(value: &Value, _: &Site) -> Result<Box<dyn Policy>, String> {
    let Options { at_least } = options(value)?;
    Ok(Box::new(Compress { at_least: at_least.unwrap_or(AT_LEAST), pause: 0 }))
}

impl Policy for Compress {
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String> {
        if frame.bytes() < self.at_least {
            return Ok(Verdict::Pass);
        }
        if self.pause > 0 {
            self.pause -= 1;
        } else if !frame.compress() {
            self.pause = PAUSE;
        }
        Ok(Verdict::Pass)
    }
}

#[cfg(test)]
mod tests {
    use crate::bench::{Bench, cameras};
    use serde_json::json;

    #[test]
    fn frames_become_smaller_and_their_records_stay() {
        let mut bench = Bench::new("compress", &json!({}));
        let records = cameras(&["the same name again"; 500]);
        let (_, left) = bench.look(&records);
        assert_eq!(left, records);
        assert!(bench.sent() * 4 < bench.came(), "{} of {} bytes", bench.sent(), bench.came());
        let small = cameras(&["a"]);
        let mut bench = Bench::new("compress", &json!({"at_least": 100_000}));
        assert_eq!(bench.look(&small).1, small);
        assert_eq!(bench.sent(), bench.came());
    }
}
