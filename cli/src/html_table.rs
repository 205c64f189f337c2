//! Tables of HTML pages.
use tidemill_drawing::markup::{Attribute, Markup};

/// Attributes of a cell that holds the name of its row.
pub(crate) const NAME: &[Attribute<'static>] = &[("class", &"id")];

/// Attributes of a cell that holds a number.
pub(crate) const NUMBER: &[Attribute<'static>] = &[("class", &"n")];

/// A table; columns are names and whether they hold numbers.
pub(crate) fn table(markup: &mut Markup, columns: &[(&str, bool)], rows: impl FnOnce(&mut Markup)) {
    markup.element("div", &[("class", &"scroll")], |scroll| {
        scroll.element("table", &[], |table| {
            table.element("thead", &[], |head| {
                head.element("tr", &[], |row| {
                    for (name, number) in columns {
                        row.leaf("th", if *number { NUMBER } else { &[] }, name);
                    }
                });
            });
            table.element("tbody", &[], rows);
        });
    });
}
