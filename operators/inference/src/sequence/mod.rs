//! Encoder-decoders: a model that reads a record as a whole, and a second one that writes a text from it, token by token.
//! The checks are in `plan`, the loop in `greedy`, the texts of the tokens in `tokenizer`.
pub(crate) mod greedy;
pub(crate) mod plan;
pub mod tokenizer;
