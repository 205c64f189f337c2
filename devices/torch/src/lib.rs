//! A device that computes TorchScript files by libtorch, on the processor.
pub mod own;
mod tensors;
pub mod torch;
