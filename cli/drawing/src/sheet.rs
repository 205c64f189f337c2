//! A drawing as a file of its own, with its elements.
use crate::markup::{Attribute, Markup, Short};

/// Colours and fonts: `c0` to `c6` draw lines and `f0` to `f6` fill; `k` and `n` are compute and network.
///
/// Colours are literal, because many viewers of SVG do not know variables. Print is always light.
const STYLE: &str = "\
.ground{fill:#f7f8fa}.grid{stroke:#d9dfe7}.axis{stroke:#5c6878;fill:none}\
text{font-family:Inter,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif;fill:#1b2431;font-size:12px}\
.title{font-size:14px;font-weight:650}.panel{font-weight:650}.soft{fill:#5c6878}.small{font-size:11px}\
.whisker{stroke:#1b2431;stroke-width:1.3;fill:none}.k{fill:#4657c9}.n{fill:#e09a3c}\
.curve{fill:none;stroke-linejoin:round}.mark{stroke-width:2;fill:none}.change{fill:#1b2431}\
.c0{stroke:#4657c9}.c1{stroke:#8947b8}.c2{stroke:#2fb3a8}.c3{stroke:#b8860b}.c4{stroke:#c2416b}.c5{stroke:#8b97a8}.c6{stroke:#5f8f1d}\
.f0{fill:#4657c9}.f1{fill:#8947b8}.f2{fill:#2fb3a8}.f3{fill:#b8860b}.f4{fill:#c2416b}.f5{fill:#8b97a8}.f6{fill:#5f8f1d}\
@media screen and (prefers-color-scheme:dark){.ground{fill:#12171e}.grid{stroke:#2c3642}.axis{stroke:#9aa7b7}\
text{fill:#e7ecf2}.soft{fill:#9aa7b7}.whisker{stroke:#e7ecf2}.k{fill:#8c9bff}.n{fill:#f0b35e}.change{fill:#e7ecf2}\
.c0{stroke:#8c9bff}.c1{stroke:#c48cf0}.c2{stroke:#2a9d92}.c3{stroke:#e3b341}.c4{stroke:#f0799d}.c5{stroke:#8b97a8}.c6{stroke:#9ccc4f}\
.f0{fill:#8c9bff}.f1{fill:#c48cf0}.f2{fill:#2a9d92}.f3{fill:#e3b341}.f4{fill:#f0799d}.f5{fill:#8b97a8}.f6{fill:#9ccc4f}}";

/// Returns a file of this width and height, with its title at the top left.
pub fn file(title: &str, (width, height): (f64, f64), content: impl FnOnce(&mut Markup)) -> String {
    let mut markup = Markup::new();
    let view = format!("0 0 {} {}", Short(width), Short(height));
    let attributes: [Attribute<'_>; 6] = [
        ("xmlns", &"http://www.w3.org/2000/svg"),
        ("viewBox", &view),
        ("width", &Short(width)),
        ("height", &Short(height)),
        ("role", &"img"),
        ("aria-label", &title),
    ];
    markup.element("svg", &attributes, |svg| {
        svg.leaf("title", &[], title);
        svg.element("style", &[], |style| style.verbatim(STYLE));
        svg.break_line();
        svg.empty("rect", &[("class", &"ground"), ("width", &"100%"), ("height", &"100%")]);
        svg.break_line();
        text(svg, "title", (16.0, 24.0), Anchor::Start, title);
        content(svg);
    });
    markup.break_line();
    markup.finish()
}

/// The end of a text at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The left one.
    Start,
    /// The text is centred.
    Middle,
    /// The right one.
    End,
}

/// Draws a text with its baseline at a place.
pub fn text(svg: &mut Markup, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
    let (x, y) = (Short(x), Short(y));
    let mut attributes: Vec<Attribute<'_>> = vec![("x", &x), ("y", &y)];
    if !class.is_empty() {
        attributes.insert(0, ("class", &class));
    }
    match anchor {
        Anchor::Start => {}
        Anchor::Middle => attributes.push(("text-anchor", &"middle")),
        Anchor::End => attributes.push(("text-anchor", &"end")),
    }
    svg.leaf("text", &attributes, text);
    svg.break_line();
}

/// Draws a straight line.
pub fn line(svg: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    svg.empty(
        "line",
        &[
            ("class", &class),
            ("x1", &Short(from.0)),
            ("y1", &Short(from.1)),
            ("x2", &Short(to.0)),
            ("y2", &Short(to.1)),
        ],
    );
    svg.break_line();
}

/// Draws a rectangle: its upper left corner, width and height.
pub fn rectangle(svg: &mut Markup, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
    let (x, y, width, height) = (Short(x), Short(y), Short(width), Short(height));
    svg.empty("rect", &[("class", &class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)]);
    svg.break_line();
}

/// Draws a dot.
pub fn dot(svg: &mut Markup, class: &str, (x, y): (f64, f64), radius: f64) {
    svg.empty("circle", &[("class", &class), ("cx", &Short(x)), ("cy", &Short(y)), ("r", &Short(radius))]);
    svg.break_line();
}

/// Draws a path in SVG syntax, see [`through`] and [`Short`].
pub fn path(svg: &mut Markup, class: &str, path: &str) {
    svg.empty("path", &[("class", &class), ("d", &path)]);
    svg.break_line();
}

/// Draws a line of this thickness, dashed or not.
pub fn curve(svg: &mut Markup, class: &str, thickness: f64, is_dashed: bool, path: &str) {
    let (class, thickness) = (format!("curve {class}"), Short(thickness));
    let mut attributes: Vec<Attribute<'_>> = vec![("class", &class), ("stroke-width", &thickness)];
    if is_dashed {
        attributes.push(("stroke-dasharray", &"6 4"));
    }
    attributes.push(("d", &path));
    svg.empty("path", &attributes);
    svg.break_line();
}

/// Returns the path through points.
pub fn through(points: &[(f64, f64)]) -> String {
    let command = |at: usize| if at == 0 { 'M' } else { 'L' };
    let points = points.iter().enumerate();
    points.map(|(at, (x, y))| format!("{}{} {}", command(at), Short(*x), Short(*y))).collect()
}

/// Draws a cross around a point.
pub fn cross(svg: &mut Markup, class: &str, (x, y): (f64, f64)) {
    let (left, right, above, below) = (x - 4.0, x + 4.0, y - 4.0, y + 4.0);
    let strokes = [[(left, above), (right, below)], [(left, below), (right, above)]];
    path(svg, &format!("mark {class}"), &strokes.map(|stroke| through(&stroke)).concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_well_formed_and_names_nothing_elsewhere() {
        let written = file("a < b", (100.0, 50.0), |svg| {
            text(svg, "small", (5.0, 6.0), Anchor::End, "<script>");
            curve(svg, "c1", 1.5, true, &through(&[(1.0, 2.0), (3.25, 4.0)]));
            cross(svg, "whisker", (10.0, 10.0));
        });
        let document = roxmltree::Document::parse(&written).unwrap();
        assert!(document.descendants().any(|node| node.text() == Some("<script>")));
        let curve = document.descendants().find(|node| node.attribute("class") == Some("curve c1")).unwrap();
        assert_eq!(curve.attribute("d"), Some("M1 2L3.3 4"));
        assert!(
            !written.contains("href") && written.matches("http").count() == 1,
            "only the name of the format"
        );
    }
}
