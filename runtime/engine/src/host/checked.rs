//! Checks data from another host on a channel: anything that this side's own ends would not send is damage, and the channel
//! is cut and dialled again. Values of a peer are never used before the check.
use crate::frame::{Content, Control, Epoch, Frame};
use crate::link::LinkError;
use std::ops::RangeInclusive;

/// Most credit of one frame: the largest payload and its overhead, with much to spare.
const MOST_COST: u64 = 4 << 30;
/// Valid engine times: some 146 years before and after the start of a run. Sums and differences of a few of them do not
/// overflow.
pub(crate) const TIMES: RangeInclusive<i64> = i64::MIN / 4..=i64::MAX / 4;

fn damaged<T>(text: String) -> Result<T, LinkError> {
    Err(LinkError::Damaged(text))
}

/// Checks the frames of one connection.
pub(super) struct Frames {
    /// The peer's, from its greeting.
    incarnation: u32,
    next: u64,
}

impl Frames {
    pub(super) fn of(incarnation: u32) -> Self {
        Self { incarnation, next: 0 }
    }

    pub(super) fn check(&mut self, frame: &Frame) -> Result<(), LinkError> {
        let header = &frame.header;
        if header.sequence != self.next {
            return damaged(format!("frame {} came instead of {}", header.sequence, self.next));
        }
        self.next += 1;
        if header.incarnation != self.incarnation {
            let (found, said) = (header.incarnation, self.incarnation);
            return damaged(format!("a frame of incarnation {found} from one that said it is {said}"));
        }
        if header.cost > MOST_COST {
            return damaged(format!("a frame that costs {} bytes, {MOST_COST} are the most", header.cost));
        }
        if !TIMES.contains(&header.sent_at) {
            return damaged(format!("a frame that was sent at {}, which is no time", header.sent_at));
        }
        match &frame.content {
            Content::Frontier { steps, .. } if !steps.is_sorted_by_key(|step| step.epoch) => {
                damaged("watermarks whose epochs go back".to_owned())
            }
            Content::Elsewhere { from, until } if from >= until => {
                damaged(format!("epochs {from} to {until} are none"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks the control words of one connection.
#[derive(Default)]
pub(super) struct Controls {
    has_resumed: bool,
    /// Credit of sent frames that was not returned.
    owed: u64,
    durable: Epoch,
}

impl Controls {
    /// Records a sent frame.
    pub(super) fn sent(&mut self, cost: u64) {
        self.owed = self.owed.saturating_add(cost);
    }

    pub(super) fn check(&mut self, control: Control) -> Result<(), LinkError> {
        match control {
            Control::Resume(_) if self.has_resumed => {
                damaged("a receiver that says twice from where it goes on".to_owned())
            }
            Control::Resume(_) => {
                self.has_resumed = true;
                Ok(())
            }
            _ if !self.has_resumed => {
                damaged("a receiver that does not say from where it goes on".to_owned())
            }
            Control::Credit(bytes) => match self.owed.checked_sub(bytes) {
                Some(left) => {
                    self.owed = left;
                    Ok(())
                }
                None => damaged(format!("credit of {bytes} bytes, of which {} were taken", self.owed)),
            },
            Control::Durable(epoch) if epoch < self.durable => {
                damaged(format!("epoch {epoch} is durable, after epoch {} was", self.durable))
            }
            Control::Durable(epoch) => {
                self.durable = epoch;
                Ok(())
            }
            // Only compared with the bytes on this side.
            Control::Ahead(_) | Control::Delivers(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{CLOSED, Header, WatermarkStep};

    fn frame(change: impl FnOnce(&mut Frame)) -> Frame {
        let header = Header { incarnation: 2, sequence: 0, sent_at: 5, cost: 0 };
        let mut frame = Frame { header, content: Content::Frontier { epoch: 3, rows: 0, steps: Vec::new() } };
        change(&mut frame);
        frame
    }

    #[test]
    fn frames_that_no_sender_sends_are_damage() {
        let cases: [(Frame, &str); 7] = [
            (frame(|frame| frame.header.sequence = 1), "came instead of 0"),
            (frame(|frame| frame.header.incarnation = 3), "incarnation 3"),
            (frame(|frame| frame.header.cost = u64::MAX), "costs"),
            (frame(|frame| frame.header.cost = MOST_COST + 1), "costs"),
            (frame(|frame| frame.header.sent_at = i64::MIN), "no time"),
            (frame(|frame| frame.header.sent_at = i64::MAX), "no time"),
            (
                frame(|frame| {
                    let step = |epoch| WatermarkStep { epoch, watermark: 1 };
                    frame.content = Content::Frontier { epoch: 9, rows: 0, steps: vec![step(4), step(3)] };
                }),
                "go back",
            ),
        ];
        for (frame, word) in cases {
            let error = Frames::of(2).check(&frame).expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        }
        let mut frames = Frames::of(2);
        for sequence in 0..3 {
            frames.check(&frame(|frame| frame.header.sequence = sequence)).expect("nothing fails here");
        }
        assert!(frames.check(&frame(|frame| frame.header.sequence = 2)).is_err(), "a repetition");
    }

    #[test]
    fn control_words_that_no_receiver_says_are_damage() {
        let after = |words: &[Control], last: Control| {
            let mut controls = Controls::default();
            controls.sent(100);
            words.iter().for_each(|word| controls.check(*word).expect("nothing fails here"));
            controls.check(last).expect_err("cannot be").to_string()
        };
        let resumed = Control::Resume(4);
        assert!(after(&[], Control::Credit(1)).contains("does not say from where"));
        assert!(after(&[], Control::Durable(1)).contains("does not say from where"));
        assert!(after(&[resumed], resumed).contains("twice"));
        assert!(after(&[resumed], Control::Credit(u64::MAX)).contains("100 were taken"));
        assert!(after(&[resumed, Control::Credit(60)], Control::Credit(41)).contains("40 were taken"));
        assert!(after(&[resumed, Control::Durable(CLOSED)], Control::Durable(5)).contains("durable"));
    }
}
