//! The protocol over HTTP: JSON, and after it the values of tensors as bytes.
use super::address::Address;
use super::agreement::Description;
use super::transport::{Failed, Input, MOST_BYTES, Output, SHORT, Transport, late};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;
use tidemill_http::{Answer, Call, CallError, Caller, HeaderName, HeaderValue, Place, Repeat, Reply};

/// Says how many bytes of a body are JSON; the rest are values.
const JSON_BYTES: HeaderName = HeaderName::from_static("inference-header-content-length");
const CONTENT_TYPE: HeaderName = HeaderName::from_static("content-type");
/// Room that is reserved for an answer before its bytes come.
const RESERVED: u64 = 64 << 20;
/// Characters of an error that is no JSON.
const MOST_TEXT: usize = 300;

pub(super) struct Http {
    caller: Arc<Caller>,
    address: Address,
}

impl Http {
    pub(super) fn new(address: &Address) -> Self {
        let caller = Caller::new(Place::Tcp(address.authority.clone())).connecting_within(SHORT);
        Self { caller: Arc::new(caller), address: address.clone() }
    }

    fn path(&self, rest: &str) -> String {
        format!("{}/v2{rest}", self.address.prefix)
    }

    fn model(&self, model: &str, rest: &str) -> String {
        let version =
            self.address.version.as_deref().map(|version| format!("/versions/{}", escaped(version)));
        self.path(&format!("/models/{}{}{rest}", escaped(model), version.unwrap_or_default()))
    }

    fn get(&self, path: &str) -> Result<Answer, Failed> {
        let answer = self.caller.send(&Call::get(path), SHORT, Repeat::Allowed);
        answer.map_err(|error| lost(&error, SHORT))
    }

    /// Some servers answer by their status alone, others by a truth value in JSON, too.
    fn is(&self, path: &str, field: &str) -> Result<bool, Failed> {
        let answer = self.get(path)?;
        let said = serde_json::from_slice::<Value>(&answer.body).ok();
        let denied = said.is_some_and(|said| said.get(field) == Some(&Value::Bool(false)));
        Ok(answer.status == 200 && !denied)
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, path: &str) -> Result<T, Failed> {
        let answer = self.get(path)?;
        match answer.status {
            200 => serde_json::from_slice(&answer.body).map_err(|error| {
                Failed::Refused(format!("{path} has an answer that is not understood: {error}"))
            }),
            status => Err(refused(status, &answer.body)),
        }
    }
}

impl Transport for Http {
    fn is_live(&self) -> Result<bool, Failed> {
        self.is(&self.path("/health/live"), "live")
    }

    fn is_ready(&self) -> Result<bool, Failed> {
        self.is(&self.path("/health/ready"), "ready")
    }

    fn is_model_ready(&self, model: &str) -> Result<bool, Failed> {
        self.is(&self.model(model, "/ready"), "ready")
    }

    fn about(&self) -> Result<String, Failed> {
        #[derive(Deserialize)]
        struct About {
            name: String,
            version: String,
        }
        let About { name, version } = self.read(&self.path(""))?;
        Ok(format!("{name} {version}"))
    }

    fn describe(&self, model: &str) -> Result<Description, Failed> {
        self.read(&self.model(model, ""))
    }

    fn infer(&self, model: &str, inputs: Vec<Input<'_>>, outputs: &[&str]) -> Result<Vec<Output>, Failed> {
        let (json_bytes, body) = request(inputs, outputs);
        let headers = [
            (JSON_BYTES, HeaderValue::from(json_bytes)),
            (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        ];
        let path = self.model(model, "/infer");
        let call = Call { method: "POST", body: &body, headers: &headers, ..Call::get(&path) };
        let timeout = self.address.timeout;
        // A model is pure: what was computed twice is as if it was computed once.
        let reply =
            self.caller.open(&call, timeout, Repeat::Allowed).map_err(|error| lost(&error, timeout))?;
        drop(body);
        let status = reply.status;
        let json_bytes = reply.header(JSON_BYTES.as_str()).map(|length| length.parse::<usize>().ok());
        let body = whole(reply).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Failed::Lost(late(timeout)),
            _ => Failed::Lost(format!("the answer was cut off: {error}")),
        })?;
        match (status, json_bytes) {
            (200, Some(Some(length))) => answer(&body, length).map_err(Failed::Refused),
            (200, _) => Err(Failed::Refused(
                "the server answered with JSON and no bytes: it lacks the extension for binary tensors; write \
                 `oip:grpc://` and its port for gRPC"
                    .to_owned(),
            )),
            // Who answers so is not the model: a gateway whose server is gone, or a server that unloaded the model.
            (404 | 429 | 502 | 503 | 504, _) => match refused(status, &body) {
                Failed::Refused(text) | Failed::Lost(text) => Err(Failed::Lost(text)),
            },
            _ => Err(refused(status, &body)),
        }
    }
}

/// The number of bytes of the JSON of a request, and its body.
fn request(inputs: Vec<Input<'_>>, outputs: &[&str]) -> (usize, Vec<u8>) {
    let described = inputs.iter().map(|input| {
        let parameters = json!({"binary_data_size": input.bytes.len()});
        json!({"name": input.name, "datatype": input.datatype, "shape": input.shape, "parameters": parameters})
    });
    let wanted = outputs.iter().map(|name| json!({"name": name, "parameters": {"binary_data": true}}));
    let (described, wanted): (Vec<Value>, Vec<Value>) = (described.collect(), wanted.collect());
    let mut body = json!({"inputs": described, "outputs": wanted}).to_string().into_bytes();
    let json_bytes = body.len();
    body.reserve(inputs.iter().map(|input| input.bytes.len()).sum());
    inputs.iter().for_each(|input| body.extend_from_slice(&input.bytes));
    (json_bytes, body)
}

#[derive(Deserialize)]
struct Outputs {
    outputs: Vec<Described>,
}

#[derive(Deserialize)]
struct Described {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Deserialize, Default)]
struct Parameters {
    binary_data_size: Option<usize>,
}

/// Reads an answer, of which the first bytes are JSON.
fn answer(body: &Bytes, json_bytes: usize) -> Result<Vec<Output>, String> {
    let cut = || format!("the answer has {} bytes, fewer than its head says", body.len());
    let json = body.get(..json_bytes).ok_or_else(cut)?;
    let Outputs { outputs } =
        serde_json::from_slice(json).map_err(|error| format!("the answer is not understood: {error}"))?;
    let mut at = json_bytes;
    let taken = outputs.into_iter().map(|Described { name, datatype, shape, parameters }| {
        let length = parameters
            .binary_data_size
            .ok_or_else(|| format!("output `{name}` came as JSON, not as bytes"))?;
        let end = at.checked_add(length).filter(|end| *end <= body.len()).ok_or_else(cut)?;
        let bytes = body.slice(at..end);
        at = end;
        Ok(Output { name, datatype, shape, bytes })
    });
    taken.collect()
}

fn whole(mut reply: Reply) -> std::io::Result<Bytes> {
    let room = reply.length.unwrap_or(0).min(RESERVED);
    let mut body = Vec::with_capacity(usize::try_from(room).unwrap_or(0));
    (&mut reply).take(MOST_BYTES + 1).read_to_end(&mut body)?;
    if body.len() as u64 > MOST_BYTES {
        return Err(std::io::Error::other(format!("it has more than {MOST_BYTES} bytes")));
    }
    Ok(body.into())
}

fn lost(error: &CallError, limit: Duration) -> Failed {
    match error {
        CallError::Request(text) => Failed::Refused(format!("{text:?} cannot be part of a path")),
        CallError::Broken { source, .. } if source.kind() == ErrorKind::TimedOut => Failed::Lost(late(limit)),
        other => Failed::Lost(other.to_string()),
    }
}

/// The text of a server that refuses.
fn refused(status: u16, body: &[u8]) -> Failed {
    let said = serde_json::from_slice::<Value>(body).ok();
    let field = |name: &str| {
        said.as_ref()?.get(name).map(|text| text.as_str().map_or_else(|| text.to_string(), str::to_owned))
    };
    let text = ["error", "detail", "message"].into_iter().find_map(field);
    // The end of a traceback says more than its beginning.
    let end = || {
        let text = String::from_utf8_lossy(body);
        let from = text.trim().char_indices().rev().nth(MOST_TEXT - 1).map_or(0, |(at, _)| at);
        text.trim()[from..].to_owned()
    };
    let text = text.unwrap_or_else(end);
    Failed::Refused(format!("HTTP {status}: {text}"))
}

/// A name as a part of a path.
fn escaped(name: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_has_json_and_bytes() {
        let input =
            |name, bytes: &[u8]| Input { name, datatype: "UINT8", shape: vec![1, 2], bytes: bytes.to_vec() };
        let (json_bytes, body) = request(vec![input("a", b"xy"), input("b", b"z")], &["c"]);
        let json: Value = serde_json::from_slice(&body[..json_bytes]).unwrap();
        let expected = json!({
            "inputs": [
                {"name": "a", "datatype": "UINT8", "shape": [1, 2], "parameters": {"binary_data_size": 2}},
                {"name": "b", "datatype": "UINT8", "shape": [1, 2], "parameters": {"binary_data_size": 1}},
            ],
            "outputs": [{"name": "c", "parameters": {"binary_data": true}}],
        });
        assert_eq!((json, &body[json_bytes..]), (expected, &b"xyz"[..]));
    }

    #[test]
    fn an_answer_is_cut_into_its_outputs() {
        let json = |sizes: [&str; 2]| {
            let [a, b] =
                sizes.map(|size| format!(r#""datatype": "UINT8", "shape": [2], "parameters": {{{size}}}"#));
            format!(r#"{{"model_name": "m", "outputs": [{{"name": "a", {a}}}, {{"name": "b", {b}}}]}}"#)
        };
        let read = |sizes, rest: &str| {
            let json = json(sizes);
            answer(&Bytes::from(format!("{json}{rest}")), json.len())
        };
        let sized = [r#""binary_data_size": 2"#, r#""binary_data_size": 1"#];
        let outputs = read(sized, "xyz").unwrap();
        let found: Vec<_> = outputs.iter().map(|output| (output.name.as_str(), &output.bytes[..])).collect();
        assert_eq!(found, [("a", &b"xy"[..]), ("b", &b"z"[..])]);
        assert!(read(sized, "xy").is_err_and(|reason| reason.contains("fewer than its head says")));
        let most = format!(r#""binary_data_size": {}"#, usize::MAX);
        assert!(read([&most, sized[1]], "xy").is_err());
        assert!(read(["", sized[1]], "xy").is_err_and(|reason| reason.contains("`a` came as JSON")));
        assert!(
            answer(&Bytes::from_static(b"{}"), 3).is_err() && answer(&Bytes::from_static(b"{}"), 2).is_err()
        );
    }

    #[test]
    fn a_server_says_why_it_refuses() {
        let text = |body: &str| match refused(400, body.as_bytes()) {
            Failed::Refused(text) | Failed::Lost(text) => text,
        };
        assert_eq!(text(r#"{"error": "no such model"}"#), "HTTP 400: no such model");
        assert_eq!(text(r#"{"detail": [1]}"#), "HTTP 400: [1]");
        assert_eq!(text(" plain\n"), "HTTP 400: plain");
        let long = format!("{}end", "ä".repeat(1000));
        assert!(
            text(&long).ends_with("äend") && text(&long).chars().count() == MOST_TEXT + "HTTP 400: ".len()
        );
        assert_eq!(escaped("a b/ä-1.0"), "a%20b%2F%C3%A4-1.0");
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(body: Vec<u8>, json_bytes in 0usize..80, size in 0usize..200) {
            let _ = answer(&Bytes::from(body.clone()), json_bytes);
            let parameters = format!(r#"{{"binary_data_size": {size}}}"#);
            let json = format!(
                r#"{{"outputs": [{{"name": "a", "datatype": "INT8", "shape": [1], "parameters": {parameters}}}]}}"#
            );
            let whole = [json.as_bytes(), &body].concat();
            let read = answer(&Bytes::from(whole), json.len());
            prop_assert_eq!(read.is_ok(), size <= body.len());
        }
    }
}
