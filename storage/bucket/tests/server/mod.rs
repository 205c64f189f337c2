//! A small S3 server in this process, for tests: one bucket `abc`, correct conditional writes, and failures on demand.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "for several tests; a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Treatment of the next requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mood {
    /// Serves them.
    #[default]
    Serves,
    /// Serves this many more, then answers 503.
    FailsAfter(usize),
    /// Answers 503 to this many, then serves.
    Fails(usize),
    /// Performs this many writes, but closes the connection instead of answering.
    LosesAnswers(usize),
    /// Answers 403.
    Denies,
}

#[derive(Default)]
struct Inside {
    objects: BTreeMap<String, (Vec<u8>, String)>,
    writes: u64,
    mood: Mood,
    /// Method and path of every request.
    requests: Vec<String>,
    /// Parts of incomplete files, by the name of the upload.
    parts: BTreeMap<String, BTreeMap<u64, Vec<u8>>>,
}

/// The server; it serves as long as the process lives.
#[derive(Clone)]
pub struct Server {
    inside: Arc<Mutex<Inside>>,
    port: u16,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: &'static str,
    tag: Option<String>,
    body: Vec<u8>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { inside: Arc::default(), port: listener.local_addr().unwrap().port() };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = serving.clone();
                std::thread::spawn(move || server.serve(stream.unwrap()));
            }
        });
        server
    }

    /// The variables for a client.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "name-of-test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret-of-test".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap()
    }

    pub fn set(&self, mood: Mood) {
        self.inside().mood = mood;
    }

    pub fn mood(&self) -> Mood {
        self.inside().mood
    }

    /// The names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.inside().objects.keys().cloned().collect()
    }

    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.inside().objects.get(name).map(|(bytes, _)| bytes.clone())
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        self.inside().put(name, bytes.to_vec());
    }

    pub fn remove(&self, name: &str) {
        self.inside().objects.remove(name);
    }

    /// Method and path of every request since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.inside().requests)
    }

    fn serve(&self, stream: TcpStream) {
        let mut input = BufReader::new(stream.try_clone().unwrap());
        let mut output = stream;
        while let Some(request) = Request::read(&mut input) {
            let Some(answer) = self.inside().serve(&request) else { return };
            if answer.write(&mut output, request.method == "HEAD").is_none() {
                return;
            }
        }
    }
}

impl Inside {
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> String {
        self.writes += 1;
        let tag = format!("\"{:032x}\"", self.writes);
        self.objects.insert(name.to_owned(), (bytes, tag.clone()));
        tag
    }

    /// None: no answer.
    fn serve(&mut self, request: &Request) -> Option<Answer> {
        self.requests.push(format!("{} {}", request.method, request.path));
        match self.mood {
            Mood::Fails(0) | Mood::LosesAnswers(0) => self.mood = Mood::Serves,
            Mood::Fails(left) => {
                self.mood = Mood::Fails(left - 1);
                return Some(Answer::error("503 Service Unavailable", "SlowDown"));
            }
            Mood::FailsAfter(0) => return Some(Answer::error("503 Service Unavailable", "SlowDown")),
            Mood::FailsAfter(left) => self.mood = Mood::FailsAfter(left - 1),
            Mood::Denies => return Some(Answer::error("403 Forbidden", "AccessDenied")),
            Mood::LosesAnswers(_) | Mood::Serves => {}
        }
        let answer = self.answer(request);
        match self.mood {
            Mood::LosesAnswers(left) if request.method == "PUT" => {
                self.mood = Mood::LosesAnswers(left - 1);
                None
            }
            _ => Some(answer),
        }
    }

    fn answer(&mut self, request: &Request) -> Answer {
        let Some(name) = request.path.strip_prefix("/abc") else {
            return Answer::error("404 Not Found", "NoSuchBucket");
        };
        let name = name.trim_start_matches('/');
        if name.is_empty() && request.method == "GET" {
            return self.list(request);
        }
        if let Some(answer) = self.in_parts(name, request) {
            return answer;
        }
        let there = self.objects.get(name);
        match request.method.as_str() {
            "GET" | "HEAD" => match there {
                Some((bytes, tag)) => {
                    Answer { status: "200 OK", tag: Some(tag.clone()), body: bytes.clone() }
                }
                None => Answer::error("404 Not Found", "NoSuchKey"),
            },
            "PUT" => {
                let wanted = request.headers.get("if-match");
                let has_conflict = request.headers.contains_key("if-none-match") && there.is_some();
                if wanted.is_some() && there.is_none() {
                    return Answer::error("404 Not Found", "NoSuchKey");
                }
                if has_conflict || wanted.is_some_and(|wanted| there.is_none_or(|(_, tag)| tag != wanted)) {
                    return Answer::error("412 Precondition Failed", "PreconditionFailed");
                }
                let tag = self.put(name, request.body.clone());
                Answer { status: "200 OK", tag: Some(tag), body: Vec::new() }
            }
            "DELETE" => {
                self.objects.remove(name);
                Answer { status: "204 No Content", tag: None, body: Vec::new() }
            }
            _ => Answer::error("405 Method Not Allowed", "MethodNotAllowed"),
        }
    }

    /// Handles requests of a multipart upload.
    fn in_parts(&mut self, name: &str, request: &Request) -> Option<Answer> {
        let said = |body: String| Some(Answer { status: "200 OK", tag: None, body: body.into_bytes() });
        let upload = request.field("uploadId");
        match request.method.as_str() {
            "POST" if request.query.split('&').any(|field| field.starts_with("uploads")) => {
                let upload = format!("upload-{}", self.parts.len());
                self.parts.insert(upload.clone(), BTreeMap::new());
                said(format!(
                    "<InitiateMultipartUploadResult><Bucket>abc</Bucket><Key>{name}</Key><UploadId>{upload}</UploadId>\
                     </InitiateMultipartUploadResult>"
                ))
            }
            "PUT" if !upload.is_empty() => {
                let number = request.field("partNumber").parse().unwrap();
                self.parts.get_mut(&upload).unwrap().insert(number, request.body.clone());
                Some(Answer { status: "200 OK", tag: Some(format!("\"{number}\"")), body: Vec::new() })
            }
            "POST" if !upload.is_empty() => {
                let parts = self.parts.get_mut(&upload).map(std::mem::take).unwrap();
                let tag = self.put(name, parts.into_values().flatten().collect());
                said(format!(
                    "<CompleteMultipartUploadResult><Key>{name}</Key><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
                ))
            }
            _ => None,
        }
    }

    fn list(&self, request: &Request) -> Answer {
        let (prefix, delimiter) = (request.field("prefix"), request.field("delimiter"));
        let mut text = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
        let mut folders = std::collections::BTreeSet::new();
        for (name, (bytes, tag)) in self.objects.iter().filter(|(name, _)| name.starts_with(&prefix)) {
            if let Some((folder, _)) = name[prefix.len()..].split_once('/').filter(|_| !delimiter.is_empty())
            {
                folders.insert(format!("{prefix}{folder}/"));
                continue;
            }
            let bytes = bytes.len();
            write!(
                text,
                "<Contents><Key>{name}</Key><LastModified>2026-11-23T08:00:00.000Z</LastModified>\
                 <ETag>{tag}</ETag><Size>{bytes}</Size></Contents>"
            )
            .unwrap();
        }
        for folder in folders {
            write!(text, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>").unwrap();
        }
        text.push_str("</ListBucketResult>");
        Answer { status: "200 OK", tag: None, body: text.into_bytes() }
    }
}

impl Request {
    /// A field of the query; empty: missing.
    fn field(&self, name: &str) -> String {
        let mut fields = self.query.split('&').filter_map(|field| field.split_once('='));
        fields.find(|(field, _)| *field == name).map_or(String::new(), |(_, value)| decoded(value))
    }

    fn read(input: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            input.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        input.read_exact(&mut body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        Some(Self { method, path: decoded(path), query: query.to_owned(), headers, body })
    }
}

impl Answer {
    fn error(status: &'static str, code: &str) -> Self {
        let body = format!("<Error><Code>{code}</Code><Message>of the test</Message></Error>").into_bytes();
        Self { status, tag: None, body }
    }

    fn write(&self, output: &mut TcpStream, is_head: bool) -> Option<()> {
        let Self { status, tag, body } = self;
        let mut head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nLast-Modified: Mon, 23 Nov 2026 08:00:00 GMT\r\n",
            body.len()
        );
        if let Some(tag) = tag {
            write!(head, "ETag: {tag}\r\n").unwrap();
        }
        head.push_str("\r\n");
        output.write_all(head.as_bytes()).ok()?;
        if is_head { Some(()) } else { output.write_all(body).ok() }
    }
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend(before.as_bytes());
        bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
        rest = &after[2..];
    }
    bytes.extend(rest.as_bytes());
    String::from_utf8(bytes).unwrap()
}
