//! A picture as SVG: readable on light and dark backgrounds, without scripts, fonts or external files.
use super::layout::{Item, Layout, Link, Point, Rectangle, place};
use super::picture::{Card, Line, Picture};
use crate::outline::Role;
use tidemill_drawing::markup::{Attribute, Markup, Short};

/// Room around everything.
const MARGIN: f64 = 20.0;
const PADDING: f64 = 14.0;
const TITLE_SIZE: f64 = 14.0;
const LINE_SIZE: f64 = 12.0;
const LABEL_SIZE: f64 = 11.0;
const LINE_HEIGHT: f64 = 18.0;
/// The part of a card with id and kind.
const HEAD: f64 = 48.0;
/// The part of a lane above its cards.
const LANE_HEAD: f64 = 34.0;
const LANE_GAP: f64 = 16.0;
/// Longest text on a card, in characters.
const LONGEST: usize = 34;

/// Colours are literals, because many viewers of SVG do not support variables. Print is always light.
const STYLE: &str = "\
.tm-ground{fill:#f7f8fa}.tm-lane{fill:#eef1f5;stroke:#d9dfe7}.tm-card{fill:#fff;stroke:#cdd5df}\
.tm-graph text{font-family:Inter,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif;fill:#1b2431;font-size:12px}\
.tm-graph .tm-id{font-size:14px;font-weight:650}.tm-graph .tm-soft{fill:#5c6878}\
.tm-graph .tm-value{font-variant-numeric:tabular-nums;font-weight:600}\
.tm-graph .tm-label{fill:#5c6878;font-size:11px;stroke:#f7f8fa;stroke-width:4px;paint-order:stroke;stroke-linejoin:round}\
.tm-graph .tm-caption{stroke:#eef1f5;stroke-width:5px;paint-order:stroke;stroke-linejoin:round}\
.tm-source{fill:#0d8284}.tm-operator{fill:#4657c9}.tm-sink{fill:#8947b8}\
.tm-wire{fill:none;stroke:#8b97a8;stroke-width:1.6}.tm-loses{stroke-dasharray:5 4}.tm-tip{fill:#8b97a8}\
.tm-mark{fill:none;stroke:#8b97a8;stroke-width:1.4}.tm-chosen{fill:#4657c9;stroke:#4657c9}\
@media screen and (prefers-color-scheme:dark){\
.tm-ground{fill:#12171e}.tm-lane{fill:#181f28;stroke:#2c3642}.tm-card{fill:#1e2630;stroke:#374352}\
.tm-graph text{fill:#e7ecf2}.tm-graph .tm-soft{fill:#9aa7b7}.tm-graph .tm-label{fill:#9aa7b7;stroke:#12171e}\
.tm-graph .tm-caption{stroke:#181f28}\
.tm-source{fill:#3dbab8}.tm-operator{fill:#8c9bff}.tm-sink{fill:#c48cf0}\
.tm-wire{stroke:#73808f}.tm-tip{fill:#73808f}.tm-mark{stroke:#73808f}.tm-chosen{fill:#8c9bff;stroke:#8c9bff}}";

/// A file of its own.
pub(crate) fn file(picture: &Picture) -> String {
    let mut markup = Markup::new();
    write(picture, &mut markup);
    markup.break_line();
    markup.finish()
}

/// Writes the drawing as an `svg` element; returns its width in pixels, at which text has the size in [`STYLE`].
pub(crate) fn write(picture: &Picture, markup: &mut Markup) -> f64 {
    let layout = lay_out(picture);
    let (width, height) = (layout.width + 2.0 * MARGIN, layout.height + 2.0 * MARGIN);
    let view = format!("0 0 {} {}", Short(width), Short(height));
    let attributes: [Attribute<'_>; 7] = [
        ("xmlns", &"http://www.w3.org/2000/svg"),
        ("class", &"tm-graph"),
        ("viewBox", &view),
        ("width", &Short(width)),
        ("height", &Short(height)),
        ("role", &"img"),
        ("aria-label", &format!("dataflow of {}", picture.title)),
    ];
    markup.element("svg", &attributes, |svg| {
        svg.leaf("title", &[], &picture.title);
        svg.element("style", &[], |style| style.verbatim(STYLE));
        svg.break_line();
        let ground: [Attribute<'_>; 3] = [("class", &"tm-ground"), ("width", &"100%"), ("height", &"100%")];
        svg.empty("rect", &ground);
        svg.break_line();
        svg.element("g", &[("transform", &format!("translate({MARGIN} {MARGIN})"))], |group| {
            group.break_line();
            lanes(picture, &layout, group);
            wires(picture, &layout, group);
            captions(picture, &layout, group);
            for (card, rectangle) in picture.cards.iter().zip(&layout.boxes) {
                draw_card(card, rectangle, group);
                group.break_line();
            }
        });
    });
    width
}

fn lay_out(picture: &Picture) -> Layout {
    let framed = picture.lanes.iter().any(|lane| !lane.title.is_empty());
    let items: Vec<Item> = picture.cards.iter().map(size).collect();
    let links: Vec<Link> = picture
        .wires
        .iter()
        .map(|wire| Link { from: wire.from, to: wire.to, label: text_width(&wire.label, LABEL_SIZE) })
        .collect();
    let (head, gap) = if framed { (LANE_HEAD, LANE_GAP) } else { (0.0, 0.0) };
    let mut layout = place(&items, &links, head, gap);
    if framed {
        // Frames surround the cards.
        for rectangle in &mut layout.boxes {
            rectangle.x += PADDING;
        }
        for point in layout.routes.iter_mut().flatten() {
            point.0 += PADDING;
        }
        let titles = picture.lanes.iter().map(|lane| text_width(&lane.title, LINE_SIZE));
        layout.width = (layout.width + 2.0 * PADDING).max(titles.fold(0.0, f64::max) + 2.0 * PADDING);
    }
    layout
}

fn lanes(picture: &Picture, layout: &Layout, group: &mut Markup) {
    for (lane, (top, height)) in picture.lanes.iter().zip(&layout.lanes) {
        if lane.title.is_empty() {
            continue;
        }
        group.empty(
            "rect",
            &[
                ("class", &"tm-lane"),
                ("y", &Short(*top)),
                ("width", &Short(layout.width)),
                ("height", &Short(*height)),
                ("rx", &12),
            ],
        );
        group.break_line();
    }
}

/// The names of lanes, over the wires that pass from lane to lane.
fn captions(picture: &Picture, layout: &Layout, group: &mut Markup) {
    for (lane, (top, _)) in picture.lanes.iter().zip(&layout.lanes) {
        if lane.title.is_empty() {
            continue;
        }
        let at: [Attribute<'_>; 3] =
            [("class", &"tm-soft tm-caption"), ("x", &PADDING), ("y", &Short(top + 22.0))];
        group.leaf("text", &at, &lane.title);
        group.break_line();
    }
}

fn wires(picture: &Picture, layout: &Layout, group: &mut Markup) {
    for (wire, route) in picture.wires.iter().zip(&layout.routes) {
        let class = if wire.may_lose { "tm-wire tm-loses" } else { "tm-wire" };
        group.empty("path", &[("class", &class), ("d", &curve(route, text_width(&wire.label, LABEL_SIZE)))]);
        if let Some((x, y)) = route.last() {
            let tip = format!("M{} {}l-8 -4.5v9z", Short(*x), Short(*y));
            group.empty("path", &[("class", &"tm-tip"), ("d", &tip)]);
            if !wire.label.is_empty() {
                let (x, y) = (Short(x - 14.0), Short(y - 6.0));
                let at: [Attribute<'_>; 4] =
                    [("class", &"tm-label"), ("x", &x), ("y", &y), ("text-anchor", &"end")];
                group.leaf("text", &at, &wire.label);
            }
        }
        group.break_line();
    }
}

/// A smooth line through the points, level at each and below its label; it ends where the tip starts.
fn curve(route: &[Point], label: f64) -> String {
    let mut text = String::new();
    for (index, pair) in route.windows(2).enumerate() {
        let ((x, y), (mut to_x, to_y)) = (pair[0], pair[1]);
        if index == 0 {
            text.push_str(&format!("M{} {}", Short(x), Short(y)));
        }
        let is_last = index + 2 == route.len();
        if is_last {
            to_x -= if label > 0.0 { label + 18.0 } else { 7.0 };
        }
        if (y - to_y).abs() < 0.05 {
            text.push_str(&format!("H{}", Short(to_x)));
        } else {
            let middle = Short((x + to_x) / 2.0);
            text.push_str(&format!(
                "C{middle} {} {middle} {} {} {}",
                Short(y),
                Short(to_y),
                Short(to_x),
                Short(to_y)
            ));
        }
        if is_last && label > 0.0 {
            text.push_str(&format!("H{}", Short(pair[1].0 - 7.0)));
        }
    }
    text
}

fn size(card: &Card) -> Item {
    let mut width =
        text_width(&shortened(&card.id), TITLE_SIZE).max(text_width(&shortened(&card.kind), LINE_SIZE));
    for line in &card.lines {
        width = width.max(match line {
            Line::Note(text) => text_width(&shortened(text), LINE_SIZE),
            Line::Model(name, _) => text_width(&shortened(name), LINE_SIZE) + 14.0,
            Line::Fact(label, value) => {
                text_width(label, LINE_SIZE) + 16.0 + text_width(value, LINE_SIZE) * 1.05
            }
        });
    }
    let lines = card.lines.len() as f64 * LINE_HEIGHT;
    let height = HEAD + if card.lines.is_empty() { 6.0 } else { lines + 14.0 };
    Item { width: (width + 2.0 * PADDING).max(110.0), height, lane: card.lane }
}

fn draw_card(card: &Card, at: &Rectangle, group: &mut Markup) {
    let (left, right) = (at.x + PADDING, at.x + at.width - PADDING);
    group.element("g", &[], |group| {
        let full: [Attribute<'_>; 2] = [("x", &Short(at.x)), ("y", &Short(at.y))];
        let size: [Attribute<'_>; 4] =
            [("width", &Short(at.width)), ("height", &Short(at.height)), ("rx", &9), ("class", &"tm-card")];
        group.empty("rect", &[&full[..], &size].concat());
        let colour = match card.role {
            Role::Source => "tm-source",
            Role::Operator => "tm-operator",
            Role::Sink => "tm-sink",
        };
        let (x, y) = (Short(at.x + 1.0), Short(at.y + 9.0));
        group.empty(
            "rect",
            &[
                ("class", &colour),
                ("x", &x),
                ("y", &y),
                ("width", &4),
                ("height", &Short(at.height - 18.0)),
                ("rx", &2),
            ],
        );
        write_line(group, "tm-id", left, at.y + 22.0, &card.id);
        write_line(group, "tm-soft", left, at.y + 39.0, &card.kind);
        let mut y = at.y + HEAD + 15.0;
        for line in &card.lines {
            match line {
                Line::Note(text) => write_line(group, "tm-soft", left, y, text),
                Line::Model(name, chosen) => {
                    let class = if *chosen == Some(true) { "tm-mark tm-chosen" } else { "tm-mark" };
                    let (cx, cy) = (Short(left + 4.0), Short(y - 4.0));
                    group.empty("circle", &[("class", &class), ("cx", &cx), ("cy", &cy), ("r", &3.5)]);
                    let class = if *chosen == Some(false) { "tm-soft" } else { "tm-name" };
                    write_line(group, class, left + 14.0, y, name);
                }
                Line::Fact(label, value) => {
                    write_line(group, "tm-soft", left, y, label);
                    let (x, y) = (Short(right), Short(y));
                    let at: [Attribute<'_>; 4] =
                        [("class", &"tm-value"), ("x", &x), ("y", &y), ("text-anchor", &"end")];
                    group.leaf("text", &at, value);
                }
            }
            y += LINE_HEIGHT;
        }
    });
}

/// Writes text, cut to fit; then the whole text is in the tool tip.
fn write_line(group: &mut Markup, class: &'static str, x: f64, y: f64, text: &str) {
    let short = shortened(text);
    let (x, y) = (Short(x), Short(y));
    group.element("text", &[("class", &class), ("x", &x), ("y", &y)], |inner| {
        if short != text {
            inner.leaf("title", &[], text);
        }
        inner.text(&short);
    });
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some(_) => text.chars().take(LONGEST - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Approximate width of a text: the font is unknown, so slightly more than that of most.
fn text_width(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '!' | '\'' => 0.28,
        'f' | 't' | 'r' | ' ' | '(' | ')' | '-' | '/' | '[' | ']' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '→' | '…' => 0.92,
        'A'..='Z' | '_' => 0.68,
        c if c.is_ascii() => 0.57,
        '≤' | '·' | 'µ' => 0.57,
        // Han, kana and the like are as wide as high.
        _ => 1.0,
    };
    text.chars().map(em).sum::<f64>() * size * 1.04
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing::picture::{Lane, Wire};

    fn picture(name: &str) -> Picture {
        let card = |id: &str, role, lines: Vec<Line>| Card {
            id: id.into(),
            role,
            kind: name.into(),
            lane: 0,
            lines,
        };
        Picture {
            title: name.into(),
            cards: vec![
                card("a", Role::Source, vec![Line::Fact("rate", name.into()), Line::Note(name.repeat(9))]),
                card("b", Role::Sink, vec![Line::Model(name.into(), Some(true))]),
            ],
            wires: vec![Wire { from: 0, to: 1, label: name.into(), may_lose: true }],
            lanes: vec![Lane { title: name.into() }],
        }
    }

    #[test]
    fn names_from_files_cannot_break_out() {
        let text = file(&picture("<script>alert('&\"')</script>\u{1}"));
        let document = roxmltree::Document::parse(&text).unwrap();
        assert!(document.descendants().all(|node| !node.has_tag_name("script")));
        let shown = "<script>alert('&\"')</script>\u{FFFD}";
        assert!(document.descendants().any(|node| node.is_text() && node.text() == Some(shown)), "{text}");
        assert!(!text.contains("href") && text.matches("http").count() == 1, "only the name of the format");
    }

    #[test]
    fn long_names_are_cut_and_kept_in_the_tool_tip() {
        let text = file(&picture("some_rather_long_name "));
        let document = roxmltree::Document::parse(&text).unwrap();
        let longest = |tag: &str| {
            let nodes = document.descendants().filter(|node| node.has_tag_name(tag));
            let texts = nodes.filter_map(|node| node.children().rfind(|c| c.is_text())?.text());
            texts.map(|text| text.chars().count()).max().unwrap()
        };
        assert_eq!(longest("text"), LONGEST);
        assert!(longest("title") > 150);
    }
}
