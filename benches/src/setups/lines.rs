//! Costs as lines over a varied value, in panels side by side with one legend.
use anyhow::Context;
use std::path::Path;
use tidemill_drawing::axis::{Axis, short, ticks};
use tidemill_drawing::markup::Markup;
use tidemill_drawing::sheet::{self, Anchor, through};

/// A drawing of panels side by side.
pub(super) struct Lines {
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
}

/// Lines with one scale.
pub(super) struct Panel {
    pub(super) title: String,
    /// Label of the horizontal axis.
    pub(super) across: String,
    /// Unit of the costs.
    pub(super) unit: &'static str,
    pub(super) lines: Vec<Line>,
    /// Points where the plan changes.
    pub(super) changes: Vec<(f64, f64)>,
}

/// One planner's cost; all panels have the same names.
pub(super) struct Line {
    pub(super) name: String,
    /// Number of the colour, 0 to 6.
    pub(super) colour: usize,
    pub(super) dashed: bool,
    /// Points from left to right; no cost: no plan.
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
        self.panels.iter().try_for_each(Panel::check)?;
        let place = |at: usize| (16.0 + (at % 4) as f64 * ENTRY, 46.0 + (at / 4) as f64 * 18.0);
        Ok(sheet::file(&self.title, (WIDTH, top + 24.0 + HEIGHT + 46.0), |svg| {
            let name = |svg: &mut Markup, (x, y): (f64, f64), name: &str| {
                sheet::text(svg, "small", (x + 28.0, y + 4.0), Anchor::Start, name);
            };
            for (at, (of, colour, dashed)) in entries.iter().enumerate() {
                let (x, y) = place(at);
                let swatch = through(&[(x, y), (x + 22.0, y)]);
                sheet::curve(svg, &format!("c{colour}"), thickness(*colour), *dashed, &swatch);
                let none = if self.has_plans(of) { "" } else { ": no plan" };
                name(svg, (x, y), &format!("{of}{none}"));
            }
            let mut at = entries.len();
            if crossed {
                let (x, y) = place(at);
                sheet::cross(svg, "whisker", (x + 11.0, y));
                name(svg, (x, y), "no plan beyond");
                at += 1;
            }
            if changed {
                let (x, y) = place(at);
                sheet::dot(svg, "change", (x + 11.0, y), 3.5);
                name(svg, (x, y), "exact's plan changes");
            }
            let width = WIDTH / self.panels.len() as f64;
            for (at, panel) in self.panels.iter().enumerate() {
                panel.draw(svg, at as f64 * width, width, top);
            }
        }))
    }
}

impl Lines {
    /// Whether any line of that name has a plan.
    fn has_plans(&self, name: &str) -> bool {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines).filter(|line| line.name == name);
        lines.flat_map(|line| &line.points).any(|(_, cost)| cost.is_some())
    }
}

/// Later lines lie on top: earlier ones are thicker, so that they stay visible where costs are equal.
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
    fn points(&self) -> impl Iterator<Item = &(f64, Option<f64>)> {
        self.lines.iter().flat_map(|line| &line.points)
    }

    /// Returns the range of the varied value, and the highest cost.
    fn extent(&self) -> ((f64, f64), f64) {
        let range = self
            .points()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
        (range, self.points().filter_map(|(_, y)| *y).fold(0.0, f64::max))
    }

    fn check(&self) -> anyhow::Result<()> {
        let ((from, to), most) = self.extent();
        anyhow::ensure!(to > from && most > 0.0, "nothing to draw in {}", self.title);
        Ok(())
    }

    fn draw(&self, svg: &mut Markup, begin: f64, width: f64, top: f64) {
        let ((from, to), most) = self.extent();
        let (left, right) = (begin + LEFT, begin + width - RIGHT);
        let (ceiling, floor) = (top + 24.0, top + 24.0 + HEIGHT);
        let x = Axis::linear((from, to), (left, right));
        let y = Axis::linear((0.0, 1.04 * most), (floor, ceiling));
        sheet::text(svg, "panel", (left, top + 12.0), Anchor::Start, &self.title);
        sheet::text(svg, "soft small", (right, top + 12.0), Anchor::End, self.unit);
        for tick in ticks(0.0, 1.04 * most, 5) {
            let at = y.place(tick);
            sheet::line(svg, "grid", (left, at), (right, at));
            sheet::text(svg, "small", (left - 6.0, at + 4.0), Anchor::End, &short(tick));
        }
        for tick in ticks(from, to, 6) {
            let at = x.place(tick);
            sheet::line(svg, "axis", (at, floor), (at, floor + 4.0));
            sheet::text(svg, "small", (at, floor + 17.0), Anchor::Middle, &short(tick));
        }
        sheet::text(svg, "soft small", ((left + right) / 2.0, floor + 34.0), Anchor::Middle, &self.across);
        sheet::path(svg, "axis", &through(&[(left, ceiling), (left, floor), (right, floor)]));
        for line in self.lines.iter().rev() {
            line.draw(svg, &x, &y);
        }
        for (at, cost) in &self.changes {
            sheet::dot(svg, "change", (x.place(*at), y.place(*cost)), 3.5);
        }
    }
}

impl Line {
    fn draw(&self, svg: &mut Markup, x: &Axis, y: &Axis) {
        let colour = self.colour;
        for run in self.points.split(|(_, cost)| cost.is_none()) {
            let places: Vec<(f64, f64)> =
                run.iter().filter_map(|(at, cost)| Some((x.place(*at), y.place((*cost)?)))).collect();
            match places.as_slice() {
                [] => {}
                [place] => sheet::dot(svg, &format!("f{colour}"), *place, 3.0),
                places => {
                    let class = format!("c{colour}");
                    sheet::curve(svg, &class, thickness(colour), self.dashed, &through(places));
                }
            }
        }
        for two in self.points.windows(2) {
            if let [(at, Some(cost)), (_, None)] = two {
                sheet::cross(svg, &format!("c{colour}"), (x.place(*at), y.place(*cost)));
            }
        }
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
        // The swatch of the legend is the first.
        let line = ending.lines().filter(|line| line.contains("class=\"curve")).nth(1).expect("a line");
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (1, 1), "{line}");
    }
}
