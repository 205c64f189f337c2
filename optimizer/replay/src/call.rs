//! Calls of a session with its device.

/// Class of a call: whether a message is sent, and what the caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Sent at once; the caller continues without an answer: an upload, a run.
    Async,
    /// Creates an object whose handle the caller chooses: sent as an asynchronous call.
    Shadow,
    /// Answered from facts that the caller has: nothing is sent.
    Local,
    /// The caller waits for the answer: a read, a flush.
    Sync,
}

impl Class {
    /// Whether the call is a message to the device.
    pub fn is_sent(self) -> bool {
        self != Class::Local
    }
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// Its class.
    pub class: Class,
    /// Time of the program between the end of the call before and this one.
    pub gap: f64,
    /// Time of the caller's processor: to write the message and post it, or to look up the answer of a local call.
    pub serialise: f64,
    /// Bytes to the device.
    pub payload: f64,
    /// Time of the device's processor to read the message.
    pub deserialise: f64,
    /// Time of the call itself on a processor, without the device: where the device is local, the caller spends it.
    pub process: f64,
    /// Time of the device for what the call starts; 0 if nothing.
    pub kernel: f64,
    /// Whether a synchronous call waits until the device has done all that was started before.
    pub waits: bool,
    /// Bytes of the answer of a synchronous call.
    pub reply: f64,
}

impl Call {
    /// Creates a call of this class that takes no time and carries nothing.
    pub fn new(class: Class) -> Self {
        Self {
            class,
            gap: 0.0,
            serialise: 0.0,
            payload: 0.0,
            deserialise: 0.0,
            process: 0.0,
            kernel: 0.0,
            waits: false,
            reply: 0.0,
        }
    }
}
