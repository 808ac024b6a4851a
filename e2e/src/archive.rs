//! Archives that contain no trace of the host and of the time at which they were written.
//!
//! * Always: the same files in the same order produce the same bytes; the only time is the given one.

use std::io::Write;

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The mode of all files except programs.
pub const DATA: u32 = 0o644;
pub const PROGRAM: u32 = 0o755;

/// A tar archive in the format ustar, whose files belong to root.
pub struct Archive {
    builder: Builder<Vec<u8>>,
    modified: u64,
}

// === impl Archive ===

impl Archive {
    /// `modified` is the modification time of all files, in seconds since 1970.
    pub fn new(modified: u64) -> Self {
        Self { builder: Builder::new(Vec::new()), modified }
    }

    pub fn append(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.modified);
        header.set_size(u64::try_from(content.len())?);
        self.builder.append_data(&mut header, path, content).with_context(|| format!("packing {path}"))
    }

    /// Sets an extended attribute of the file that is appended next.
    pub fn extended_attribute(&mut self, name: &str, value: &[u8]) -> Result<()> {
        Ok(self.builder.append_pax_extensions([(format!("SCHILY.xattr.{name}").as_str(), value)])?)
    }

    pub fn finish(self) -> Result<Vec<u8>> {
        Ok(self.builder.into_inner()?)
    }
}

/// Compresses without a file name and without a time.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// The SHA-256 digest in lower-case hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
