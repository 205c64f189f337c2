//! Cost against accuracy as steps: up to a point's accuracy its plan is the cheapest.
use tidemill_drawing::axis::{Axis, decades, short, ticks};
use tidemill_drawing::markup::{Attribute, Markup, Short};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 380.0;
/// Room around the plot: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 24.0, 48.0, 50.0);
/// Room on the right if the curves have names.
const NAMES: f64 = 128.0;
/// Most curves with colours of their own.
pub(super) const MOST_CURVES: usize = 6;
/// From the first curve to the last; one alone has the blue.
const COLOURS: [&str; MOST_CURVES] = ["#b91c1c", "#d97706", "#65a30d", "#0d9488", "#2563eb", "#6b21a8"];
const ALONE: &str = "#2563eb";
/// Distance between two names.
const LINE: f64 = 18.0;
/// Ratio from which costs are drawn logarithmically.
const MANY_TIMES: f64 = 12.0;

/// A curve.
pub(super) struct Curve {
    /// Its label; empty if it is the only one.
    pub(super) name: String,
    /// Accuracy in percent and cost in $/h, the least accurate first.
    pub(super) points: Vec<(f64, f64)>,
}

/// Scale of costs: linear, or logarithmic if the most expensive is many times the cheapest.
struct Scale {
    least: f64,
    most: f64,
    is_logarithmic: bool,
}

impl Scale {
    fn of(costs: impl Iterator<Item = f64> + Clone) -> Self {
        let most = costs.clone().fold(f64::MIN_POSITIVE, f64::max);
        let least = costs.filter(|cost| *cost > 0.0).fold(most, f64::min);
        match most / least > MANY_TIMES {
            true => Self { least: least / 1.5, most: most * 1.3, is_logarithmic: true },
            false => Self { least: 0.0, most: most * 1.05, is_logarithmic: false },
        }
    }

    fn height(&self, cost: f64) -> f64 {
        let (_, _, top, bottom) = MARGIN;
        let (values, places) = ((self.least, self.most), (HEIGHT - bottom, top));
        match self.is_logarithmic {
            true => Axis::logarithmic(values, places).place(cost),
            false => Axis::linear(values, places).place(cost),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.is_logarithmic {
            return ticks(0.0, self.most, 5);
        }
        decades(self.least, self.most)
    }
}

/// Returns the drawing; `names` is the title of the curves' names, if they have some.
pub(super) fn drawn(heading: &str, names: Option<&str>, curves: &[Curve]) -> String {
    let (left, right, top, bottom) = MARGIN;
    let right = if names.is_some() { NAMES } else { right };
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let accuracies = || points().map(|(accuracy, _)| *accuracy);
    let (low, high) = (accuracies().fold(f64::INFINITY, f64::min), accuracies().fold(0.0, f64::max));
    let pad = ((high - low) * 0.05).max(0.1);
    let (low, high) = (low - pad, high + pad);
    let scale = Scale::of(points().map(|(_, cost)| *cost));
    let across = Axis::linear((low, high), (left, WIDTH - right));
    let x = |accuracy: f64| across.place(accuracy);
    let mut markup = Markup::new();
    let view = format!("0 0 {WIDTH} {HEIGHT}");
    let attributes: [Attribute<'_>; 5] = [
        ("xmlns", &"http://www.w3.org/2000/svg"),
        ("viewBox", &view),
        ("font-family", &"system-ui, sans-serif"),
        ("font-size", &"12"),
        ("fill", &"#1f2937"),
    ];
    markup.element("svg", &attributes, |svg| {
        svg.empty("rect", &[("width", &WIDTH), ("height", &HEIGHT), ("fill", &"#ffffff")]);
        svg.leaf("text", &[("x", &16.0), ("y", &20.0), ("font-weight", &"600")], heading);
        let (floor, end) = (HEIGHT - bottom, WIDTH - right);
        for cost in scale.ticks() {
            let height = Short(scale.height(cost));
            let line: [Attribute<'_>; 5] =
                [("x1", &left), ("y1", &height), ("x2", &end), ("y2", &height), ("stroke", &"#e5e7eb")];
            svg.empty("line", &line);
            let at: [Attribute<'_>; 3] =
                [("x", &(left - 6.0)), ("y", &Short(scale.height(cost) + 4.0)), ("text-anchor", &"end")];
            svg.leaf("text", &at, &short(cost));
        }
        for accuracy in ticks(low, high, 5) {
            let across = Short(x(accuracy));
            let line: [Attribute<'_>; 5] =
                [("x1", &across), ("y1", &top), ("x2", &across), ("y2", &floor), ("stroke", &"#f3f4f6")];
            svg.empty("line", &line);
            let at: [Attribute<'_>; 3] = [("x", &across), ("y", &(floor + 18.0)), ("text-anchor", &"middle")];
            svg.leaf("text", &at, &short(accuracy));
        }
        let axis: [Attribute<'_>; 5] =
            [("x1", &left), ("y1", &floor), ("x2", &end), ("y2", &floor), ("stroke", &"#9ca3af")];
        svg.empty("line", &axis);
        let unit = if scale.is_logarithmic { "$/h, each step a factor" } else { "$/h" };
        svg.leaf("text", &[("x", &16.0), ("y", &(top - 6.0))], unit);
        let middle: [Attribute<'_>; 3] =
            [("x", &((left + end) / 2.0)), ("y", &(HEIGHT - 10.0)), ("text-anchor", &"middle")];
        svg.leaf("text", &middle, "accuracy in percent, at least");
        let column = end + 16.0;
        if let Some(names) = names {
            svg.leaf("text", &[("x", &column), ("y", &(top + 10.0)), ("font-weight", &"600")], names);
        }
        // The last first and widest, so that an equally expensive one before it is drawn over it and both are visible.
        for (at, curve) in curves.iter().enumerate().rev() {
            let (colour, width) = match curves.len() {
                1 => (ALONE, 2.0),
                count => (COLOURS[at * (MOST_CURVES - 1) / (count - 1)], 1.6 + 1.2 * at as f64),
            };
            draw(svg, curve, (colour, width), &x, &scale);
            if names.is_none() {
                continue;
            }
            let height = top + 32.0 + LINE * at as f64;
            let (from, to, middle) = (column, column + 22.0, height - 4.0);
            let swatch: [Attribute<'_>; 6] = [
                ("x1", &from),
                ("y1", &middle),
                ("x2", &to),
                ("y2", &middle),
                ("stroke", &colour),
                ("stroke-width", &Short(width)),
            ];
            svg.empty("line", &swatch);
            svg.leaf("text", &[("x", &(to + 8.0)), ("y", &height)], &curve.name);
        }
    });
    markup.finish()
}

/// Steps: up to a point's accuracy its plan is the cheapest.
fn draw(
    svg: &mut Markup,
    curve: &Curve,
    (colour, width): (&str, f64),
    x: &dyn Fn(f64) -> f64,
    scale: &Scale,
) {
    let mut path = format!("M{}", Short(MARGIN.0));
    for (index, &(accuracy, cost)) in curve.points.iter().enumerate() {
        let (across, height) = (Short(x(accuracy)), Short(scale.height(cost)));
        match index {
            0 => path.push_str(&format!(" {height}H{across}")),
            _ => path.push_str(&format!("V{height}H{across}")),
        }
    }
    let line: [Attribute<'_>; 4] =
        [("d", &path), ("fill", &"none"), ("stroke", &colour), ("stroke-width", &Short(width))];
    svg.empty("path", &line);
    for &(accuracy, cost) in &curve.points {
        let (cx, cy) = (Short(x(accuracy)), Short(scale.height(cost)));
        let radius = Short(2.0 + width / 2.0);
        svg.empty("circle", &[("cx", &cx), ("cy", &cy), ("r", &radius), ("fill", &colour)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_far_apart_are_seen_on_a_scale_of_factors() {
        let even = Scale::of([5.0, 20.0].into_iter());
        assert_eq!((even.is_logarithmic, even.ticks()), (false, vec![0.0, 5.0, 10.0, 15.0, 20.0]));
        let factors = Scale::of([0.006, 0.75].into_iter());
        assert!(factors.is_logarithmic);
        assert_eq!(factors.ticks(), [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]);
        assert!(factors.height(0.006) > factors.height(0.75));
        assert!(factors.height(0.0).is_finite(), "a plan may cost nothing");
    }

    /// Labels stand at the lines of the grid, and points where the scales have them.
    #[test]
    fn labels_stand_where_their_values_are() {
        let points = vec![(70.0, 0.1), (80.0, 0.2), (90.0, 0.4)];
        let text = drawn("front", None, &[Curve { name: String::new(), points }]);
        let document = roxmltree::Document::parse(&text).unwrap();
        let all = |name: &'static str| document.descendants().filter(move |node| node.has_tag_name(name));
        let number =
            |node: roxmltree::Node<'_, '_>, key: &str| node.attribute(key).unwrap().parse::<f64>().unwrap();
        let circles: Vec<f64> = all("circle").map(|circle| number(circle, "cx")).collect();
        let label = |text: &str| {
            let found = all("text")
                .find(|node| node.text() == Some(text) && node.attribute("text-anchor") == Some("middle"));
            number(found.unwrap_or_else(|| panic!("no label {text}")), "x")
        };
        assert_eq!(circles, [label("70"), label("80"), label("90")]);
        let grid = all("line").filter(|line| line.attribute("stroke") == Some("#f3f4f6"));
        let grid: Vec<f64> = grid.map(|line| number(line, "x1")).collect();
        assert!(circles.iter().all(|circle| grid.contains(circle)), "{grid:?}");
    }
}
