//! The beginnings of ffmpeg's structs that are read here, and its constants.
//!
//! ffmpeg keeps these within a major version: "the order of members is fixed, new ones are added at the end" (its headers
//! say so of `AVFrame`, `AVStream` and `AVFormatContext`: "New fields can be added to the end with minor version bumps.
//! Removal, reordering and changes to existing fields require a major version bump"). They are those of ffmpeg 8: libavutil
//! 60, libavcodec 62, libavformat 62. Members up to the last one used are listed, and nothing is allocated here: ffmpeg
//! allocates, so that a struct may be longer than its beginning. `AVCodecContext` and `SwsContext` are set by name
//! (`av_opt_set`), which needs no layout. [`crate::Library::load`] refuses other major versions.
use std::ffi::{c_int, c_void};
use std::marker::{PhantomData, PhantomPinned};

/// Declares structs of which only addresses are known.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[repr(C)]
        pub(crate) struct $name {
            _bytes: [u8; 0],
            _pinned: PhantomData<(*mut u8, PhantomPinned)>,
        })*
    };
}

opaque! {
    /// `AVCodec`.
    AvCodec;
    /// `AVCodecContext`.
    AvCodecContext;
    /// `AVDictionary`.
    AvDictionary;
    /// `SwsContext`.
    SwsContext;
}

/// `AVRational`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AvRational {
    pub(crate) numerator: c_int,
    pub(crate) denominator: c_int,
}

/// Beginning of `AVFrame` (`libavutil/frame.h`).
#[repr(C)]
pub(crate) struct AvFrame {
    pub(crate) data: [*mut u8; 8],
    pub(crate) line_sizes: [c_int; 8],
    extended_data: *mut *mut u8,
    pub(crate) width: c_int,
    pub(crate) height: c_int,
    samples: c_int,
    pub(crate) format: c_int,
    picture_type: c_int,
    sample_aspect_ratio: AvRational,
    pub(crate) pts: i64,
    packet_dts: i64,
    time_base: AvRational,
    quality: c_int,
    opaque: *mut c_void,
    repeat_picture: c_int,
    sample_rate: c_int,
    buffers: [*mut c_void; 8],
    extended_buffers: *mut *mut c_void,
    extended_buffer_count: c_int,
    side_data: *mut *mut c_void,
    side_data_count: c_int,
    pub(crate) flags: c_int,
    pub(crate) range: c_int,
    primaries: c_int,
    transfer: c_int,
    pub(crate) matrix: c_int,
    chroma_location: c_int,
    pub(crate) best_effort_pts: i64,
    metadata: *mut AvDictionary,
    pub(crate) decode_errors: c_int,
}

/// Beginning of `AVPacket` (`libavcodec/packet.h`).
#[repr(C)]
pub(crate) struct AvPacket {
    buffer: *mut c_void,
    pub(crate) pts: i64,
    pub(crate) dts: i64,
    pub(crate) data: *mut u8,
    pub(crate) size: c_int,
    pub(crate) stream: c_int,
    pub(crate) flags: c_int,
    side_data: *mut AvPacketSideData,
    side_data_count: c_int,
    pub(crate) duration: i64,
}

/// Beginning of `AVPacketSideData` (`libavcodec/packet.h`).
#[repr(C)]
pub(crate) struct AvPacketSideData {
    pub(crate) data: *mut u8,
    pub(crate) size: usize,
}

/// Beginning of `AVCodecParameters` (`libavcodec/codec_par.h`).
#[repr(C)]
pub(crate) struct AvCodecParameters {
    pub(crate) kind: c_int,
    pub(crate) codec: c_int,
    tag: u32,
    pub(crate) extradata: *mut u8,
    pub(crate) extradata_size: c_int,
    pub(crate) side_data: *mut AvPacketSideData,
    pub(crate) side_data_count: c_int,
    pub(crate) format: c_int,
    bit_rate: i64,
    bits_per_coded_sample: c_int,
    bits_per_raw_sample: c_int,
    profile: c_int,
    level: c_int,
    pub(crate) width: c_int,
    pub(crate) height: c_int,
}

/// Beginning of `AVStream` (`libavformat/avformat.h`).
#[repr(C)]
pub(crate) struct AvStream {
    class: *const c_void,
    index: c_int,
    id: c_int,
    pub(crate) parameters: *mut AvCodecParameters,
    private: *mut c_void,
    pub(crate) time_base: AvRational,
    pub(crate) start_time: i64,
    pub(crate) duration: i64,
    pub(crate) frames: i64,
    pub(crate) disposition: c_int,
    pub(crate) discard: c_int,
    sample_aspect_ratio: AvRational,
    metadata: *mut AvDictionary,
    pub(crate) average_rate: AvRational,
}

/// Beginning of `AVFormatContext` (`libavformat/avformat.h`).
#[repr(C)]
pub(crate) struct AvFormatContext {
    class: *const c_void,
    input_format: *const c_void,
    output_format: *const c_void,
    private: *mut c_void,
    io: *mut c_void,
    flags: c_int,
    pub(crate) stream_count: u32,
    pub(crate) streams: *mut *mut AvStream,
}

/// `AV_NOPTS_VALUE`.
pub(crate) const NO_TIME: i64 = i64::MIN;
/// `AVMEDIA_TYPE_VIDEO`.
pub(crate) const VIDEO: c_int = 0;
/// `AVERROR(EAGAIN)`.
pub(crate) const AGAIN: c_int = -11;
/// `AVERROR(ENOMEM)`.
pub(crate) const NO_MEMORY: c_int = -12;
/// `AVERROR_EOF`.
pub(crate) const END: c_int = -tag(*b"EOF ");
/// `AVERROR_INVALIDDATA`.
pub(crate) const INVALID_DATA: c_int = -tag(*b"INDA");
/// `AV_LOG_QUIET`.
pub(crate) const QUIET: c_int = -8;
/// `AV_INPUT_BUFFER_PADDING_SIZE`.
pub(crate) const PADDING: usize = 64;
/// `AV_PKT_FLAG_KEY`.
pub(crate) const PACKET_KEY: c_int = 1;
/// `AV_PKT_FLAG_CORRUPT`.
pub(crate) const PACKET_CORRUPT: c_int = 2;
/// `AV_PKT_FLAG_DISCARD`.
pub(crate) const PACKET_DISCARD: c_int = 4;
/// `AV_PKT_DATA_DISPLAYMATRIX`.
pub(crate) const DISPLAY_MATRIX: c_int = 5;
/// `AV_FRAME_FLAG_CORRUPT`.
pub(crate) const FRAME_CORRUPT: c_int = 1;
/// `AV_FRAME_FLAG_KEY`.
pub(crate) const FRAME_KEY: c_int = 2;
/// `AV_DISPOSITION_ATTACHED_PIC`.
pub(crate) const ATTACHED_PICTURE: c_int = 1024;
/// `AVDISCARD_DEFAULT`.
pub(crate) const DISCARD_DEFAULT: c_int = 0;
/// `AVDISCARD_ALL`.
pub(crate) const DISCARD_ALL: c_int = 48;

/// `MKTAG`.
const fn tag(letters: [u8; 4]) -> c_int {
    c_int::from_le_bytes(letters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The numbers are those that `offsetof` gives with the headers of ffmpeg 8.1, on 64-bit systems.
    #[test]
    fn members_are_where_the_headers_of_ffmpeg_8_have_them() {
        let frame = [
            offset_of!(AvFrame, line_sizes),
            offset_of!(AvFrame, width),
            offset_of!(AvFrame, height),
            offset_of!(AvFrame, format),
            offset_of!(AvFrame, pts),
            offset_of!(AvFrame, flags),
            offset_of!(AvFrame, range),
            offset_of!(AvFrame, matrix),
            offset_of!(AvFrame, best_effort_pts),
            offset_of!(AvFrame, decode_errors),
        ];
        assert_eq!(frame, [64, 104, 108, 116, 136, 276, 280, 292, 304, 320]);
        let packet = [
            offset_of!(AvPacket, pts),
            offset_of!(AvPacket, dts),
            offset_of!(AvPacket, data),
            offset_of!(AvPacket, size),
            offset_of!(AvPacket, stream),
            offset_of!(AvPacket, flags),
            offset_of!(AvPacket, duration),
        ];
        assert_eq!(packet, [8, 16, 24, 32, 36, 40, 64]);
        let parameters = [
            offset_of!(AvCodecParameters, codec),
            offset_of!(AvCodecParameters, extradata),
            offset_of!(AvCodecParameters, extradata_size),
            offset_of!(AvCodecParameters, side_data),
            offset_of!(AvCodecParameters, side_data_count),
            offset_of!(AvCodecParameters, format),
            offset_of!(AvCodecParameters, width),
            offset_of!(AvCodecParameters, height),
        ];
        assert_eq!(parameters, [4, 16, 24, 32, 40, 44, 72, 76]);
        let stream = [
            offset_of!(AvStream, parameters),
            offset_of!(AvStream, time_base),
            offset_of!(AvStream, start_time),
            offset_of!(AvStream, duration),
            offset_of!(AvStream, frames),
            offset_of!(AvStream, disposition),
            offset_of!(AvStream, discard),
            offset_of!(AvStream, average_rate),
        ];
        assert_eq!(stream, [16, 32, 40, 48, 56, 64, 68, 88]);
        assert_eq!(
            (offset_of!(AvFormatContext, stream_count), offset_of!(AvFormatContext, streams)),
            (44, 48)
        );
        assert_eq!((END, INVALID_DATA), (-541_478_725, -1_094_995_529));
    }
}
