//! Panels of curves in one column, over one axis from 0, as an SVG file.
use anyhow::Context;
use std::path::Path;
use tidemill_drawing::axis::{Axis, short, ticks};
use tidemill_drawing::markup::Markup;
use tidemill_drawing::sheet::{self, Anchor, through};

/// A curve with its name.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Points from left to right.
    pub(crate) points: Vec<(f64, f64)>,
    /// Draws dots at the points and the best line through them, dashed.
    pub(crate) fitted: Option<(f64, f64)>,
}

/// Curves of one unit.
#[derive(Debug, Clone)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

/// A drawing of panels.
#[derive(Debug, Clone)]
pub(crate) struct Panels {
    pub(crate) title: String,
    /// Label of the horizontal axis.
    pub(crate) across: String,
    pub(crate) panels: Vec<Panel>,
}

const WIDTH: f64 = 720.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 44.0;
/// Height of a panel, and of its curves.
const PANEL: f64 = 190.0;
const CURVES: f64 = 130.0;
const BOTTOM: f64 = 44.0;
/// Least distance between the names of two curves.
const NAME: f64 = 14.0;

impl Panels {
    /// Writes the file.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        std::fs::write(path, self.draw()?).with_context(|| format!("cannot write {}", path.display()))
    }

    fn draw(&self) -> anyhow::Result<String> {
        let points = self.panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
        let end = points.map(|point| point.0).fold(0.0, f64::max);
        anyhow::ensure!(end > 0.0, "nothing to draw");
        let across = Axis::linear((0.0, end), (LEFT, WIDTH - RIGHT));
        let height = TOP + self.panels.len() as f64 * PANEL + BOTTOM;
        Ok(sheet::file(&self.title, (WIDTH, height), |svg| {
            for (number, panel) in self.panels.iter().enumerate() {
                panel.draw(svg, TOP + number as f64 * PANEL, &across, end);
            }
            let below = TOP + self.panels.len() as f64 * PANEL - 8.0;
            for tick in ticks(0.0, end, 8) {
                sheet::text(svg, "", (across.place(tick), below), Anchor::Middle, &short(tick));
            }
            let middle = (LEFT + WIDTH - RIGHT) / 2.0;
            sheet::text(svg, "soft", (middle, height - 16.0), Anchor::Middle, &self.across);
        }))
    }
}

impl Panel {
    fn draw(&self, svg: &mut Markup, top: f64, across: &Axis, end: f64) {
        let values = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let most = values.fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.05;
        let (ceiling, floor) = (top + 24.0, top + 24.0 + CURVES);
        let up = Axis::linear((0.0, most), (floor, ceiling));
        sheet::text(svg, "panel", (LEFT, top + 12.0), Anchor::Start, &self.title);
        for tick in ticks(0.0, most, 4) {
            let y = up.place(tick);
            sheet::line(svg, "grid", (LEFT, y), (WIDTH - RIGHT, y));
            sheet::text(svg, "small soft", (LEFT - 8.0, y + 4.0), Anchor::End, &short(tick));
        }
        sheet::line(svg, "axis", (LEFT, floor), (WIDTH - RIGHT, floor));
        // Names are placed at the ends of their curves, apart from each other.
        let mut ends: Vec<(f64, usize)> = (0..self.lines.len())
            .filter_map(|index| Some((up.place(self.lines[index].points.last()?.1), index)))
            .collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut above = f64::NEG_INFINITY;
        for (height, index) in ends {
            let (line, colour) = (&self.lines[index], index % 7);
            let places: Vec<_> =
                line.points.iter().map(|point| (across.place(point.0), up.place(point.1))).collect();
            match line.fitted {
                None => sheet::curve(svg, &format!("c{colour}"), 1.6, false, &through(&places)),
                Some((begin, slope)) => {
                    let ends = [0.0, end].map(|x| (across.place(x), up.place((begin + slope * x).max(0.0))));
                    sheet::curve(svg, &format!("c{colour}"), 1.4, true, &through(&ends));
                    places.into_iter().for_each(|at| sheet::dot(svg, &format!("f{colour}"), at, 3.5));
                }
            }
            above = (height + 4.0).max(above + NAME);
            let at = (WIDTH - RIGHT + 8.0, above);
            sheet::text(svg, &format!("f{colour} small"), at, Anchor::Start, &line.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_drawn_within_the_file() {
        let line = |name: &str, fitted| Line {
            name: name.into(),
            points: vec![(10.0, 1.0), (50.0, 5.0), (200.0, 18.0)],
            fitted,
        };
        let panel =
            Panel { title: "a < b".into(), lines: vec![line("one", None), line("two", Some((0.1, 0.09)))] };
        let panels =
            Panels { title: "title".into(), across: "size".into(), panels: vec![panel.clone(), panel] };
        let svg = panels.draw().expect("drawn");
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(svg.matches("class=\"curve").count(), 4);
        assert!(Panels { panels: Vec::new(), ..panels }.draw().is_err());
    }
}
