//! A device that computes modules of Apache TVM, on the processor.
mod about;
mod module;
mod rows;
mod tensors;
pub mod tvm;
