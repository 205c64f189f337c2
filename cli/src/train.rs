//! `tidemill train`: a training by ranks, each of them a process.
//!
//! | question | module |
//! |---|---|
//! | what is trained, with what? | [`preparation`] |
//! | what does a rank do? | [`rank`] |
//! | what does a rank say? | [`event`] |
//! | what does it leave? | [`report`], [`model`] |
//! | who adds up the gradients? | [`aggregation`] |
//! | who starts ranks on this machine, and shows their events? | [`ranks`] |
mod aggregation;
mod event;
mod model;
mod preparation;
mod rank;
mod ranks;
mod report;

use crate::arguments::TrainArguments;
use crate::exit::Exit;
use crate::terminal::Terminal;
pub(crate) use model::files_of;
use preparation::Prepared;

/// Trains: as a rank where the environment says which, else with ranks that it starts.
pub(crate) fn train(arguments: &TrainArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    match rank::Place::of_environment()? {
        Some(place) => {
            let prepared = Prepared::load(&arguments.file, Some(place.group.size))?;
            rank::rank(arguments, &prepared, &place)
        }
        None => {
            let prepared = Prepared::load(&arguments.file, arguments.ranks)?;
            ranks::start(arguments, &prepared, terminal)
        }
    }
}
