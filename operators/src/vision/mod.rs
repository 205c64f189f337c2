//! Operators on detections in pictures: `crop`, `track`, `associate`.
pub mod associate;
mod associate_state;
pub mod crop;
mod object_ages;
mod pixels;
pub mod track;
pub mod track_path;
mod track_rows;
mod track_state;
