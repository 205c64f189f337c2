//! Prints an agent's state as a table.
use crate::table::{Side, Table};
use std::io::{self, Write};
use tidemill_app::figures::bytes;
use tidemill_elastic::agent::Snapshot;

/// Writes all groups with their limits, use and slack.
pub(super) fn table(snapshot: &Snapshot, out: &mut dyn Write) -> io::Result<()> {
    let columns = [
        ("container", Side::Left),
        ("cpus", Side::Right),
        ("used", Side::Right),
        ("slack", Side::Right),
        ("throttled", Side::Right),
        ("memory", Side::Right),
        ("used", Side::Right),
        ("slack", Side::Right),
        ("grants", Side::Right),
        ("killed", Side::Right),
    ];
    let mut table = Table::new(&columns);
    for member in &snapshot.members {
        table.row([
            member.name.clone(),
            format!("{:.2}", member.processors),
            format!("{:.2}", member.used_processors),
            format!("{:.2}", member.slack_processors),
            format!("{:.0} %", member.throttled * 100.0),
            bytes(member.memory_bytes),
            bytes(member.used_memory_bytes),
            bytes(member.memory_bytes.saturating_sub(member.used_memory_bytes)),
            member.grants.to_string(),
            member.killed.to_string(),
        ]);
    }
    if !snapshot.members.is_empty() {
        table.write(out)?;
    }
    let cost = 100.0 * snapshot.cost_seconds / snapshot.seconds.max(f64::MIN_POSITIVE);
    let dry = if snapshot.is_dry_run { "; dry run: no limits change" } else { "" };
    writeln!(
        out,
        "{} containers; {:.2} of {:.2} cpus and {} of {} are free; the agent uses {cost:.2} % of a processor{dry}",
        snapshot.members.len(),
        snapshot.free_processors,
        snapshot.processors,
        bytes(snapshot.free_memory_bytes),
        bytes(snapshot.memory_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_elastic::agent::MemberView;

    #[test]
    fn what_is_left_is_told() {
        let member = MemberView {
            name: "shop-1".into(),
            processors: 0.5,
            used_processors: 0.45,
            memory_bytes: 100 << 20,
            used_memory_bytes: 60 << 20,
            ..MemberView::default()
        };
        let snapshot =
            Snapshot { seconds: 10.0, processors: 1.5, members: vec![member], ..Snapshot::default() };
        let mut text = Vec::new();
        table(&snapshot, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let row: Vec<&str> =
            text.lines().find(|line| line.starts_with("shop-1")).unwrap().split_whitespace().collect();
        assert_eq!(row[..3], ["shop-1", "0.50", "0.45"], "{text}");
        assert!(text.contains("40 MiB") && text.contains("0.00 of 1.50 cpus"), "{text}");
    }
}
