//! Costs as bars of two parts, a row per planner, a panel per case.
use super::contest::Row;
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;
use tidemill_drawing::axis::{Axis, short, ticks};
use tidemill_drawing::markup::Markup;
use tidemill_drawing::sheet::{self, Anchor, through};

/// A drawing of panels in two columns.
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
}

/// Bars with one scale.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) unit: &'static str,
    pub(super) bars: Vec<Bar>,
}

/// One planner's cost.
pub(super) struct Bar {
    pub(super) name: &'static str,
    /// Compute and network; none: no plan.
    pub(super) cost: Option<(f64, f64)>,
    /// Totals at other percentiles: the ends of the error bar. None: no plan there.
    pub(super) others: Vec<(&'static str, Option<f64>)>,
    /// Unproven share of the cost, where it is above zero.
    pub(super) gap: Option<f64>,
}

const WIDTH: f64 = 820.0;
const LABELS: f64 = 112.0;
const VALUES: f64 = 96.0;
const ROW: f64 = 22.0;
const TOP: f64 = 76.0;
const HEAD: f64 = 28.0;
const FOOT: f64 = 40.0;

impl Bars {
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.draw()?).with_context(|| format!("cannot write {}", path.display()))
    }

    fn draw(&self) -> anyhow::Result<String> {
        anyhow::ensure!(!self.panels.is_empty(), "nothing to draw");
        let rows = self.panels.iter().map(|panel| panel.bars.len()).max().unwrap_or(0);
        let panel_height = HEAD + rows as f64 * ROW + FOOT;
        let lines = self.panels.len().div_ceil(2);
        let errors = self.panels.iter().flat_map(|panel| &panel.bars).any(|bar| !bar.others.is_empty());
        Ok(sheet::file(&self.title, (WIDTH, TOP + lines as f64 * panel_height), |svg| {
            for (x, class, name) in [(16.0, "k", "compute"), (100.0, "n", "network")] {
                sheet::rectangle(svg, class, (x, 40.0), (12.0, 12.0));
                sheet::text(svg, "", (x + 18.0, 51.0), Anchor::Start, name);
            }
            if errors {
                whisker(svg, (186.0, 206.0), 46.0);
                let text = "planned again with the p50 and p90 of service times";
                sheet::text(svg, "", (212.0, 51.0), Anchor::Start, text);
            }
            for (at, panel) in self.panels.iter().enumerate() {
                let left = 16.0 + (at % 2) as f64 * (WIDTH / 2.0 - 4.0);
                panel.draw(svg, left, TOP + (at / 2) as f64 * panel_height);
            }
        }))
    }
}

/// Draws an error bar between two places.
fn whisker(svg: &mut Markup, (from, to): (f64, f64), y: f64) {
    let end = |x: f64| [(x, y - 4.0), (x, y + 4.0)];
    let strokes = [[(from, y), (to, y)], end(from), end(to)];
    sheet::path(svg, "whisker", &strokes.map(|stroke| through(&stroke)).concat());
}

impl Panel {
    fn draw(&self, svg: &mut Markup, left: f64, top: f64) {
        let totals = self.bars.iter().flat_map(|bar| {
            let own = bar.cost.map(|(compute, network)| compute + network);
            own.into_iter().chain(bar.others.iter().filter_map(|(_, total)| *total))
        });
        let most = totals.fold(0.0, f64::max).max(1e-9);
        let x = Axis::linear((0.0, most), (left + LABELS, left + WIDTH / 2.0 - VALUES));
        sheet::text(svg, "panel", (left, top + 14.0), Anchor::Start, &self.title);
        let floor = top + HEAD + self.bars.len() as f64 * ROW;
        for tick in ticks(0.0, most, 4) {
            let at = x.place(tick);
            sheet::line(svg, "grid", (at, top + HEAD - 4.0), (at, floor));
            sheet::text(svg, "soft small", (at, floor + 14.0), Anchor::Middle, &short(tick));
        }
        sheet::text(svg, "soft small", (left, floor + 14.0), Anchor::Start, self.unit);
        for (row, bar) in self.bars.iter().enumerate() {
            let middle = top + HEAD + (row as f64 + 0.5) * ROW - 2.0;
            sheet::text(svg, "", (x.place(0.0) - 8.0, middle + 4.0), Anchor::End, bar.name);
            bar.draw(svg, &x, middle);
        }
    }
}

impl Bar {
    /// Creates the bar of a row.
    pub(super) fn of(row: &Row, others: Vec<(&'static str, Option<f64>)>) -> Self {
        let name =
            if row.planner.ends_with("one operator a worker") { "exact, one each" } else { row.planner };
        Self { name, cost: row.compute.zip(row.network), others, gap: row.gap }
    }

    fn draw(&self, svg: &mut Markup, x: &Axis, middle: f64) {
        let zero = x.place(0.0);
        let Some((compute, network)) = self.cost else {
            sheet::cross(svg, "whisker", (zero + 10.0, middle));
            let others: Vec<&str> =
                self.others.iter().filter(|(_, total)| total.is_some()).map(|(name, _)| *name).collect();
            let text = match others.is_empty() {
                true => "no plan".to_owned(),
                false => format!("no plan (with {} there is)", others.join(", ")),
            };
            sheet::text(svg, "soft", (zero + 22.0, middle + 4.0), Anchor::Start, &text);
            return;
        };
        let total = compute + network;
        let (one, two) = (x.place(compute), x.place(total));
        sheet::rectangle(svg, "k", (zero, middle - 7.0), (one - zero, 14.0));
        sheet::rectangle(svg, "n", (one, middle - 7.0), (two - one, 14.0));
        let known = || self.others.iter().filter_map(|(_, total)| *total).chain([total]);
        let (low, high) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
        if high - low > 1e-9 {
            whisker(svg, (x.place(low), x.place(high)), middle);
        }
        let mut text = format!("{total:.2}");
        if let Some(gap) = self.gap.filter(|gap| *gap > 1e-4) {
            let _ = write!(text, " (gap {:.1} %)", 100.0 * gap);
        }
        for (name, _) in self.others.iter().filter(|(_, total)| total.is_none()) {
            let _ = write!(text, ", no {name}");
        }
        sheet::text(svg, "small", (x.place(high.max(total)) + 6.0, middle + 4.0), Anchor::Start, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_costs() {
        let bar = |cost, others| Bar { name: "exact", cost, others, gap: Some(0.02) };
        let bars = vec![
            bar(Some((1.0, 1.0)), vec![("p50", Some(1.5)), ("p90", None)]),
            bar(Some((4.0, 0.0)), Vec::new()),
            bar(None, Vec::new()),
        ];
        let panels = vec![Panel { title: "small & cheap".into(), unit: "$/h", bars }];
        let svg = Bars { title: "costs".into(), panels }.draw().expect("drawn");
        let width = |class: &str, nth: usize| -> f64 {
            let begin = format!("<rect class=\"{class}\"");
            let line = svg.lines().filter(|line| line.starts_with(&begin) && line.contains("height=\"14\""));
            let line = line.clone().nth(nth).expect("a bar");
            let text = line.split("width=\"").nth(1).and_then(|rest| rest.split('"').next());
            text.and_then(|text| text.parse().ok()).expect("a number")
        };
        assert!((width("k", 1) / width("k", 0) - 4.0).abs() < 0.01);
        assert!((width("k", 0) - width("n", 0)).abs() < 0.11);
        assert!(svg.contains("2.00 (gap 2.0 %), no p90") && svg.contains("no plan</text>"));
        assert!(svg.contains("small &amp; cheap") && !svg.contains("NaN"));
    }
}
