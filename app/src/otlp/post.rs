//! Posts documents to a collector.
use super::{OtlpOptions, PATIENCE, Post, Posted};
use crate::failure::{Failure, Kind};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode};
use tokio::runtime::Runtime;

/// Most characters of an answer in a message.
const LONGEST: usize = 200;

pub(super) struct Http {
    runtime: Runtime,
    client: Client,
    endpoint: String,
}

impl Http {
    pub(super) fn new(options: &OtlpOptions) -> Result<Self, Failure> {
        // Fails only if there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        for (name, value) in &options.headers {
            let (Ok(key), Ok(mut value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
                let text = format!("header `{name}` of OTEL_EXPORTER_OTLP_HEADERS is invalid");
                return Err(Failure::new(Kind::Configuration, text));
            };
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(Kind::Unavailable, format!("{}: {error}", options.endpoint))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(&error))?;
        let client = Client::builder()
            .timeout(PATIENCE)
            .connect_timeout(PATIENCE)
            .default_headers(headers)
            .build()
            .map_err(|error| failed(&error))?;
        Ok(Self { runtime, client, endpoint: options.endpoint.clone() })
    }
}

impl Post for Http {
    fn post(&mut self, body: Vec<u8>) -> Posted {
        let Self { runtime, client, endpoint } = self;
        runtime.block_on(async {
            let answer = match client.post(&*endpoint).body(body).send().await {
                Ok(answer) => answer,
                Err(error) => return Posted::Away(in_words(&error)),
            };
            let status = answer.status();
            if status.is_success() {
                return Posted::Taken;
            }
            let text = answer.text().await.unwrap_or_default();
            let text =
                format!("{endpoint} answers {status} {}", text.chars().take(LONGEST).collect::<String>());
            // The status codes that the specification lists as retryable.
            match status {
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => Posted::Away(text),
                _ => Posted::Refused(text),
            }
        })
    }
}

/// Formats an error with its causes.
fn in_words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
