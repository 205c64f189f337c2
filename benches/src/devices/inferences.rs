//! An inference: upload, run and read, in one message of a session or on a device of this process.
use super::far_end::{Connected, Host};
use super::now;
use std::time::Instant;
use tidemill_device::device::{Device, ModelId, Run, TensorId};
use tidemill_device::session::{CallError, Pending};
use tidemill_device::value::{Element, Value};

/// Bytes of 3 x 224 x 224 floats.
pub(super) const FLOATS: usize = 602_112;
/// Bytes of the outputs of emulated models: a vector of numbers.
pub(super) const OUTPUT: usize = 4_000;

/// An input, and what runs on it.
pub(super) struct Input {
    pub(super) element: Element,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
    /// The size of the outputs of an emulated model; none: the outputs are those of a model.
    pub(super) outputs: Option<usize>,
}

impl Input {
    /// For an emulated model. It makes outputs that are as large as its input, of all of its bytes, which would take longer than what is
    /// measured: it runs on a tensor as large as the outputs. The upload comes before it all the same.
    pub(super) fn emulated(bytes: usize) -> Self {
        Self { element: Element::Uint8, shape: vec![bytes], bytes: vec![7; bytes], outputs: Some(OUTPUT) }
    }

    fn value(&self) -> anyhow::Result<Value> {
        Ok(Value::new(self.element, self.shape.clone(), self.bytes.clone())?)
    }
}

/// A session that has what an input needs.
pub(super) struct Client<'a> {
    to: Connected,
    input: &'a Input,
    template: Option<TensorId>,
}

/// An inference that was posted.
pub(super) struct Posted {
    begin: Instant,
    pending: Pending,
}

impl<'a> Client<'a> {
    pub(super) fn new(to: Connected, input: &'a Input) -> anyhow::Result<Self> {
        let make = |bytes| to.lane().create(Element::Uint8, &[bytes]);
        let template = input.outputs.map(make).transpose()?;
        to.flush()?;
        Ok(Self { to, input, template })
    }

    pub(super) fn post(&self) -> Result<Posted, CallError> {
        let (begin, Input { element, shape, bytes, .. }) = (now(), self.input);
        let mut lane = self.to.lane();
        let uploaded = lane.upload(*element, shape, bytes)?;
        let made = lane.run(self.to.model, &[self.template.unwrap_or(uploaded)], &[0])?;
        let made = made.first().copied().unwrap_or(uploaded);
        let pending = lane.read(made)?;
        lane.free(&[uploaded, made])?;
        Ok(Posted { begin, pending })
    }
}

impl Posted {
    /// Seconds until the output is here.
    pub(super) fn wait(self) -> Result<f64, CallError> {
        let answer = self.pending.wait()?;
        std::hint::black_box(answer.value()?);
        Ok(self.begin.elapsed().as_secs_f64())
    }
}

/// A device of this process.
pub(super) struct Here<'a> {
    device: Box<dyn Device>,
    model: ModelId,
    input: &'a Input,
}

impl<'a> Here<'a> {
    pub(super) fn new(host: &Host, input: &'a Input) -> anyhow::Result<Self> {
        let (mut device, model) = host.here()?;
        if let Some(bytes) = input.outputs {
            device.create(TensorId(0), Element::Uint8, &[bytes])?;
        }
        Ok(Self { device, model, input })
    }

    /// Seconds of an inference. The input is copied, as each executor copies it out of its records.
    pub(super) fn infer(&mut self) -> anyhow::Result<f64> {
        let begin = now();
        let [template, uploaded, made] = [TensorId(0), TensorId(1), TensorId(2)];
        self.device.upload(uploaded, self.input.value()?)?;
        let input = if self.input.outputs.is_some() { template } else { uploaded };
        self.device.run(&Run { model: self.model, inputs: vec![input], outputs: vec![(0, made)] })?;
        std::hint::black_box(self.device.read(made)?);
        self.device.free(uploaded);
        self.device.free(made);
        Ok(begin.elapsed().as_secs_f64())
    }
}

pub(super) fn milliseconds(seconds: &[f64]) -> Vec<f64> {
    seconds.iter().map(|seconds| seconds * 1e3).collect()
}
