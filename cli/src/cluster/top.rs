//! `tidemill top`: what a run does now, on a terminal.
//!
//! | question | module |
//! |---|---|
//! | which figures? | [`looking`], of a controller, or [`scrape`], of a run on this machine |
//! | which lines? | [`view`] |
//! | how are they shown, and which key was pressed? | [`crate::screen`] |
mod looking;
mod scrape;
mod view;

use crate::answer;
use crate::arguments::{OutputForm, TopArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::screen::{Key, Screen};
use crate::table::columns;
use crate::terminal::Terminal;
use looking::{Choice, Place, Seen};
use std::io::Write;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use view::Look;

/// Time limit of the wait for a key, so that news are shown soon.
const KEY: Duration = Duration::from_millis(100);

/// Shows what a run does, once or until a key ends it.
pub(crate) fn top(arguments: &TopArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let place = Place::of(arguments)?;
    if arguments.once || arguments.output == OutputForm::Json {
        return once(arguments, place);
    }
    let interrupt = Interrupt::listen()?;
    interrupt.is_watched();
    let Some(mut screen) = Screen::open(terminal.paints())? else {
        return Err(Failure::new(Kind::Usage, "standard input and output are not a terminal")
            .with_help("add `--once` to print once")
            .into());
    };
    let choice = Choice::new(arguments.run.clone());
    let seen = look(place, choice.clone(), arguments.every)?;
    let mut look = Look::new(arguments.sort);
    look.has_runs = arguments.metrics.is_none();
    let mut last = None;
    loop {
        match seen.try_recv() {
            Ok(news) => last = Some(news),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(Exit::Success),
        }
        let (width, height) = screen.size();
        let shown = screen.show(&view::lines(last.as_ref(), &mut look, width, height));
        // A terminal that is gone is as good as Ctrl-C.
        let key = shown.and_then(|()| screen.key(KEY)).unwrap_or(Some(Key::Interrupt));
        if interrupt.is_wanted() {
            return Ok(Exit::Interrupted);
        }
        match key {
            Some(Key::Letter('q')) => return Ok(Exit::Success),
            Some(Key::Interrupt) => return Ok(Exit::Interrupted),
            Some(Key::Enter) => {
                if let Some(run) = look.selected(last.as_ref()) {
                    choice.set(Some(run));
                    last = None;
                }
            }
            Some(Key::Escape) if look.has_runs => {
                choice.show_all();
                last = None;
            }
            Some(key) => look.press(key),
            None => {}
        }
    }
}

/// Looks on a thread of its own: a controller that does not answer holds up no key.
fn look(place: Place, choice: Choice, every: Duration) -> anyhow::Result<Receiver<Seen>> {
    let (sender, seen) = channel();
    std::thread::Builder::new().name("look".into()).spawn(move || {
        loop {
            if sender.send(place.look(&choice)).is_err() {
                return;
            }
            choice.wait(every);
        }
    })?;
    Ok(seen)
}

fn once(arguments: &TopArguments, place: Place) -> anyhow::Result<Exit> {
    let choice = Choice::new(arguments.run.clone());
    let mut seen = place.look(&choice);
    if seen.lacks_rates() {
        std::thread::sleep(arguments.every);
        seen = place.look(&choice);
    }
    let mut out = answer::out();
    if let Seen::Trouble(failure) = seen {
        return Err(failure.into());
    }
    if arguments.output == OutputForm::Json {
        serde_json::to_writer_pretty(&mut out, &seen.document())?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let mut look = Look::new(arguments.sort);
    let width = columns().map_or(view::NARROW, |columns| columns.max(view::NARROW));
    for line in view::lines(Some(&seen), &mut look, width, usize::MAX) {
        writeln!(out, "{}", line.text.trim_end())?;
    }
    Ok(Exit::Success)
}
