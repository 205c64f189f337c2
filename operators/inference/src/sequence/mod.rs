//! Texts that a model writes token by token: after a prompt (`generation`), or by a second model from what a first one read
//! as a whole (`encoder_decoder`, with its checks in `plan`). Both run the loop in `token_loop`, with the choice of a token in
//! `chooser`. `ports` compares names and types with a file, `tokenizer` has the texts of tokens.
mod chooser;
pub(crate) mod encoder_decoder;
pub(crate) mod generation;
pub(crate) mod plan;
mod ports;
pub(crate) mod token_loop;
pub mod tokenizer;
