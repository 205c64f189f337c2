//! The thread that feeds the decoder of a camera, so that a decoder that is busy holds up no connection.
use crate::decoder::{Coded, Decoder, Decoders, PictureForm, Pictures, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use tidemill_operators::record::EventTime;

/// Frames that may wait for the decoder; later ones are dropped up to the next key frame.
const WAITING: usize = 64;
/// Most bytes of these frames is this many times the largest; a limit for one that is no frame.
pub(crate) const LARGEST_UNIT: usize = 16 << 20;

enum Message {
    Unit(Unit),
    /// The connection is new: what was sent before has no continuation.
    Reset,
}

/// The decoder of one camera. Dropping it ends the decoder and waits for its threads.
pub(crate) struct Decoding {
    sender: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    /// Frames were dropped, and no key frame has come since.
    is_behind: bool,
    is_over: Arc<AtomicBool>,
}

/// Takes no pictures after the end.
struct Gated {
    pictures: Arc<dyn Pictures>,
    is_over: Arc<AtomicBool>,
}

impl Pictures for Gated {
    fn wants(&self, time: EventTime) -> bool {
        !self.is_over.load(Ordering::Acquire) && self.pictures.wants(time)
    }

    fn buffer(&self) -> Vec<u8> {
        self.pictures.buffer()
    }

    fn picture(&self, time: EventTime, picture: Vec<u8>) {
        if !self.is_over.load(Ordering::Acquire) {
            self.pictures.picture(time, picture);
        }
    }
}

impl Decoding {
    pub(crate) fn start(
        decoders: Arc<dyn Decoders>,
        form: PictureForm,
        pictures: Arc<dyn Pictures>,
        camera: &str,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let camera = camera.to_owned();
        let is_over = Arc::new(AtomicBool::new(false));
        let pictures: Arc<dyn Pictures> = Arc::new(Gated { pictures, is_over: Arc::clone(&is_over) });
        let over = Arc::clone(&is_over);
        let run = move || run(&receiver, &over, (decoders.as_ref(), form), &pictures, &camera);
        let thread = std::thread::Builder::new().name("camera-decoder".into()).spawn(run)?;
        Ok(Self { sender: Some(sender), thread: Some(thread), is_behind: false, is_over })
    }

    /// Gives a frame to the decoder. Returns false if it is dropped because the decoder has too many already.
    pub(crate) fn send(&mut self, unit: Unit) -> bool {
        if self.is_behind && !unit.is_key {
            return false;
        }
        let Some(sender) = &self.sender else { return false };
        self.is_behind = matches!(sender.try_send(Message::Unit(unit)), Err(TrySendError::Full(_)));
        !self.is_behind
    }

    /// Ends the decoder: the next frames are of another connection.
    pub(crate) fn reset(&mut self) {
        // A full queue has frames of the old connection, and the next ones are dropped up to a key frame.
        if let Some(sender) = &self.sender {
            self.is_behind = matches!(sender.try_send(Message::Reset), Err(TrySendError::Full(_)));
        }
    }

    /// Lets the thread end by itself, and returns it. Frames that wait are not decoded any more.
    pub(crate) fn finish(mut self) -> Option<JoinHandle<()>> {
        self.is_over.store(true, Ordering::Release);
        self.sender = None;
        self.thread.take()
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    messages: &Receiver<Message>,
    is_over: &AtomicBool,
    (decoders, form): (&dyn Decoders, PictureForm),
    pictures: &Arc<dyn Pictures>,
    camera: &str,
) {
    let mut running: Option<(Arc<Coded>, Box<dyn Decoder>)> = None;
    while let Ok(message) = messages.recv() {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        let Message::Unit(unit) = message else {
            running = None;
            continue;
        };
        // Parameters come with a key frame; the decoder of the old ones may still give their last pictures until then.
        if running
            .as_ref()
            .is_some_and(|(coded, _)| !Arc::ptr_eq(coded, &unit.coded) && **coded != *unit.coded)
        {
            running = None;
        }
        if running.is_none() && unit.is_key {
            match decoders.start(&unit.coded, &form, Arc::clone(pictures)) {
                Ok(decoder) => running = Some((Arc::clone(&unit.coded), decoder)),
                Err(error) => tracing::warn!(camera, "{error}; it is started again at the next key frame"),
            }
        }
        if let Some((_, decoder)) = &mut running
            && let Err(error) = decoder.send(&unit)
        {
            tracing::warn!(camera, "{error}; another one begins at the next key frame");
            running = None;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::decoder::{Codec, DecodeError};
    use std::sync::Mutex;

    /// A decoder that gives each frame at once, and dies of data that says so.
    struct Echo(Arc<dyn Pictures>);

    impl Decoder for Echo {
        fn send(&mut self, unit: &Unit) -> Result<(), DecodeError> {
            if unit.data == b"deadly" {
                return Err(DecodeError::Ended);
            }
            self.0.picture(unit.time, unit.data.clone());
            Ok(())
        }
    }

    #[derive(Default)]
    struct Echoes(Mutex<Vec<Option<(u32, u32)>>>);

    impl Decoders for Echoes {
        fn start(
            &self,
            coded: &Coded,
            _: &PictureForm,
            pictures: Arc<dyn Pictures>,
        ) -> Result<Box<dyn Decoder>, DecodeError> {
            self.0.lock().unwrap().push(coded.size);
            Ok(Box::new(Echo(pictures)))
        }
    }

    #[derive(Default)]
    struct Kept(Mutex<Vec<EventTime>>);

    impl Pictures for Kept {
        fn wants(&self, _: EventTime) -> bool {
            true
        }
        fn buffer(&self) -> Vec<u8> {
            Vec::new()
        }
        fn picture(&self, time: EventTime, _: Vec<u8>) {
            self.0.lock().unwrap().push(time);
        }
    }

    fn coded(width: u32) -> Arc<Coded> {
        Arc::new(Coded { codec: Codec::H264, size: Some((width, 8)), parameters: Vec::new() })
    }

    #[test]
    fn a_decoder_begins_at_a_key_frame() {
        let (echoes, kept) = (Arc::new(Echoes::default()), Arc::new(Kept::default()));
        let form = PictureForm { size: None, jpeg: false, max_pixels: 100 };
        let mut decoding =
            Decoding::start(Arc::clone(&echoes) as _, form, Arc::clone(&kept) as _, "gate").unwrap();
        let (small, same, large) = (coded(8), coded(8), coded(16));
        for (time, coded, is_key, data) in [
            (0, &small, false, "before a key frame"),
            (1, &small, true, ""),
            (2, &same, false, "equal parameters"),
            (3, &same, false, "deadly"),
            (4, &same, false, "lost"),
            (5, &same, true, ""),
            (6, &large, true, "another size"),
            (7, &large, false, ""),
        ] {
            let coded = Arc::clone(coded);
            assert!(decoding.send(Unit { coded, data: data.into(), time, is_key }));
        }
        decoding.reset();
        assert!(decoding.send(Unit { coded: Arc::clone(&large), data: vec![], time: 8, is_key: false }));
        assert!(decoding.send(Unit { coded: Arc::clone(&large), data: vec![], time: 9, is_key: true }));
        while kept.0.lock().unwrap().last() != Some(&9) {
            std::thread::yield_now();
        }
        // What waits at the end is not decoded.
        decoding.finish().unwrap().join().unwrap();
        assert_eq!(*kept.0.lock().unwrap(), [1, 2, 5, 6, 7, 9]);
        assert_eq!(*echoes.0.lock().unwrap(), [Some((8, 8)), Some((8, 8)), Some((16, 8)), Some((16, 8))]);
    }
}
