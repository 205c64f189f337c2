//! `tidemill device top`: devices and their sessions each second.
use super::sessions::{document, headline, sessions, show, tenants};
use crate::arguments::WatchDevicesArguments;
use crate::exit::Exit;
use crate::screen::{Line, Style};
use crate::terminal::Terminal;
use crate::watching::{Page, lines_of, watch};
use std::collections::HashMap;
use tidemill_device::daemon::views::Listing;

/// Shows devices, once or until a key or an interrupt ends it.
pub(super) fn top(arguments: &WatchDevicesArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let first = super::look(&arguments.choice)?;
    if arguments.once {
        return show(&first, arguments.output, terminal);
    }
    let choice = arguments.choice.clone();
    let mut busy = Busy::default();
    let page = |devices: &Vec<Listing>| Page { head: Vec::new(), rows: lines(devices, &mut busy) };
    let form = (arguments.output, terminal);
    watch(form, first, move || super::look(&choice), |devices| document(devices), page)
}

/// The part of the time that devices computed between two looks.
#[derive(Default)]
struct Busy(HashMap<u32, (f64, f64)>);

impl Busy {
    fn follow(&mut self, device: &Listing) -> Option<f64> {
        let now = (device.seconds, device.computed_seconds);
        let before = self.0.insert(device.process, now)?;
        let time = (now.0 - before.0) * device.slots as f64;
        (time > 0.0).then(|| ((now.1 - before.1) / time).clamp(0.0, 1.0))
    }
}

fn lines(devices: &[Listing], busy: &mut Busy) -> Vec<Line> {
    let mut lines = Vec::new();
    for device in devices {
        let part = busy.follow(device).map(|part| format!(", {:.0} % busy", 100.0 * part));
        lines.push(Line::new(headline(device) + &part.unwrap_or_default(), Style::Strong));
    }
    if devices.is_empty() {
        lines.push(Line::new("this machine serves no device now", Style::Weak));
    }
    for table in [tenants(devices), sessions(devices)] {
        lines.push(Line::default());
        lines.extend(lines_of(&table));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_part_follows_from_two_looks() {
        let at = |seconds, computed_seconds| Listing {
            device: "gpu".into(),
            seconds,
            computed_seconds,
            slots: 2,
            ..Listing::default()
        };
        let mut busy = Busy::default();
        assert_eq!(busy.follow(&at(1.0, 1.0)), None);
        assert_eq!(busy.follow(&at(2.0, 2.0)), Some(0.5));
        let text = lines(&[at(3.0, 3.0)], &mut busy);
        assert!(
            text[0].text.starts_with("gpu (memory ") && text[0].text.ends_with("50 % busy"),
            "{}",
            text[0].text
        );
        assert!(lines(&[], &mut busy)[0].text.contains("no device"));
    }
}
