//! The page of the measurements.
use super::Row;
use super::routes::Routes;
use crate::machine::machine;
use crate::result::Measurement;
use anyhow::Context;
use std::path::Path;

/// Writes `backends.md`.
pub(super) fn write(folder: &Path, routes: &Routes, rows: &[Row]) -> anyhow::Result<()> {
    let names: Vec<&str> = routes.all.iter().map(|route| route.name.as_str()).collect();
    let mut text = INTRODUCTION.to_owned();
    text += &table(&names, rows);
    let reasons = reasons(&names, rows);
    for (title, list) in [("Not measured", &reasons), ("Not on this machine", &routes.missing)] {
        if !list.is_empty() {
            text += &format!("\n{title}:\n\n");
            list.iter().for_each(|reason| text += &format!("- {reason}\n"));
        }
    }
    text += &format!("\n| | |\n|---|---|\n{}", machine().table());
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join("backends.md");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn table(names: &[&str], rows: &[Row]) -> String {
    let mut text = format!("| model | {} |\n|---|{}\n", names.join(" | "), "--:|".repeat(names.len()));
    for row in rows {
        let figures: Vec<Option<Measurement>> = row
            .cells
            .iter()
            .map(|cell| Some(Measurement::new("", "s", cell.as_ref().ok()?.clone())))
            .collect();
        let medians = figures.iter().flatten().map(Measurement::median);
        let least = medians.fold(f64::INFINITY, f64::min);
        let cell = |found: &Option<Measurement>| match found {
            None => "no".to_owned(),
            Some(found) => {
                let bold = if found.median() == least { "**" } else { "" };
                format!("{bold}{}{bold} ({})", milliseconds(found.median()), milliseconds(found.p99()))
            }
        };
        let cells: Vec<String> = figures.iter().map(cell).collect();
        text += &format!("| {} | {} |\n", row.model, cells.join(" | "));
    }
    text + &format!("| *all, over {}* | {} |\n", names[0], ratios(names.len(), rows).join(" | "))
}

/// Geometric mean of the medians of each route over those of the first one, of the models that both computed.
fn ratios(routes: usize, rows: &[Row]) -> Vec<String> {
    let median = |cell: &Result<Vec<f64>, String>| {
        Some(Measurement::new("", "s", cell.as_ref().ok()?.clone()).median())
    };
    let of = |route: usize| {
        let both = rows.iter().filter_map(|row| Some(median(&row.cells[route])? / median(&row.cells[0])?));
        let logarithms: Vec<f64> = both.map(f64::ln).collect();
        match logarithms.len() {
            0 => "no".to_owned(),
            count => format!("{:.2}", (logarithms.iter().sum::<f64>() / count as f64).exp()),
        }
    };
    (0..routes).map(of).collect()
}

/// Why cells are empty.
fn reasons(names: &[&str], rows: &[Row]) -> Vec<String> {
    let of = |row: &Row| -> Vec<String> {
        let cells = row.cells.iter().zip(names);
        let reason = |(cell, name): (&Result<Vec<f64>, String>, &&str)| {
            Some(format!("{} by {name}: {}", row.model, cell.as_ref().err()?))
        };
        cells.filter_map(reason).collect()
    };
    rows.iter().flat_map(of).collect()
}

/// Three digits.
fn milliseconds(seconds: f64) -> String {
    match seconds * 1e3 {
        few if few < 10.0 => format!("{few:.2}"),
        more => format!("{more:.1}"),
    }
}

const INTRODUCTION: &str = "# Back ends

Written by `scripts/test-backends.sh speed`; all percentiles are in `backends.json`.

A run of each shipped model with one record, in milliseconds: median, and in brackets the 99th percentile; the quickest in bold. Tensors go in and come
out, pictures and texts are not prepared. `proxy`: the back end computes in a process beside (`device: proxy:NAME`), and the tensors pass through shared
memory. Each uses one thread. All routes take turns, five for each model. Only routes whose outputs are those of the first one have figures: within 0.1 % of the largest output, 5 %
for models with 8 bits.

";

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let no = || Err("no file".to_owned());
        vec![
            Row { model: "a".to_owned(), cells: vec![Ok(vec![0.002]), Ok(vec![0.001]), no()] },
            Row { model: "b".to_owned(), cells: vec![Ok(vec![0.01]), Ok(vec![0.08]), Ok(vec![0.0205])] },
        ]
    }

    #[test]
    fn a_table_has_the_quickest_in_bold_and_the_mean_ratio() {
        let table = table(&["ort", "rten", "torch, proxy"], &rows());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[2], "| a | 2.00 (2.00) | **1.00** (1.00) | no |");
        assert_eq!(lines[3], "| b | **10.0** (10.0) | 80.0 (80.0) | 20.5 (20.5) |");
        assert_eq!(lines[4], "| *all, over ort* | 1.00 | 2.00 | 2.05 |");
    }

    #[test]
    fn an_empty_cell_has_its_reason_below() {
        assert_eq!(reasons(&["ort", "rten", "tvm, proxy"], &rows()), ["a by tvm, proxy: no file"]);
    }
}
