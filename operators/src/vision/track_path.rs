//! The boxes of a track as a text: `frame,left,top,width,height` for each, separated by `;`, frames from 0 on.

/// A box of a track: number of the frame, then left, top, width and height in pixels.
pub type Step = (u64, [f64; 4]);

/// The boxes in such a text; what is none is left out.
///
/// ```
/// use tidemill_operators::vision::track_path::steps;
/// let path: Vec<_> = steps("7,1.50,2,30,40;8,2,2,30,40;so it is").collect();
/// assert_eq!(path, [(7, [1.5, 2.0, 30.0, 40.0]), (8, [2.0, 2.0, 30.0, 40.0])]);
/// ```
pub fn steps(path: &str) -> impl Iterator<Item = Step> {
    path.split(';').filter_map(step)
}

fn step(text: &str) -> Option<Step> {
    let mut fields = text.split(',');
    let frame = fields.next()?.trim().parse().ok()?;
    let mut number = || fields.next()?.trim().parse().ok().filter(|number: &f64| number.is_finite());
    Some((frame, [number()?, number()?, number()?, number()?]))
}
