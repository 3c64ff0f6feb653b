//! From text to token ids and back: tokenizer, chat template, streamed decoding.
//!
//! One idea: what a user wrote stays text. Control tokens come from the template alone ([`chat`]), deltas are always whole
//! UTF-8 and never leak a stop string ([`decode`]).

pub mod chat;
pub mod decode;
pub mod template;
pub mod tokenizer;

pub use chat::encode_chat;
pub use decode::{StopMatcher, StreamDecoder};
pub use template::{ChatTemplate, Message, TemplateError};
pub use tokenizer::{TextError, Tokenizer};
