//! A device that computes TorchScript files and compiled packages by libtorch, on the processor.
mod package;
mod tensors;
pub mod torch;
