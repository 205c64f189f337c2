//! Options of the engine that follow from a prepared workflow's files.
use crate::emulation::Emulated;
use crate::failure::Failure;
use crate::letters::letter_writer;
use crate::preparation::Prepared;
use crate::state::Continued;
use std::sync::Arc;
use tidemill_engine::RunOptions;
use tidemill_engine::clock::DilatedClock;

/// Returns the options of a run: opens its file for dead letters, sets the number of copies of models, and the speeds,
/// links and clock of an emulated run. A run with a state continues from it.
///
/// # Errors
/// The file for dead letters cannot be opened.
pub fn run_options(
    prepared: &Prepared,
    emulated: Option<&Emulated>,
    state: Option<Continued>,
) -> Result<RunOptions, Failure> {
    // A plan fixes the copies; without one, models get as many as there are processors.
    let model_copies = match prepared.is_planned {
        true => 1,
        false => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let token = state.as_ref().and_then(|state| state.letters.as_deref());
    let letters = letter_writer(&prepared.workflow, token)?;
    let durability = state.map(|state| state.durability);
    let mut options = RunOptions { letters, model_copies, durability, ..RunOptions::default() };
    if let Some(emulated) = emulated {
        options.emulation = Some(emulated.emulation.clone());
        if emulated.dilation.factor != 1.0 {
            options.clock = Arc::new(DilatedClock::new(emulated.dilation.factor));
        }
    }
    Ok(options)
}
