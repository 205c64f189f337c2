//! The boxes of a track as a text: `frame,left,top,width,height` for each, separated by `;`, frames from 0 on.
use std::fmt::Write;

/// Most boxes in such a text: a car parked before a camera is one track for days, and memory must stay bounded.
pub const MOST_STEPS: u64 = 100_000;

/// A box of a track: number of the frame, then left, top, width and height in pixels.
pub type Step = (u64, [f64; 4]);

/// Parses the boxes of such a text; invalid ones are skipped.
///
/// ```
/// use tidemill_operators::vision::track_path::steps;
/// let path: Vec<_> = steps("7,1.50,2,30,40;8,2,2,30,40;so it is").collect();
/// assert_eq!(path, [(7, [1.5, 2.0, 30.0, 40.0]), (8, [2.0, 2.0, 30.0, 40.0])]);
/// ```
pub fn steps(path: &str) -> impl Iterator<Item = Step> {
    path.split(';').filter_map(step)
}

/// Adds the next box to the text of a track with `seen` boxes before. From [`MOST_STEPS`] boxes on only every second one is
/// kept, from twice as many every fourth, and so on.
pub(super) fn add(path: &mut String, seen: u64, (frame, [left, top, width, height]): &Step) {
    let every = (seen / MOST_STEPS + 1).next_power_of_two();
    if seen > 0 && seen == every / 2 * MOST_STEPS {
        *path = path.split(';').step_by(2).collect::<Vec<_>>().join(";");
    }
    if !seen.is_multiple_of(every) {
        return;
    }
    let separator = if path.is_empty() { "" } else { ";" };
    // Writing to a string cannot fail.
    let _ = write!(path, "{separator}{frame},{left:.2},{top:.2},{width:.2},{height:.2}");
}

fn step(text: &str) -> Option<Step> {
    let mut fields = text.split(',');
    let frame = fields.next()?.trim().parse().ok()?;
    let mut number = || fields.next()?.trim().parse().ok().filter(|number: &f64| number.is_finite());
    Some((frame, [number()?, number()?, number()?, number()?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_thinned() {
        let mut path = String::new();
        let mut longest = 0;
        for seen in 0..2 * MOST_STEPS + 100 {
            add(&mut path, seen, &(seen, [0.0, 1.0, 2.0, 3.0]));
            if seen + 1 == MOST_STEPS {
                assert!(steps(&path).map(|(frame, _)| frame).eq(0..MOST_STEPS), "all of them until then");
            }
            longest = longest.max(path.len());
        }
        assert!(longest < 27 * MOST_STEPS as usize, "{longest}");
        let frames = steps(&path).map(|(frame, _)| frame);
        assert!(frames.eq((0..2 * MOST_STEPS + 100).step_by(4)));
    }
}
