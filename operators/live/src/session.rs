//! One connection to a camera by RTSP, from the first request to coded frames.
use crate::address::Address;
use crate::board::Board;
use crate::decoder::{Codec, Coded, Unit};
use crate::decoding::LARGEST_UNIT;
use crate::event_time::CameraClock;
use crate::supervision::Fault;
use futures_util::StreamExt;
use retina::client::{
    self, Described, PlayOptions, SessionGroup, SessionOptions, SetupOptions, TcpTransportOptions,
    UdpTransportOptions, UnassignedChannelDataPolicy,
};
use retina::codec::{CodecItem, FrameFormat, ParametersRef, VideoFrame, VideoParametersCodec};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// Reader of a camera.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SessionBy {
    /// This program; ffmpeg only decodes.
    #[default]
    Own,
    /// ffmpeg, for cameras that encrypt (`rtsps://`, whose certificates it does not check) or that cannot be read otherwise.
    Ffmpeg,
}

/// Carrier of the pictures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Transport {
    /// The connection of the requests: nothing is lost.
    #[default]
    Tcp,
    /// Packets of their own: less delay where packets are lost, and damaged pictures there.
    Udp,
}

/// Source of event times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Clock {
    /// The time when a frame arrives here.
    #[default]
    Arrival,
    /// The time when the camera took it, by its own clock.
    Camera,
}

/// A connection that sends frames.
pub(crate) struct Session {
    items: client::Demuxed,
    video: usize,
    clock: Clock,
    camera: CameraClock,
    coded: Option<Arc<Coded>>,
    address: Address,
    is_wrong: bool,
}

impl Session {
    /// Connects, chooses the first stream of video that can be decoded, and starts it.
    pub(crate) async fn open(
        address: Address,
        transport: Transport,
        clock: Clock,
        group: Arc<SessionGroup>,
    ) -> Result<Self, Fault> {
        let fault = |error: &retina::Error| fault(error, &address);
        let options = SessionOptions::default()
            .creds(address.credentials())
            .user_agent("tidemill".to_owned())
            .session_group(group)
            // Some servers send what belongs to another stream.
            .unassigned_channel_data(UnassignedChannelDataPolicy::Auto);
        let described = client::Session::describe(address.url().clone(), options).await;
        let mut session = described.map_err(|error| fault(&error))?;
        let video = video_of(&session)?;
        let transport = match transport {
            Transport::Tcp => client::Transport::Tcp(TcpTransportOptions::default()),
            Transport::Udp => client::Transport::Udp(UdpTransportOptions::default()),
        };
        let setup = SetupOptions::default().transport(transport).frame_format(FrameFormat::SIMPLE);
        session.setup(video, setup).await.map_err(|error| fault(&error))?;
        let playing = session.play(PlayOptions::default()).await.map_err(|error| fault(&error))?;
        let items = playing.demuxed().map_err(|error| fault(&error))?;
        let camera = CameraClock::default();
        Ok(Self { items, video, clock, camera, coded: None, address, is_wrong: false })
    }

    /// Returns the next frame. May be cancelled while it waits.
    pub(crate) async fn next(&mut self, board: &Board) -> Result<Unit, Fault> {
        loop {
            let item = match self.items.next().await {
                Some(Ok(item)) => item,
                Some(Err(error)) => return Err(fault(&error, &self.address)),
                None => return Err(Fault::Gone("the camera ended the stream".to_owned())),
            };
            match item {
                CodecItem::VideoFrame(frame) if frame.stream_id() == self.video => {
                    if let Some(unit) = self.unit(frame, board) {
                        return Ok(unit);
                    }
                }
                CodecItem::Rtcp(packet) if packet.stream_id() == self.video => {
                    let report = packet.pkts().next().and_then(|first| first.as_sender_report().ok()?);
                    if let (Some(media), Some(report)) = (packet.rtp_timestamp(), report) {
                        self.camera.report(seconds(media), report.ntp_timestamp().0);
                    }
                }
                _ => {}
            }
        }
    }

    fn unit(&mut self, frame: VideoFrame, board: &Board) -> Option<Unit> {
        let stream = self.items.streams().get(self.video)?;
        if self.coded.is_none() || frame.has_new_parameters() {
            let jpeg = stream.encoding_name() == "jpeg";
            let coded = match stream.parameters() {
                Some(ParametersRef::Video(parameters)) => {
                    let codec = match parameters.codec_params() {
                        VideoParametersCodec::H264 { .. } => Codec::H264,
                        VideoParametersCodec::H265 { .. } => Codec::H265,
                        _ => Codec::Jpeg,
                    };
                    let size =
                        Some(parameters.pixel_dimensions()).filter(|(width, height)| width * height > 0);
                    Coded { codec, size, parameters: parameters.extra_data().to_vec() }
                }
                // Parameters come with a key frame.
                _ if !jpeg => return None,
                _ => Coded { codec: Codec::Jpeg, size: None, parameters: Vec::new() },
            };
            self.coded = Some(Arc::new(coded));
        }
        let coded = Arc::clone(self.coded.as_ref()?);
        let now = board.now();
        let time = match self.clock {
            Clock::Arrival => now,
            Clock::Camera => {
                let media = seconds(frame.timestamp());
                self.is_wrong |= self.camera.is_wrong(media, now);
                self.camera.time(media, now)
            }
        };
        let is_key = frame.is_random_access_point() || coded.codec == Codec::Jpeg;
        let data = frame.into_data();
        (data.len() <= LARGEST_UNIT).then_some(Unit { coded, data, time, is_key })
    }

    /// Returns what is odd about the camera's clock, if it is used; empty if nothing.
    pub(crate) fn remark(&self) -> String {
        match (self.clock, self.camera.jumps()) {
            (Clock::Camera, _) if self.is_wrong => {
                "its clock is off by more than a minute, so that times are those of the arrival: set it"
                    .to_owned()
            }
            (Clock::Camera, jumps) if jumps > 0 => format!("its clock has jumped {jumps} times"),
            _ => String::new(),
        }
    }
}

fn seconds(timestamp: retina::Timestamp) -> f64 {
    timestamp.timestamp() as f64 / f64::from(timestamp.clock_rate().get())
}

fn video_of(session: &client::Session<Described>) -> Result<usize, Fault> {
    let streams = session.streams();
    let is_video = |stream: &&client::Stream| stream.media() == "video";
    let is_known = |stream: &client::Stream| matches!(stream.encoding_name(), "h264" | "h265" | "jpeg");
    if let Some(video) = streams.iter().position(|stream| is_video(&stream) && is_known(stream)) {
        return Ok(video);
    }
    let named: Vec<&str> = streams.iter().filter(is_video).map(client::Stream::encoding_name).collect();
    Err(Fault::Missing(match named.as_slice() {
        [] => "the camera sends no video at this address".to_owned(),
        named => format!("the camera sends {}: set it to H.264, H.265 or MJPEG", named.join(", ")),
    }))
}

/// Describes an error without secrets.
fn fault(error: &retina::Error, address: &Address) -> Fault {
    match error.status_code() {
        Some(401) => Fault::unauthorized(address.has_login()),
        Some(403) => Fault::forbidden(),
        Some(404) => Fault::no_path(),
        Some(status) => Fault::Gone(format!("the camera answered with status {status}")),
        // The rest of the text is about packets.
        None => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Fault::Gone(address.redact(line))
        }
    }
}
