//! Curves over two logarithmic axes, as a self-contained SVG file: no external scripts, fonts or files.
use anyhow::Context;
use std::path::Path;
use tidemill_drawing::axis::Axis;
use tidemill_drawing::sheet::{self, Anchor, through};

/// A curve with its name.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Points from left to right, all values above 0.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Curve {
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), points: Vec::new() }
    }
}

/// A drawing of curves.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) title: String,
    /// Label of the horizontal axis.
    pub(crate) across: String,
    /// Unit of the values.
    pub(crate) upwards: String,
    /// At most four curves.
    pub(crate) curves: Vec<Curve>,
}

const WIDTH: f64 = 668.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 104.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Colours of the curves, by number in the drawing's style.
const COLOURS: [usize; 4] = [0, 1, 2, 5];

impl Plot {
    /// Writes the file.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        std::fs::write(path, self.draw()?).with_context(|| format!("cannot write {}", path.display()))
    }

    fn draw(&self) -> anyhow::Result<String> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let extent = |of: fn(&(f64, f64)) -> f64| {
            let values = points().map(of).filter(|value| *value > 0.0);
            values.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)))
        };
        let (left, right) = extent(|point| point.0);
        let (low, high) = extent(|point| point.1);
        anyhow::ensure!(right > 0.0 && high > 0.0, "nothing to draw");
        let low = 10f64.powf(low.log10().floor());
        let high = 10f64.powf(high.log10().ceil()).max(10.0 * low);
        let (floor, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let across = Axis::logarithmic((left, right), (LEFT, end));
        let up = Axis::logarithmic((low, high), (floor, TOP));
        let place = |point: &(f64, f64)| (across.place(point.0), up.place(point.1));
        Ok(sheet::file(&self.title, (WIDTH, HEIGHT), |svg| {
            let mut tick = low;
            while tick <= high * 1.001 {
                let at = up.place(tick);
                sheet::line(svg, "grid", (LEFT, at), (end, at));
                let named = format!("{} {}", written(tick), self.upwards);
                sheet::text(svg, "", (LEFT - 8.0, at + 4.0), Anchor::End, &named);
                tick *= 10.0;
            }
            let mut marks: Vec<f64> = points().map(|point| point.0).collect();
            marks.sort_by(f64::total_cmp);
            marks.dedup();
            for mark in marks {
                let at = (across.place(mark), floor + 18.0);
                sheet::text(svg, "", at, Anchor::Middle, &written(mark));
            }
            sheet::text(svg, "soft", ((LEFT + end) / 2.0, HEIGHT - 14.0), Anchor::Middle, &self.across);
            sheet::line(svg, "axis", (LEFT, floor), (end, floor));
            // Names are placed at the ends of their curves, apart from each other.
            let mut ends: Vec<(f64, usize)> = (0..self.curves.len())
                .filter_map(|index| Some((up.place(self.curves[index].points.last()?.1), index)))
                .collect();
            ends.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut above = f64::NEG_INFINITY;
            for (height, index) in ends {
                let (curve, colour) = (&self.curves[index], COLOURS[index % COLOURS.len()]);
                let places: Vec<(f64, f64)> = curve.points.iter().map(place).collect();
                sheet::curve(svg, &format!("c{colour}"), 2.0, false, &through(&places));
                let fill = format!("f{colour}");
                places.into_iter().for_each(|at| sheet::dot(svg, &fill, at, 3.0));
                above = (height + 4.0).max(above + 15.0);
                sheet::text(svg, &fill, (end + 8.0, above), Anchor::Start, &curve.name);
            }
        }))
    }
}

fn written(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { format!("{value}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_stay_within_the_frame() {
        let points = vec![(3.0, 0.4), (6.0, 12.0), (100.0, 9000.0)];
        let plot = Plot {
            title: "a < b".into(),
            across: "size".into(),
            upwards: "ms".into(),
            curves: vec![Curve { name: "one".into(), points }],
        };
        let svg = plot.draw().expect("drawn");
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
        let line = svg.lines().find(|line| line.contains("class=\"curve")).expect("a curve");
        let points = line.split(" d=\"M").nth(1).and_then(|rest| rest.split('"').next()).expect("points");
        for number in points.split([' ', 'L']) {
            let number: f64 = number.parse().expect("a number");
            assert!((0.0..=WIDTH).contains(&number));
        }
        assert!(Plot { curves: Vec::new(), ..plot }.draw().is_err());
    }
}
