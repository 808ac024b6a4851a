//! The Destination API as its clients see it.

mod oracle;
