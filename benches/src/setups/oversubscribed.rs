//! The small workload on its own machines and on those of the medium setup.
use super::bars::{Bar, Bars, Panel};
use super::contest::{Row, plan};
use super::inputs::{Setup, Wanted};
use super::{Bench, everyone};

pub(super) fn run(bench: &Bench<'_>, file: &str) -> anyhow::Result<Vec<Row>> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for family in &bench.families {
        for setup in [Setup::Small, Setup::Medium] {
            let wanted = Wanted { setup, ..family.wanted(Setup::Small) };
            let mut bars = Vec::new();
            for &entrant in everyone() {
                let row = plan(entrant, family, wanted, bench.effort)?;
                bars.push(Bar::of(&row, Vec::new()));
                rows.push(row);
            }
            let title = format!("{}, {} infrastructure", family.title, setup.name());
            panels.push(Panel { title, unit: family.unit, bars });
        }
    }
    let title = "The small workload on the small and on the medium infrastructure".into();
    Bars { title, panels }.write(&bench.folder.join(format!("{file}.svg")))?;
    Ok(rows)
}
