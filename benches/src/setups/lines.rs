//! Costs as lines over what is varied, panels beside each other with one legend.
use super::drawing::{begin, cross, short, ticks};
use crate::plot::escaped;
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

/// A drawing of panels beside each other.
pub(super) struct Lines {
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
}

/// Lines with one scale.
pub(super) struct Panel {
    pub(super) title: String,
    /// What stands below.
    pub(super) across: String,
    /// Unit of the costs.
    pub(super) unit: &'static str,
    pub(super) lines: Vec<Line>,
    /// Points where the plan changes.
    pub(super) changes: Vec<(f64, f64)>,
}

/// One planner's cost; the same names in all panels.
pub(super) struct Line {
    pub(super) name: String,
    /// Which colour, 0 to 6.
    pub(super) colour: usize,
    pub(super) dashed: bool,
    /// From left to right; no cost: no plan.
    pub(super) points: Vec<(f64, Option<f64>)>,
}

const WIDTH: f64 = 820.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const HEIGHT: f64 = 250.0;
const ENTRY: f64 = 200.0;

impl Lines {
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.draw()?).with_context(|| format!("cannot write {}", path.display()))
    }

    fn draw(&self) -> anyhow::Result<String> {
        let first = self.panels.first().context("nothing to draw")?;
        let mut entries: Vec<(&str, usize, bool)> =
            first.lines.iter().map(|line| (line.name.as_str(), line.colour, line.dashed)).collect();
        entries.dedup();
        let crossed = self.panels.iter().flat_map(|panel| &panel.lines).any(Line::ends_early);
        let changed = self.panels.iter().any(|panel| !panel.changes.is_empty());
        let rows = (entries.len() + usize::from(crossed) + usize::from(changed)).div_ceil(4);
        let top = 44.0 + rows as f64 * 18.0 + 12.0;
        let mut svg = begin(&self.title, WIDTH, top + 24.0 + HEIGHT + 46.0)?;
        let place = |at: usize| (16.0 + (at % 4) as f64 * ENTRY, 46.0 + (at / 4) as f64 * 18.0);
        for (at, (name, colour, dashed)) in entries.iter().enumerate() {
            let (x, y) = place(at);
            let dash = if *dashed { r#" stroke-dasharray="6 4""# } else { "" };
            let width = thickness(*colour);
            writeln!(
                svg,
                r#"<line class="c{colour}" stroke-width="{width}" x1="{x}" y1="{y}" x2="{:.1}" y2="{y}"{dash}/>"#,
                x + 22.0
            )?;
            let name = match self.has_plans(name) {
                true => escaped(name),
                false => format!("{}: no plan", escaped(name)),
            };
            writeln!(svg, r#"<text class="small" x="{:.1}" y="{:.1}">{name}</text>"#, x + 28.0, y + 4.0)?;
        }
        let mut at = entries.len();
        if crossed {
            let (x, y) = place(at);
            cross(&mut svg, "whisker", x + 11.0, y)?;
            writeln!(
                svg,
                r#"<text class="small" x="{:.1}" y="{:.1}">no plan beyond</text>"#,
                x + 28.0,
                y + 4.0
            )?;
            at += 1;
        }
        if changed {
            let (x, y) = place(at);
            writeln!(svg, r#"<circle class="change" cx="{:.1}" cy="{y}" r="3.5"/>"#, x + 11.0)?;
            writeln!(
                svg,
                r#"<text class="small" x="{:.1}" y="{:.1}">exact's plan changes</text>"#,
                x + 28.0,
                y + 4.0
            )?;
        }
        let width = WIDTH / self.panels.len() as f64;
        for (at, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut svg, at as f64 * width, width, top)?;
        }
        writeln!(svg, "</svg>")?;
        Ok(svg)
    }
}

impl Lines {
    /// Whether any line of that name has a plan.
    fn has_plans(&self, name: &str) -> bool {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines).filter(|line| line.name == name);
        lines.flat_map(|line| &line.points).any(|(_, cost)| cost.is_some())
    }
}

/// Later lines lie on top: earlier ones are thicker, so that they are seen where costs are equal.
fn thickness(colour: usize) -> f64 {
    [1.8, 2.2, 5.0, 2.6, 2.6, 3.4, 6.5][colour.min(6)]
}

impl Line {
    /// Whether there is a plan on the left and none further right.
    fn ends_early(&self) -> bool {
        self.points.windows(2).any(|two| two[0].1.is_some() && two[1].1.is_none())
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, begin: f64, width: f64, top: f64) -> anyhow::Result<()> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (from, to) = points()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
        let most = points().filter_map(|(_, y)| *y).fold(0.0, f64::max);
        anyhow::ensure!(to > from && most > 0.0, "nothing to draw in {}", self.title);
        let (left, right) = (begin + LEFT, begin + width - RIGHT);
        let (ceiling, floor) = (top + 24.0, top + 24.0 + HEIGHT);
        let x = |value: f64| left + (value - from) / (to - from) * (right - left);
        let y = |value: f64| floor - value / (1.04 * most) * HEIGHT;
        let head = escaped(&self.title);
        writeln!(svg, r#"<text class="panel" x="{left:.1}" y="{:.1}">{head}</text>"#, top + 12.0)?;
        let (unit, beside) = (escaped(self.unit), right);
        writeln!(
            svg,
            r#"<text class="soft small" x="{beside:.1}" y="{:.1}" text-anchor="end">{unit}</text>"#,
            top + 12.0
        )?;
        for tick in ticks(0.0, 1.04 * most, 5) {
            let (at, text) = (y(tick), short(tick));
            writeln!(
                svg,
                r#"<line class="grid" x1="{left:.1}" y1="{at:.1}" x2="{right:.1}" y2="{at:.1}"/>"#
            )?;
            writeln!(
                svg,
                r#"<text class="small" x="{:.1}" y="{:.1}" text-anchor="end">{text}</text>"#,
                left - 6.0,
                at + 4.0
            )?;
        }
        for tick in ticks(from, to, 6) {
            let (at, text) = (x(tick), short(tick));
            writeln!(
                svg,
                r#"<line class="axis" x1="{at:.1}" y1="{floor:.1}" x2="{at:.1}" y2="{:.1}"/>"#,
                floor + 4.0
            )?;
            writeln!(
                svg,
                r#"<text class="small" x="{at:.1}" y="{:.1}" text-anchor="middle">{text}</text>"#,
                floor + 17.0
            )?;
        }
        let (middle, across) = ((left + right) / 2.0, escaped(&self.across));
        writeln!(
            svg,
            r#"<text class="soft small" x="{middle:.1}" y="{:.1}" text-anchor="middle">{across}</text>"#,
            floor + 34.0
        )?;
        writeln!(svg, r#"<path class="axis" d="M{left:.1} {ceiling:.1}V{floor:.1}H{right:.1}"/>"#)?;
        for line in self.lines.iter().rev() {
            line.draw(svg, &x, &y)?;
        }
        for (at, cost) in &self.changes {
            writeln!(svg, r#"<circle class="change" cx="{:.1}" cy="{:.1}" r="3.5"/>"#, x(*at), y(*cost))?;
        }
        Ok(())
    }
}

impl Line {
    fn draw(&self, svg: &mut String, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) -> std::fmt::Result {
        let (colour, dash) = (self.colour, if self.dashed { r#" stroke-dasharray="6 4""# } else { "" });
        for run in self.points.split(|(_, cost)| cost.is_none()) {
            let places: Vec<(f64, f64)> =
                run.iter().filter_map(|(at, cost)| Some((x(*at), y((*cost)?)))).collect();
            match places.as_slice() {
                [] => {}
                [(at, cost)] => {
                    writeln!(svg, r#"<circle class="f{colour}" cx="{at:.1}" cy="{cost:.1}" r="3"/>"#)?;
                }
                places => {
                    let path: Vec<String> =
                        places.iter().map(|(at, cost)| format!("{at:.1},{cost:.1}")).collect();
                    let width = thickness(colour);
                    writeln!(
                        svg,
                        r#"<polyline class="curve c{colour}" stroke-width="{width}" points="{}"{dash}/>"#,
                        path.join(" ")
                    )?;
                }
            }
        }
        for two in self.points.windows(2) {
            if let [(at, Some(cost)), (_, None)] = two {
                cross(svg, &format!("c{colour}"), x(*at), y(*cost))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_with_a_cross_where_plans_end() {
        let line =
            |points: Vec<(f64, Option<f64>)>| Line { name: "exact".into(), colour: 0, dashed: false, points };
        let panel = |points| Panel {
            title: "rates".into(),
            across: "per second".into(),
            unit: "$/h",
            lines: vec![line(points)],
            changes: vec![(2.0, 4.0)],
        };
        let draw = |points| Lines { title: "t".into(), panels: vec![panel(points)] }.draw().expect("drawn");
        let whole = draw(vec![(1.0, Some(1.0)), (2.0, Some(4.0)), (3.0, Some(9.0))]);
        assert!(!whole.contains("no plan") && !whole.contains("NaN") && whole.contains("plan changes"));
        let ending = draw(vec![(1.0, Some(1.0)), (2.0, Some(4.0)), (3.0, None)]);
        assert!(ending.contains("no plan beyond") && ending.contains(r#"<path class="mark c0""#));
        let line = ending.lines().find(|line| line.starts_with("<polyline")).expect("a line");
        assert_eq!(line.matches(',').count(), 2, "{line}");
    }
}
