//! Display times of the frames of an annotated video, as in its source.
use crate::video::encoder::Pace;
use crate::video::index::Index;

/// Returns an even pace if no frame is further from its even time than the container's unit or a millisecond; else each
/// frame has its own time.
pub(super) fn pace(index: &Index, every: u32) -> Pace {
    let (frames, seconds) = frame_rate(index, every);
    let shown: Vec<i64> = (0..index.frames.len())
        .step_by(every.max(1) as usize)
        .map(|frame| index.microseconds(frame))
        .collect();
    let unit = 1e6 * index.time_base.0 as f64 / index.time_base.1 as f64;
    let step = 1e6 * seconds as f64 / frames as f64;
    let is_even =
        |(number, time): (usize, &i64)| (number as f64 * step - *time as f64).abs() <= unit.max(1000.0);
    if shown.iter().enumerate().all(is_even) {
        return Pace::Even { frames, seconds };
    }
    let tick = shown.iter().fold(0, |tick, time| divisor(tick, time.unsigned_abs()));
    Pace::Own { tick: if tick < 1000 { 1000 } else { tick } }
}

/// Average rate: frames and seconds.
fn frame_rate(index: &Index, every: u32) -> (u64, u64) {
    let (numerator, denominator) = index.time_base;
    let every = u64::from(every.max(1));
    let fallback = (25, every);
    let (first, last) = match (index.frames.first(), index.frames.last()) {
        (Some(first), Some(last)) if last.time > first.time => (first.time, last.time),
        _ => return fallback,
    };
    let steps = index.frames.len() as u64 - 1;
    let units = last.abs_diff(first);
    let (frames, seconds) =
        (denominator.checked_mul(steps), numerator.checked_mul(units).and_then(|s| s.checked_mul(every)));
    match (frames, seconds) {
        (Some(frames), Some(seconds)) if frames > 0 && seconds > 0 => {
            let divisor = divisor(frames, seconds);
            let (frames, seconds) = (frames / divisor, seconds / divisor);
            // ffmpeg takes numbers of 31 bits.
            let shift = (64 - frames.max(seconds).leading_zeros()).saturating_sub(30);
            ((frames >> shift).max(1), (seconds >> shift).max(1))
        }
        _ => fallback,
    }
}

/// Greatest common divisor (Euclid).
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}
