//! Cost of every setup by every planner, also planned with other percentiles of the service times.
use super::bars::{Bar, Bars, Panel};
use super::contest::{BY_ITS_RULE, Row, plan};
use super::inputs::{Setup, Wanted};
use super::{Bench, everyone};

const OTHERS: [(&str, f64); 2] = [("p50", 50.0), ("p90", 90.0)];

pub(super) fn run(bench: &Bench<'_>, file: &str) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for family in &bench.families {
        let mut panels = Vec::new();
        for setup in Setup::ALL {
            let wanted = family.wanted(setup);
            let mut bars = Vec::new();
            for &entrant in everyone() {
                let row = plan(entrant, family, wanted, bench.effort)?;
                let mut others = Vec::new();
                for (name, percentile) in OTHERS {
                    let other = plan(entrant, family, Wanted { percentile, ..wanted }, bench.effort)?;
                    others.push((name, other.total));
                    rows.push(other.brief());
                }
                bars.push(Bar::of(&row, others));
                rows.push(row);
            }
            for entrant in BY_ITS_RULE {
                rows.push(plan(entrant, family, wanted, bench.effort)?.brief());
            }
            let title = format!("{}: {}/s, {} %", setup.name(), wanted.rate, wanted.accuracy);
            panels.push(Panel { title, unit: family.unit, bars });
        }
        let title = format!("Cost of the four setups, {}", family.title);
        Bars { title, panels }.write(&bench.folder.join(format!("{file}-{}.svg", family.id)))?;
    }
    Ok(rows)
}
