//! Interface of decoders, and the times of their pictures.
//!
//! A decoder gets the coded frames of one camera in the order in which they are sent, beginning with a key frame, and gives
//! pictures in the order in which they are shown. A change of the codec or of its parameters needs a new decoder.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use tidemill_operators::record::EventTime;

/// Codec of a camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// H.264, as Annex B.
    H264,
    /// H.265, as Annex B.
    H265,
    /// A JPEG picture for each frame.
    Jpeg,
}

/// Form of coded frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coded {
    /// The codec.
    pub codec: Codec,
    /// Width and height of the pictures; `None` if the camera does not tell.
    pub size: Option<(u32, u32)>,
    /// Parameter sets, as far as they are known.
    pub parameters: Vec<u8>,
}

/// A coded frame.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Its form.
    pub coded: Arc<Coded>,
    /// Its data; a key frame begins with the parameter sets.
    pub data: Vec<u8>,
    /// Its event time, microseconds.
    pub time: EventTime,
    /// Whether decoding can begin here.
    pub is_key: bool,
}

/// Form of the pictures of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureForm {
    /// Width and height; `None` for those of the camera.
    pub size: Option<(u32, u32)>,
    /// JPEG instead of uncompressed pixels.
    pub jpeg: bool,
    /// Largest picture, in pixels.
    pub max_pixels: u64,
}

impl PictureForm {
    /// Most bytes of a picture.
    pub fn most_bytes(&self) -> usize {
        usize::try_from(self.max_pixels).unwrap_or(usize::MAX / 4).saturating_mul(3)
    }
}

/// Receiver of the pictures of a decoder, on a thread of the decoder's choice.
pub trait Pictures: Send + Sync {
    /// Whether a picture of this time is wanted. It is asked once for each picture, in their order; one that is not wanted
    /// is accounted for.
    fn wants(&self, time: EventTime) -> bool;
    /// Returns an empty buffer for a picture.
    fn buffer(&self) -> Vec<u8>;
    /// Receives a picture that was wanted: JPEG, or as in [`tidemill_media::raw_image`].
    fn picture(&self, time: EventTime, picture: Vec<u8>);
}

/// Failure of a decoder. The next one begins at the next key frame.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It cannot be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// It ended.
    #[error("the decoder ended")]
    Ended,
    /// It takes or gives nothing any more.
    #[error("the decoder hung")]
    Hung,
}

/// A running decoder. Dropping it ends it; no picture comes after that.
pub trait Decoder: Send {
    /// Decodes a frame. May wait while the decoder is busy, for some seconds at most.
    ///
    /// # Errors
    /// [`DecodeError`]; then it is of no more use.
    fn send(&mut self, unit: &Unit) -> Result<(), DecodeError>;
}

/// Makes decoders.
pub trait Decoders: Send + Sync {
    /// Starts a decoder.
    ///
    /// # Errors
    /// [`DecodeError::Start`].
    fn start(
        &self,
        coded: &Coded,
        form: &PictureForm,
        pictures: Arc<dyn Pictures>,
    ) -> Result<Box<dyn Decoder>, DecodeError>;
}

/// Times of the frames that a decoder has not given yet, for one that does not tell the times of its pictures: the next
/// picture is the earliest of them.
///
/// A frame that could not be decoded never becomes a picture, so that its time would be that of the next one, and all later
/// ones would be late. So it is noticed how many frames a decoder keeps at least: where it seems to keep more than before
/// over a hundred frames, the rest was lost.
#[derive(Debug, Default)]
pub struct Times {
    sent: BinaryHeap<Reverse<EventTime>>,
    /// Fewest frames kept after a picture, of all and of the last ones.
    least: Option<usize>,
    least_lately: Option<usize>,
    pictures: u32,
}

impl Times {
    /// Pictures after which lost frames are looked for.
    const SPAN: u32 = 100;
    /// Most frames that a decoder keeps: 16 for their order, and those in its pipes.
    const MOST: usize = 256;

    /// Notes a frame that was sent.
    pub fn sent(&mut self, time: EventTime) {
        self.sent.push(Reverse(time));
        if self.sent.len() > Self::MOST {
            self.sent.pop();
        }
    }

    /// Frames that have not become pictures.
    pub fn pending(&self) -> usize {
        self.sent.len()
    }

    /// Returns the time of the next picture; `None` if there are more pictures than frames.
    pub fn picture(&mut self) -> Option<EventTime> {
        let Reverse(time) = self.sent.pop()?;
        let kept = self.sent.len();
        self.least_lately = Some(self.least_lately.map_or(kept, |least| least.min(kept)));
        self.pictures += 1;
        if self.pictures == Self::SPAN {
            let lately = self.least_lately.take().unwrap_or(kept);
            let least = self.least.map_or(lately, |least| least.min(lately));
            for _ in least..lately {
                self.sent.pop();
            }
            (self.least, self.pictures) = (Some(least), 0);
        }
        Some(time)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn pictures_get_the_times_in_their_order() {
        let mut times = Times::default();
        // I0 P3 B1 B2 P6 B4 B5: sent in the order of decoding.
        let mut given = Vec::new();
        for (sent, time) in [0, 3, 1, 2, 6, 4, 5].into_iter().enumerate() {
            times.sent(time);
            if sent >= 1 {
                given.extend(times.picture());
            }
        }
        given.extend(times.picture());
        assert_eq!(given, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(times.picture(), None);
    }

    #[test]
    fn lost_frames_make_later_ones_late_for_a_while_only() {
        let mut times = Times::default();
        let mut late = Vec::new();
        times.sent(-2);
        times.sent(-1);
        for frame in 0..700 {
            times.sent(frame);
            if ![150, 151, 340].contains(&frame) {
                late.push(frame - 2 - times.picture().unwrap());
            }
        }
        assert!(late[..150].iter().all(|late| *late == 0), "it keeps two frames");
        assert!(late[160..200].iter().all(|late| *late == 2));
        assert!(late[310..330].iter().all(|late| *late == 0), "{late:?}");
        assert_eq!(late.last(), Some(&0));
        for frame in 0..10_000 {
            times.sent(frame);
        }
        assert_eq!(times.pending(), Times::MOST, "a decoder that gives nothing costs no memory");
    }
}
