//! Costs as bars of two parts, a row a planner, a panel a case.
use super::contest::Row;
use super::drawing::{begin, cross, short, ticks};
use crate::plot::escaped;
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

/// A drawing of panels, two beside each other.
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
    /// Totals by other percentiles: the ends of the error bar. None: no plan there.
    pub(super) others: Vec<(&'static str, Option<f64>)>,
    /// Part of the cost that is not proven, where that is more than nothing.
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
        let mut svg = begin(&self.title, WIDTH, TOP + lines as f64 * panel_height)?;
        writeln!(
            svg,
            r#"<rect class="k" x="16" y="40" width="12" height="12"/><text x="34" y="51">compute</text>"#
        )?;
        writeln!(
            svg,
            r#"<rect class="n" x="100" y="40" width="12" height="12"/><text x="118" y="51">network</text>"#
        )?;
        let errors = self.panels.iter().flat_map(|panel| &panel.bars).any(|bar| !bar.others.is_empty());
        if errors {
            writeln!(svg, r#"<path class="whisker" d="M186 46H206M186 42V50M206 42V50"/>"#)?;
            writeln!(
                svg,
                r#"<text x="212" y="51">planned again with the p50 and p90 of service times</text>"#
            )?;
        }
        for (at, panel) in self.panels.iter().enumerate() {
            let left = 16.0 + (at % 2) as f64 * (WIDTH / 2.0 - 4.0);
            let top = TOP + (at / 2) as f64 * panel_height;
            panel.draw(&mut svg, left, top)?;
        }
        writeln!(svg, "</svg>")?;
        Ok(svg)
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, left: f64, top: f64) -> anyhow::Result<()> {
        let (start, end) = (left + LABELS, left + WIDTH / 2.0 - VALUES);
        let totals = self.bars.iter().flat_map(|bar| {
            let own = bar.cost.map(|(compute, network)| compute + network);
            own.into_iter().chain(bar.others.iter().filter_map(|(_, total)| *total))
        });
        let most = totals.fold(0.0, f64::max).max(1e-9);
        let x = |value: f64| start + value / most * (end - start);
        let head = escaped(&self.title);
        writeln!(svg, r#"<text class="panel" x="{left}" y="{:.1}">{head}</text>"#, top + 14.0)?;
        let floor = top + HEAD + self.bars.len() as f64 * ROW;
        for tick in ticks(0.0, most, 4) {
            let (at, text) = (x(tick), short(tick));
            writeln!(
                svg,
                r#"<line class="grid" x1="{at:.1}" y1="{:.1}" x2="{at:.1}" y2="{floor:.1}"/>"#,
                top + HEAD - 4.0
            )?;
            writeln!(
                svg,
                r#"<text class="soft small" x="{at:.1}" y="{:.1}" text-anchor="middle">{text}</text>"#,
                floor + 14.0
            )?;
        }
        let unit = escaped(self.unit);
        writeln!(svg, r#"<text class="soft small" x="{left}" y="{:.1}">{unit}</text>"#, floor + 14.0)?;
        for (row, bar) in self.bars.iter().enumerate() {
            let middle = top + HEAD + (row as f64 + 0.5) * ROW - 2.0;
            let name = escaped(bar.name);
            writeln!(
                svg,
                r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{name}</text>"#,
                start - 8.0,
                middle + 4.0
            )?;
            bar.draw(svg, &x, middle)?;
        }
        Ok(())
    }
}

impl Bar {
    /// A row's bar.
    pub(super) fn of(row: &Row, others: Vec<(&'static str, Option<f64>)>) -> Self {
        let name =
            if row.planner.ends_with("one operator a worker") { "exact, one each" } else { row.planner };
        Self { name, cost: row.compute.zip(row.network), others, gap: row.gap }
    }

    fn draw(&self, svg: &mut String, x: &dyn Fn(f64) -> f64, middle: f64) -> anyhow::Result<()> {
        let Some((compute, network)) = self.cost else {
            cross(svg, "whisker", x(0.0) + 10.0, middle)?;
            let others: Vec<&str> =
                self.others.iter().filter(|(_, total)| total.is_some()).map(|(name, _)| *name).collect();
            let text = match others.is_empty() {
                true => "no plan".to_owned(),
                false => format!("no plan (with {} there is)", others.join(", ")),
            };
            writeln!(
                svg,
                r#"<text class="soft" x="{:.1}" y="{:.1}">{text}</text>"#,
                x(0.0) + 22.0,
                middle + 4.0
            )?;
            return Ok(());
        };
        let (zero, one, two) = (x(0.0), x(compute), x(compute + network));
        let top = middle - 7.0;
        writeln!(
            svg,
            r#"<rect class="k" x="{zero:.1}" y="{top:.1}" width="{:.1}" height="14"/>"#,
            one - zero
        )?;
        writeln!(svg, r#"<rect class="n" x="{one:.1}" y="{top:.1}" width="{:.1}" height="14"/>"#, two - one)?;
        let total = compute + network;
        let known = || self.others.iter().filter_map(|(_, total)| *total).chain([total]);
        let (low, high) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
        if high - low > 1e-9 {
            let (from, to, above, below) = (x(low), x(high), middle - 4.0, middle + 4.0);
            writeln!(
                svg,
                r#"<path class="whisker" d="M{from:.1} {middle:.1}H{to:.1}M{from:.1} {above:.1}V{below:.1}M{to:.1} {above:.1}V{below:.1}"/>"#
            )?;
        }
        let mut text = format!("{total:.2}");
        if let Some(gap) = self.gap.filter(|gap| *gap > 1e-4) {
            write!(text, " (gap {:.1} %)", 100.0 * gap)?;
        }
        for (name, _) in self.others.iter().filter(|(_, total)| total.is_none()) {
            write!(text, ", no {name}")?;
        }
        writeln!(
            svg,
            r#"<text class="small" x="{:.1}" y="{:.1}">{text}</text>"#,
            x(high.max(total)) + 6.0,
            middle + 4.0
        )?;
        Ok(())
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
