//! What is odd because Linkerd is written in Go: the forms of its durations, bools, flags, quoted texts, numbers and YAML
//! scalars, and the types of its fields, with the rules by which its decoders find a field and convert a value.
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
