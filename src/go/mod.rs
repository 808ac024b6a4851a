//! The rules of Go that Linkerd's formats follow: the forms of durations, bools, flags, quoted texts, numbers and YAML
//! scalars, the types of fields, and how Go's decoders find a field and convert a value.
//!
//! Always holds: it imports no other module, and a text that Go rejects is rejected.

pub mod bool;
pub mod decode;
pub mod duration;
pub mod flags;
pub mod number;
pub mod quote;
pub mod scalar;
pub mod types;
