//! Tracking of objects through the frames of a camera, and measures of its quality.
//!
//! | module | contents |
//! |---|---|
//! | [`bounding_box`] | boxes in pictures and their overlap |
//! | [`assignment`] | pairing at the least total cost |
//! | [`kalman`] | prediction of boxes, by a model of constant velocity |
//! | [`tracker`] | detections of one frame after another become tracks |
//! | [`mot_text`] | the text format of MOTChallenge, read and written |
//! | [`metrics`] | IDF1, MOTA, HOTA, average precision of detections, rank-1 and mAP of embeddings |
//!
//! Nothing here depends on streams, columns or models; the operators that use it do.
//!
//! ```
//! use tidemill_tracking::bounding_box::BoundingBox;
//! use tidemill_tracking::tracker::{Detection, Tracker, TrackerSettings};
//! let mut tracker = Tracker::new(TrackerSettings::default());
//! for frame in 0..10 {
//!     let area = BoundingBox { left: 10.0 + 2.0 * frame as f64, top: 20.0, width: 30.0, height: 20.0 };
//!     tracker.step(frame, &[Detection { area, score: 0.9, class: 2, embedding: Vec::new() }]);
//! }
//! assert_eq!(tracker.tracks().count(), 1);
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail by panicking"))]

pub mod assignment;
pub mod bounding_box;
pub mod kalman;
pub mod metrics;
pub mod mot_text;
pub mod tracker;
