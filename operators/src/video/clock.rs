//! Agreement of a video's index and its decoder on one clock.
use super::child::{MARK, time_in};
use super::index::{FrameTime, Index, IndexError, command, complaint, named};
use std::path::Path;
use std::process::Stdio;

/// Frames decoded to compare the container's times with the decoder's.
const PROBE: usize = 48;

/// Source of the times of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// Times of the container, which the decoder confirms.
    Packets,
    /// Times of the decoder when it reads from the start: the container lacks some, or has others.
    Decoder,
    /// Times of the container in the order of the decoder, whose own times go back: its n-th picture is frame n.
    Count,
}

/// Chooses the clock of an index of packets, and stores the decoder's times there if it is the decoder. Returns false if
/// neither has times that distinguish all frames. Decodes the first frames of a file whose times are doubtful, and all
/// frames if they are wrong.
///
/// # Errors
/// [`IndexError::Start`].
pub(super) fn agreed(
    program: &Path,
    file: &Path,
    index: &mut Index,
    is_damaged: bool,
) -> Result<bool, IndexError> {
    // A container that stores another order than that of decoding has times of its own, and frames without prediction have
    // no other order.
    let is_doubtful = index.packets.lack_times
        || index.packets.are_in_order && index.frames.iter().any(|frame| !frame.is_key);
    if !is_doubtful {
        return Ok(true);
    }
    let is_start = |times: &[i64]| {
        index.frames.iter().map(|frame| frame.time).take(times.len()).eq(times.iter().copied())
    };
    if !index.packets.lack_times {
        let (times, _) = decoded(program, file, Some(PROBE))?;
        if times.len() == index.frames.len().min(PROBE) && is_start(&times) {
            return Ok(true);
        }
    }
    let (times, words) = decoded(program, file, None)?;
    let is_rising = !times.is_empty() && times.windows(2).all(|two| two[0] < two[1]);
    let is_listed = |time: &i64| index.frames.binary_search_by_key(time, |frame| frame.time).is_ok();
    // Some frames are damaged, and the others have the container's times.
    if is_rising && !index.packets.lack_times && times.iter().all(is_listed) {
        return Ok(true);
    }
    if is_rising {
        index.frames = times.into_iter().map(|time| FrameTime { time, is_key: false }).collect();
        (index.clock, index.lost) = (Clock::Decoder, 0);
        if let Some(words) = words {
            if !is_damaged {
                index.fill_gaps();
            }
            let missing = index.packets.count.saturating_sub(index.frames.len());
            index.complaint = (missing > 0)
                .then(|| format!("{missing} frames are corrupt at its beginning or end: {words}"));
        }
        return Ok(true);
    }
    // The order identifies the frames only if each packet is a picture.
    if times.len() == index.packets.count && index.lost == 0 {
        index.clock = Clock::Count;
        return Ok(true);
    }
    Ok(false)
}

/// Times of the first frames as the decoder gives them, at most `most`, and ffmpeg's complaints.
fn decoded(
    program: &Path,
    file: &Path,
    most: Option<usize>,
) -> Result<(Vec<i64>, Option<String>), IndexError> {
    let mut command = command(program);
    // As when decoding: a damaged frame is left out.
    command.args(["-err_detect", "explode", "-threads", "1", "-max_error_rate", "1", "-i"]).arg(named(file));
    command.args(["-map", "0:v:0", "-fps_mode", "passthrough"]);
    command.args(["-vf", &format!("{},{}", MARK, "metadata=mode=print:key=tidemill:file='pipe\\:1'")]);
    if let Some(most) = most {
        command.args(["-frames:v", &most.to_string()]);
    }
    let output = command
        .args(["-f", "null", "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| IndexError::Start { program: program.display().to_string(), error })?;
    let mut times: Vec<i64> = String::from_utf8_lossy(&output.stdout).lines().filter_map(time_in).collect();
    // The filter runs ahead of the end.
    times.truncate(most.unwrap_or(usize::MAX));
    Ok((times, complaint(&String::from_utf8_lossy(&output.stderr), file)))
}
