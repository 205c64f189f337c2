//! Models and backends, tested from outside.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod advice;
mod another_backend;
mod backends_agree;
mod element_types;
mod generation;
mod independence;
mod known_faults;
mod labelled_texts;
mod line_reader;
mod manifest_checks;
mod maps;
mod ml_operator;
mod onnx;
mod onnx_operators;
mod sequence;
mod shapes;
mod shipped_models;
mod shipped_vehicle_models;
mod tables;
mod texts;
mod windows;

use std::path::Path;
use tidemill_inference::backend::{Registration, registered};

/// The backends of this machine that run every model: a provider, such as `ort:cuda`, refuses those that it cannot compute.
fn backends_here() -> impl Iterator<Item = Registration> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    registered().filter(|backend| !backend.name.contains(':') && (backend.open)(here).is_ok())
}
