//! Curves, as SVG in a page: axes, grid, a line for a limit. Colours are the page's.
use crate::axis::{self, Axis, round_up};
use crate::markup::{Attribute, Markup, Short};
use crate::sheet::{self, through};

/// Scale of the values over the height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0, or from the least negative value.
    Linear,
    /// Equal steps for equal factors.
    Logarithmic,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
    /// Number of the page's colour, 1 to 8.
    pub colour: usize,
    /// Whether the area below is filled.
    pub filled: bool,
}

/// A chart.
pub struct Chart<'a> {
    /// Its description for screen readers.
    pub title: &'a str,
    /// Left and right end.
    pub across: (f64, f64),
    /// Labelled places below.
    pub marks: Vec<(f64, String)>,
    /// Scale of the values.
    pub scale: Scale,
    /// Formats a value.
    pub written: fn(f64) -> String,
    /// Lines.
    pub curves: Vec<Curve>,
    /// A labelled limit.
    pub limit: Option<(f64, String)>,
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 30.0;
/// Width of a letter of the limit's label, where text is largest.
const LETTER: f64 = 8.0;

impl Chart<'_> {
    /// Draws it. An empty chart says that it has no points.
    pub fn draw(&self, markup: &mut Markup) {
        let view = format!("0 0 {WIDTH} {HEIGHT}");
        let attributes: [Attribute<'_>; 4] =
            [("class", &"chart"), ("viewBox", &view), ("role", &"img"), ("aria-label", &self.title)];
        markup.element("svg", &attributes, |svg| {
            let values = self.curves.iter().flat_map(|curve| curve.points.iter().map(|(_, y)| *y));
            let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
            if values.is_empty() {
                let at: [Attribute<'_>; 3] =
                    [("x", &(WIDTH / 2.0)), ("y", &(HEIGHT / 2.0)), ("text-anchor", &"middle")];
                svg.leaf("text", &at, "nothing was measured");
                return;
            }
            let (low, high, ticks) = self.ticks(&values);
            let across = Axis::linear(self.across, (LEFT, WIDTH - RIGHT));
            let places = (HEIGHT - BOTTOM, TOP);
            let up = match self.scale {
                Scale::Linear => Axis::linear((low, high), places),
                Scale::Logarithmic => Axis::logarithmic((low, high), places),
            };
            let (place_x, place_y) = (|x: f64| across.place(x), |y: f64| up.place(y));
            for tick in ticks {
                let y = place_y(tick);
                sheet::line(svg, "grid", (LEFT, y), (WIDTH - RIGHT, y));
                let at: [Attribute<'_>; 3] =
                    [("x", &Short(LEFT - 8.0)), ("y", &Short(y + 4.0)), ("text-anchor", &"end")];
                svg.leaf("text", &at, &(self.written)(tick));
            }
            sheet::line(svg, "axis", (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM));
            let floor = match self.scale {
                Scale::Linear => place_y(0.0),
                Scale::Logarithmic => HEIGHT - BOTTOM,
            };
            if low < 0.0 {
                sheet::line(svg, "axis", (LEFT, floor), (WIDTH - RIGHT, floor));
            }
            for (x, name) in &self.marks {
                let x = place_x(*x);
                sheet::line(svg, "axis", (x, HEIGHT - BOTTOM), (x, HEIGHT - BOTTOM + 4.0));
                let anchor = if x > WIDTH - RIGHT - 16.0 { "end" } else { "middle" };
                let at: [Attribute<'_>; 3] =
                    [("x", &Short(x)), ("y", &Short(HEIGHT - BOTTOM + 19.0)), ("text-anchor", &anchor)];
                svg.leaf("text", &at, name);
            }
            for curve in &self.curves {
                draw_curve(svg, curve, floor, &place_x, &place_y);
            }
            if let Some((value, name)) = &self.limit
                && (low..=high).contains(value)
            {
                let y = place_y(*value);
                sheet::line(svg, "limit-line", (LEFT, y), (WIDTH - RIGHT, y));
                let (x, below, anchor) = self.place_of_name(name, y, &place_x, &place_y);
                let at: [Attribute<'_>; 4] = [
                    ("class", &"limit"),
                    ("x", &Short(x)),
                    ("y", &Short(y + below)),
                    ("text-anchor", &anchor),
                ];
                svg.leaf("text", &at, name);
            }
        });
    }

    /// Place for the label of the limit at height `y` that hides least of the curves: x, distance below the limit, and
    /// the anchored end of the text.
    fn place_of_name(
        &self,
        name: &str,
        y: f64,
        place_x: &dyn Fn(f64) -> f64,
        place_y: &dyn Fn(f64) -> f64,
    ) -> (f64, f64, &'static str) {
        let length = name.chars().count() as f64 * LETTER;
        let mut places = Vec::new();
        for (x, anchor, from) in [
            (WIDTH - RIGHT, "end", WIDTH - RIGHT - length),
            (LEFT + 6.0, "start", LEFT + 6.0),
            ((LEFT + WIDTH - RIGHT) / 2.0, "middle", (LEFT + WIDTH - RIGHT - length) / 2.0),
        ] {
            for below in [-6.0, 15.0] {
                let (top, bottom) = (y + below - 12.0, y + below + 4.0);
                let inside =
                    |x: f64, y: f64| (from..=from + length).contains(&x) && (top..=bottom).contains(&y);
                let hidden: usize = self
                    .curves
                    .iter()
                    .map(|curve| {
                        let points: Vec<_> =
                            curve.points.iter().map(|(x, y)| (place_x(*x), place_y(*y))).collect();
                        // The line between two points is straight, so a few places on it are enough.
                        let between = points.windows(2).flat_map(|pair| {
                            let ((x, y), (to_x, to_y)) = (pair[0], pair[1]);
                            (0..8)
                                .map(move |n| f64::from(n) / 8.0)
                                .map(move |part| (x + part * (to_x - x), y + part * (to_y - y)))
                        });
                        between.filter(|(x, y)| inside(*x, *y)).count()
                    })
                    .sum();
                if top >= 0.0 && bottom <= HEIGHT - BOTTOM {
                    places.push((hidden, (x, below, anchor)));
                }
            }
        }
        let best = places.into_iter().min_by_key(|(hidden, _)| *hidden);
        best.map_or((WIDTH - RIGHT, -6.0, "end"), |(_, place)| place)
    }

    /// The lowest and the highest value drawn, and the values with a grid line.
    fn ticks(&self, values: &[f64]) -> (f64, f64, Vec<f64>) {
        let limit = self.limit.as_ref().map(|(value, _)| *value);
        let most = values.iter().copied().fold(0.0, f64::max);
        match self.scale {
            Scale::Linear => {
                // A limit far above would flatten everything else; the text next to the chart states it.
                let most = most.max(limit.filter(|limit| *limit <= 4.0 * most).unwrap_or(0.0));
                let least = values.iter().copied().fold(0.0, f64::min);
                let step = round_up((most / 4.0 - least / 4.0).max(2.5e-10));
                let steps = |value: f64| (value / step * 1.02).ceil() as i32;
                let below = steps(-least);
                let above = steps(most).max(if below > 0 { 0 } else { 1 });
                let value = |n: i32| f64::from(n) * step;
                (value(-below), value(above), (-below..=above).map(value).collect())
            }
            Scale::Logarithmic => {
                let positive = values.iter().copied().filter(|value| *value > 0.0);
                let least = positive.chain(limit).fold(f64::INFINITY, f64::min).clamp(1e-6, 1e9);
                let high = round_up(most.max(limit.unwrap_or(0.0)) * 1.05).max(least * 2.0);
                let low = 1.0 / round_up(1.0 / least);
                let mut ticks = axis::decades(low, high);
                if ticks.len() > 8 {
                    ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-6);
                }
                (low, high, ticks)
            }
        }
    }
}

/// Returns the labelled places on an axis of seconds.
pub fn time_marks(seconds: f64) -> Vec<(f64, String)> {
    let steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0];
    let longer = [60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14_400.0, 43_200.0, 86_400.0];
    let step = steps.into_iter().chain(longer).find(|step| seconds / step <= 6.0).unwrap_or(seconds / 5.0);
    let count = (seconds / step).floor() as usize;
    let name = |at: f64| match step {
        _ if at == 0.0 => "0".to_owned(),
        short if short < 1.0 && seconds < 1.0 => format!("{:.0} ms", at * 1e3),
        short if short < 1.0 => format!("{at:.1} s"),
        middle if middle < 60.0 => format!("{at:.0} s"),
        long if long < 3600.0 => format!("{:.0} min", at / 60.0),
        _ => format!("{:.0} h", at / 3600.0),
    };
    (0..=count).map(|n| n as f64 * step).map(|at| (at, name(at))).collect()
}

/// Draws a curve; `floor` is the lower end of the filled area.
fn draw_curve(
    svg: &mut Markup,
    curve: &Curve,
    floor: f64,
    place_x: &dyn Fn(f64) -> f64,
    place_y: &dyn Fn(f64) -> f64,
) {
    let points: Vec<(f64, f64)> =
        curve.points.iter().filter(|(_, y)| y.is_finite()).map(|(x, y)| (place_x(*x), place_y(*y))).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    if points.len() == 1 {
        let class = format!("f{}", curve.colour);
        svg.empty(
            "circle",
            &[("class", &class), ("cx", &Short(first.0)), ("cy", &Short(first.1)), ("r", &3.5)],
        );
        return;
    }
    let path = through(&points);
    if curve.filled {
        let floor = Short(floor);
        let area = format!("{path}L{} {floor}L{} {floor}Z", Short(last.0), Short(first.0));
        svg.empty("path", &[("class", &format!("area f{}", curve.colour)), ("d", &area)]);
    }
    svg.empty("path", &[("class", &format!("curve s{}", curve.colour)), ("d", &path)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chart(points: Vec<(f64, f64)>, scale: Scale, limit: Option<f64>) -> Chart<'static> {
        let across = (points.first().map_or(0.0, |p| p.0), points.last().map_or(1.0, |p| p.0));
        Chart {
            title: "a <test>",
            across,
            marks: time_marks(across.1 - across.0),
            scale,
            written: |value| format!("{value:.1}"),
            curves: vec![Curve { points, colour: 1, filled: true }],
            limit: limit.map(|limit| (limit, "limit".to_owned())),
        }
    }

    proptest! {
        #[test]
        fn everything_is_within_the_frame(
            values in prop::collection::vec(0.0f64..1e7, 0..40), below in 0.0f64..2e7, log in any::<bool>(),
            limit in prop::option::of(0.001f64..1e6)
        ) {
            // All above 0, some below it, all below it.
            let values = values.iter().map(|value| value - (below - 5e6).max(0.0)).collect::<Vec<_>>();
            let points = values.iter().enumerate().map(|(n, value)| (n as f64, *value)).collect();
            let scale = if log { Scale::Logarithmic } else { Scale::Linear };
            let mut markup = Markup::new();
            chart(points, scale, limit).draw(&mut markup);
            let text = markup.finish();
            let document = roxmltree::Document::parse(&text).unwrap();
            prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            for node in document.descendants() {
                for name in ["y", "y1", "y2", "cy"] {
                    if let Some(value) = node.attribute(name) {
                        let value: f64 = value.parse().unwrap();
                        prop_assert!((0.0..=HEIGHT).contains(&value), "{name} = {value} in {text}");
                    }
                }
                for number in node.attribute("d").unwrap_or_default().split(['M', 'L', 'Z', ' ']) {
                    let within = number.is_empty() || (0.0..=WIDTH).contains(&number.parse::<f64>().unwrap());
                    prop_assert!(within, "{number} in {text}");
                }
            }
            if !log && values.iter().any(|value| *value < 0.0) {
                let texts = document.descendants().filter(|node| node.has_tag_name("text"));
                prop_assert!(texts.filter_map(|node| node.text()).any(|text| text == "0.0"), "no line at 0 in {text}");
            }
            let texts = document.descendants().filter(|node| node.has_tag_name("text")).count();
            prop_assert!(texts <= 26, "{texts} texts would not fit");
        }
    }

    #[test]
    fn values_below_zero_have_room_below_its_line() {
        let ticks = |values: &[f64]| {
            let points = values.iter().map(|value| (0.0, *value)).collect();
            chart(points, Scale::Linear, None).ticks(values)
        };
        assert_eq!(ticks(&[-3.0, 1.0]), (-4.0, 2.0, vec![-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0]));
        assert_eq!(ticks(&[-20.0]), (-25.0, 0.0, vec![-25.0, -20.0, -15.0, -10.0, -5.0, 0.0]));
        assert_eq!(ticks(&[0.0, 3.0]), (0.0, 4.0, vec![0.0, 1.0, 2.0, 3.0, 4.0]));
        let mut markup = Markup::new();
        chart(vec![(0.0, -3.0), (1.0, 1.0)], Scale::Linear, None).draw(&mut markup);
        let text = markup.finish();
        let document = roxmltree::Document::parse(&text).unwrap();
        let floor = TOP + (HEIGHT - BOTTOM - TOP) / 3.0;
        let axes = document.descendants().filter(|node| node.attribute("class") == Some("axis"));
        let heights = axes.map(|node| node.attribute("y1").unwrap().parse::<f64>().unwrap());
        assert!(heights.into_iter().any(|y| (y - floor).abs() < 0.1), "{text}");
    }

    #[test]
    fn the_name_of_a_limit_keeps_off_the_curves() {
        let drawn = |points: Vec<(f64, f64)>| {
            let mut markup = Markup::new();
            chart(points, Scale::Linear, Some(50.0)).draw(&mut markup);
            let text = markup.finish();
            let document = roxmltree::Document::parse(&text).unwrap();
            let name = document.descendants().find(|node| node.attribute("class") == Some("limit")).unwrap();
            let line =
                document.descendants().find(|node| node.attribute("class") == Some("limit-line")).unwrap();
            let y =
                |node: roxmltree::Node<'_, '_>, name| node.attribute(name).unwrap().parse::<f64>().unwrap();
            (name.attribute("text-anchor").unwrap().to_owned(), y(name, "y") < y(line, "y1"))
        };
        let rising = |to: f64| (0..=50).map(|n| (f64::from(n), f64::from(n) * to / 50.0)).collect::<Vec<_>>();
        assert_eq!(drawn(rising(20.0)), ("end".to_owned(), true), "nothing is near");
        assert!(drawn(rising(52.0)).1);
        assert_ne!(drawn(rising(52.0)).0, "end", "the curve passes on the right");
        let flat = (0..=50).map(|n| (f64::from(n), 52.0)).collect();
        assert_eq!(drawn(flat), ("end".to_owned(), false), "just above the limit all along");
    }

    #[test]
    fn times_are_named_by_their_length() {
        let names = |seconds| time_marks(seconds).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names(3.2), ["0", "1 s", "2 s", "3 s"]);
        assert_eq!(names(0.0052), ["0", "1 ms", "2 ms", "3 ms", "4 ms", "5 ms"]);
        assert_eq!(names(2.0), ["0", "0.5 s", "1.0 s", "1.5 s", "2.0 s"]);
        assert_eq!(names(600.0), ["0", "2 min", "4 min", "6 min", "8 min", "10 min"]);
    }
}
