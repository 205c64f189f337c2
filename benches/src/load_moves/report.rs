//! The result as text: a page of tables and a file for programs.
use super::Found;
use super::judge::{DayStrategy, Outcome};
use anyhow::Context;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

fn percent(part: f64) -> String {
    match part {
        part if part <= 0.0 => "0 %".to_owned(),
        part if part < 0.000_05 => "< 0.01 %".to_owned(),
        part if part < 0.1 => format!("{:.2} %", part * 100.0),
        part => format!("{:.1} %", part * 100.0),
    }
}

fn money(value: f64) -> String {
    if value >= 1.0 { format!("{value:.2} $") } else { format!("{value:.3} $") }
}

/// Returns a line for the terminal.
pub(super) fn line(way: &DayStrategy, outcome: &Outcome) -> String {
    format!(
        "{:<62} {:>9} a day, shed {}, late {}, below the accuracy {}, {:.0} switches",
        way.name,
        money(outcome.cost),
        percent(outcome.shed),
        percent(outcome.late),
        percent(outcome.below),
        way.switches
    )
}

/// Writes `load-moves.md` and `load-moves.json`.
pub(super) fn write(folder: &Path, seed: u64, all: &[Found]) -> anyhow::Result<()> {
    let mut page = format!(
        "# When the load moves\n\n\
         Written by `make bench BENCH=load-moves`; the day is `scripts/bursty_trace.py --seed {seed}`, the plans are those of\n\
         `tidemill plan --trace` with its defaults (4 levels, 5 min dwell, 30 s to react) and `--planner accuracy-scaling`\n\
         with the workers of the cheapest plan for the mean. Plans keep p99 within 2 s (published models) and 800 ms (ours).\n\
         Discussion: [When the load changes](../changing-load.md#a-bursty-day).\n\n\
         ![Cost and misses of each strategy, and the day](load-moves.svg)\n"
    );
    for found in all {
        let (rate, trace) = (found.unit_rate, &found.trace);
        writeln!(
            page,
            "\n## {}\n\n{:.1}/s on average, {:.1}/s at the peak.\n\n\
             | | $ a day | turned away | late | accuracy below the level | misses in all | mean accuracy | switches |\n\
             |---|---|---|---|---|---|---|---|",
            capital(&found.title),
            rate * trace.mean_factor(),
            rate * trace.largest_factor()
        )?;
        for (way, outcome) in &found.ways {
            writeln!(
                page,
                "| {} | {} | {} | {} | {} | {} | {:.2} % | {:.0} |",
                way.name,
                money(outcome.cost),
                percent(outcome.shed),
                percent(outcome.late),
                percent(outcome.below),
                percent(outcome.missed()),
                outcome.accuracy,
                way.switches
            )?;
        }
    }
    page.push_str(
        "\nParts of all records of the day. *Turned away*: at the source, what exceeds the load at which a worker of the plan in\n\
         use is as busy as it may be (85 %) or a link is full. *Late*: after the level on latency (p99 within 2 s and 800 ms), in\n\
         the simulator with Poisson arrivals; each spell between two switches begins with empty queues. Workers are paid from\n\
         switch to switch, a fleet all day, traffic as served.\n",
    );
    let path = folder.join("load-moves.md");
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    let rows: Vec<Value> =
        all.iter().flat_map(|found| found.ways.iter().map(move |(way, of)| row(found, way, of))).collect();
    let document = json!({
        "schema": 1,
        "question": "What does a bursty day cost, and which records miss their levels, with one plan, with switched plans, with cheaper variants?",
        "name": "load-moves",
        "day_seed": seed,
        "rows": rows,
    });
    let path = folder.join("load-moves.json");
    let text = serde_json::to_string_pretty(&document)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn row(found: &Found, way: &DayStrategy, of: &Outcome) -> Value {
    json!({
        "models": found.title,
        "way": way.name,
        "cost_per_day": of.cost,
        "turned_away": of.shed,
        "late": of.late,
        "below_accuracy": of.below,
        "accuracy": of.accuracy,
        "switches": way.switches,
        "levels": way.levels.iter().map(|level| json!({"rates_up_to": level.top * found.unit_rate, "accuracy": level.accuracy})).collect::<Vec<_>>(),
    })
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
