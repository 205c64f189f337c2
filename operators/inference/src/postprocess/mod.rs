//! Conversion of a model's tensors to column values: one file for each kind of step.
pub mod boxes;
pub mod ctc;
pub mod entities;
pub mod head;
pub(crate) mod head_shapes;
pub mod join;
pub mod layout;
pub mod pool;
pub mod scores;
pub mod text_boxes;
pub mod vectors;
