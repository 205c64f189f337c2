//! Drawings as SVG: without scripts, fonts or external files, readable on light and on dark ground.
//!
//! | module | holds |
//! |---|---|
//! | [`markup`] | well-formed HTML and SVG |
//! | [`axis`] | values to places, and labelled values |
//! | [`sheet`] | a drawing as a file of its own: colours, lines, texts |
//! | [`chart`] | curves in a page |
//!
//! ```
//! use tidemill_drawing::axis::{Axis, ticks};
//! use tidemill_drawing::sheet;
//! let axis = Axis::linear((0.0, 40.0), (52.0, 600.0));
//! let text = sheet::file("costs", (640.0, 100.0), |svg| {
//!     for tick in ticks(0.0, 40.0, 5) {
//!         sheet::line(svg, "grid", (axis.place(tick), 40.0), (axis.place(tick), 90.0));
//!     }
//! });
//! assert!(text.starts_with("<svg") && text.contains("x1=\"326\""));
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
pub mod axis;
pub mod chart;
pub mod markup;
pub mod sheet;
