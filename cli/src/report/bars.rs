//! Bars of times that add up, and the names of colours.
use tidemill_app::figures::milliseconds;
use tidemill_drawing::markup::Markup;

/// Colours of the page.
pub(super) const COLOURS: usize = 8;

/// Names, each with the number of its colour in the page.
pub(super) fn legend<'a>(names: impl IntoIterator<Item = (usize, &'a str)>, markup: &mut Markup) {
    markup.element("div", &[("class", &"legend")], |legend| {
        for (colour, name) in names {
            legend.element("span", &[], |entry| {
                entry.leaf("i", &[("class", &format!("b{colour}"))], "");
                entry.text(name);
            });
        }
    });
}

/// Names with the colours of the page, in their order.
pub(super) fn in_colours<'a>(names: &'a [&'a str]) -> impl Iterator<Item = (usize, &'a str)> {
    names.iter().enumerate().map(|(index, name)| (index % COLOURS + 1, *name))
}

/// Times that add up to that of a stage.
pub(super) struct Bar<'a> {
    pub(super) stage: &'a str,
    /// Colours and milliseconds, in their order.
    pub(super) parts: Vec<(usize, f64)>,
}

impl Bar<'_> {
    fn total(&self) -> f64 {
        self.parts.iter().map(|(_, time)| time).sum()
    }
}

/// Draws bars; the longest one has the whole width.
pub(super) fn bars(bars: &[Bar<'_>], markup: &mut Markup) {
    let longest = bars.iter().map(Bar::total).fold(0.0, f64::max).max(1e-9);
    markup.element("div", &[("class", &"split")], |split| {
        for one in bars {
            split.element("div", &[("class", &"row")], |row| {
                row.leaf("div", &[("class", &"id")], one.stage);
                row.element("div", &[("class", &"bar")], |bar| {
                    for (colour, time) in one.parts.iter().filter(|(_, time)| *time > 0.0) {
                        let (class, title) = (format!("b{colour}"), milliseconds(*time));
                        let width = format!("width:{:.2}%", time * 100.0 / longest);
                        bar.leaf("span", &[("class", &class), ("style", &width), ("title", &title)], "");
                    }
                });
                row.leaf("div", &[("class", &"n")], &milliseconds(one.total()));
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_has_the_whole_width_and_parts_without_time_none() {
        let mut part = Markup::new();
        let rows = [("short", [1.0, 0.0]), ("long", [1.0, 3.0])];
        let shown = rows.map(|(stage, times)| Bar { stage, parts: [4, 2].into_iter().zip(times).collect() });
        bars(&shown, &mut part);
        let text = part.finish();
        let widths: Vec<&str> = text
            .split("width:")
            .skip(1)
            .filter_map(|rest| rest.split_once('%'))
            .map(|(width, _)| width)
            .collect();
        assert_eq!(widths, ["25.00", "25.00", "75.00"]);
        assert!(text.contains("b4") && text.contains("4.00 ms"), "{text}");
    }
}
