//! The overheads as a table: the time that the engine and its channels add to the bare call, in percent of it.
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;
use tidemill_engine::LatencySummary;

/// An operator at a place. Milliseconds, medians and 90th percentiles.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    operator: String,
    variant: String,
    place: String,
    bare: [f64; 2],
    /// Waiting and computing in the stage. None: the engine does not measure it for this operator.
    inside: Option<[f64; 2]>,
    /// Transfer from the previous stage.
    transfer: [f64; 2],
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share) as usize).copied().unwrap_or(0.0)
}

impl Row {
    /// Creates a row from bare calls, and from the times of waiting, computing and transfer.
    pub(super) fn new(
        operator: String,
        variant: &str,
        place: String,
        bare: &[f64],
        [waits, computes, comes]: [LatencySummary; 3],
    ) -> Self {
        let mut bare = bare.to_vec();
        bare.sort_by(f64::total_cmp);
        let inside = [waits.p50_ms + computes.p50_ms, waits.p90_ms + computes.p90_ms];
        Self {
            operator,
            variant: variant.to_owned(),
            place,
            bare: [percentile(&bare, 0.5), percentile(&bare, 0.9)],
            inside: (computes.count > 0).then_some(inside),
            transfer: [comes.p50_ms, comes.p90_ms],
        }
    }

    /// Returns the overhead of the engine around the call, and of the channel before it, in percent of the bare call.
    fn percents(&self) -> [Option<f64>; 4] {
        let part = |at: usize, more: f64| 100.0 * more / self.bare[at].max(1e-9);
        let exec = |at: usize| self.inside.map(|inside| part(at, inside[at] - self.bare[at]));
        [exec(0), exec(1), Some(part(0, self.transfer[0])), Some(part(1, self.transfer[1]))]
    }
}

/// Writes `operator-overhead-table.md`.
pub(super) fn write(folder: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let mut text = "# Overheads of operators, measured\n\nWritten by `make bench BENCH=operator-overhead`; what it means: \
                    [Overheads of operators](operator-overhead.md).\n\n\
                    | operator | variant | where | bare p50 | bare p90 | engine p50 | engine p90 | channel p50 | channel p90 |\n\
                    |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let told = row
            .percents()
            .map(|percent| percent.map_or("-".to_owned(), |percent| format!("{percent:+.1} %")));
        let [engine, engine_90, channel, channel_90] = told;
        let [bare, bare_90] = row.bare.map(|ms| format!("{ms:.3} ms"));
        writeln!(
            text,
            "| {} | {} | {} | {bare} | {bare_90} | {engine} | {engine_90} | {channel} | {channel_90} |",
            row.operator, row.variant, row.place
        )?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join("operator-overhead-table.md");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overheads_are_parts_of_the_bare_call() {
        let times = |p50_ms: f64, p90_ms: f64| LatencySummary {
            count: 10,
            p50_ms,
            p90_ms,
            ..LatencySummary::default()
        };
        let bare: Vec<f64> = (1..=11).map(|ms| ms as f64 / 3.0).collect();
        let row = Row::new(
            "speech".into(),
            "speech-small",
            "processes".into(),
            &bare,
            [times(0.2, 0.4), times(2.0, 3.4), times(0.1, 0.2)],
        );
        let told: Vec<f64> =
            row.percents().into_iter().flatten().map(|percent| (percent * 10.0).round() / 10.0).collect();
        assert_eq!(told, [10.0, 14.0, 5.0, 6.0]);
        let unknown = LatencySummary::default();
        let row =
            Row::new("pair".into(), "join", "processes".into(), &bare, [unknown, unknown, times(0.1, 0.2)]);
        assert_eq!(row.percents()[0], None);
    }
}
