//! Curves over two logarithmic axes, as an SVG file of its own: no scripts, fonts or files from elsewhere.
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

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
    /// What stands below.
    pub(crate) across: String,
    /// Unit of the values.
    pub(crate) upwards: String,
    /// At most four.
    pub(crate) curves: Vec<Curve>,
}

const WIDTH: f64 = 668.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 104.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

const STYLE: &str = "\
.ground{fill:#f7f8fa}.grid{stroke:#d9dfe7}.axis{stroke:#5c6878}\
text{font-family:Inter,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif;fill:#1b2431;font-size:12px}\
.title{font-size:14px;font-weight:650}.soft{fill:#5c6878}\
.curve{fill:none;stroke-width:2}.c0{stroke:#4657c9}.c1{stroke:#8947b8}.c2{stroke:#0d8284}.c3{stroke:#8b97a8}\
.p0{fill:#4657c9}.p1{fill:#8947b8}.p2{fill:#0d8284}.p3{fill:#8b97a8}\
@media screen and (prefers-color-scheme:dark){.ground{fill:#12171e}.grid{stroke:#2c3642}.axis{stroke:#9aa7b7}\
text{fill:#e7ecf2}.soft{fill:#9aa7b7}.c0{stroke:#8c9bff}.c1{stroke:#c48cf0}.c2{stroke:#3dbab8}\
.p0{fill:#8c9bff}.p1{fill:#c48cf0}.p2{fill:#3dbab8}}";

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
        let part = |value: f64, from: f64, to: f64| {
            if to > from { (value / from).ln() / (to / from).ln() } else { 0.5 }
        };
        let x = |value: f64| LEFT + part(value, left, right) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - part(value.max(low), low, high) * (HEIGHT - TOP - BOTTOM);

        let mut svg = begin(&self.title, (WIDTH, HEIGHT), LEFT, STYLE)?;
        let mut tick = low;
        while tick <= high * 1.001 {
            let (at, end) = (y(tick), WIDTH - RIGHT);
            writeln!(svg, r#"<line class="grid" x1="{LEFT}" y1="{at:.1}" x2="{end}" y2="{at:.1}"/>"#)?;
            let (text, unit) = (written(tick), escaped(&self.upwards));
            let (beside, below) = (LEFT - 8.0, at + 4.0);
            writeln!(svg, r#"<text x="{beside}" y="{below:.1}" text-anchor="end">{text} {unit}</text>"#)?;
            tick *= 10.0;
        }
        let floor = HEIGHT - BOTTOM;
        let mut marks: Vec<f64> = points().map(|point| point.0).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        for mark in marks {
            let (at, end, text) = (x(mark), floor + 18.0, written(mark));
            writeln!(svg, r#"<text x="{at:.1}" y="{end}" text-anchor="middle">{text}</text>"#)?;
        }
        let (middle, foot) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0);
        let across = escaped(&self.across);
        writeln!(svg, r#"<text class="soft" x="{middle}" y="{foot}" text-anchor="middle">{across}</text>"#)?;
        let end = WIDTH - RIGHT;
        writeln!(svg, r#"<line class="axis" x1="{LEFT}" y1="{floor}" x2="{end}" y2="{floor}"/>"#)?;
        // Names stand at the ends of their curves, apart from each other.
        let mut ends: Vec<(f64, usize)> = (0..self.curves.len())
            .filter_map(|index| Some((y(self.curves[index].points.last()?.1), index)))
            .collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut above = f64::NEG_INFINITY;
        for (end, index) in ends {
            let curve = &self.curves[index];
            let path: Vec<String> =
                curve.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
            writeln!(svg, r#"<polyline class="curve c{index}" points="{}"/>"#, path.join(" "))?;
            for point in &curve.points {
                writeln!(
                    svg,
                    r#"<circle class="p{index}" cx="{:.1}" cy="{:.1}" r="3"/>"#,
                    x(point.0),
                    y(point.1)
                )?;
            }
            let label = (end + 4.0).max(above + 15.0);
            above = label;
            let (beside, name) = (WIDTH - RIGHT + 8.0, escaped(&curve.name));
            writeln!(svg, r#"<text class="p{index}" x="{beside}" y="{label:.1}">{name}</text>"#)?;
        }
        writeln!(svg, "</svg>")?;
        Ok(svg)
    }
}

/// The begin of a drawing of that width and height, up to its title, which stands so far from the left.
pub(crate) fn begin(
    title: &str,
    (width, height): (f64, f64),
    left: f64,
    style: &str,
) -> Result<String, std::fmt::Error> {
    let mut svg = String::new();
    let title = escaped(title);
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{title}">"#
    )?;
    writeln!(svg, "<title>{title}</title><style>{style}</style>")?;
    writeln!(svg, r#"<rect class="ground" width="100%" height="100%"/>"#)?;
    writeln!(svg, r#"<text class="title" x="{left}" y="24">{title}</text>"#)?;
    Ok(svg)
}

/// Text for XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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
        let line = svg.lines().find(|line| line.starts_with("<polyline")).expect("a curve");
        let points = line.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("points");
        for number in points.split([' ', ',']) {
            let number: f64 = number.parse().expect("a number");
            assert!((0.0..=WIDTH).contains(&number));
        }
        assert!(Plot { curves: Vec::new(), ..plot }.draw().is_err());
    }
}
