//! Another version of the operator, for tests in which two versions run against each other.
//!
//! * In: `E2E_OTHER_VERSION`, a checkout of another revision in which `cargo build` has built the operator;
//!   `make e2e-versions OTHER=REV` makes it. Out: the binary, the CRDs and the samples of that version.
//! * Always: without the variable, a test is left out, and its output says so, also when it passes. A variable that
//!   names anything else is an error.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

const VARIABLE: &str = "E2E_OTHER_VERSION";

/// The checkout of another version.
#[derive(Clone)]
pub(crate) struct OtherVersion {
    checkout: PathBuf,
}

/// One of the two versions in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// The version that was built with the tests.
    This,
    Other,
}

// === impl OtherVersion ===

impl OtherVersion {
    /// Returns `None` when no other version is given: the test is then left out.
    pub(crate) fn given(test: &str) -> Result<Option<Self>> {
        let Some(checkout) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
            // Unlike `eprintln!`, this is also visible when the test passes.
            writeln!(
                std::io::stderr(),
                "{test}: left out, because {VARIABLE} is not set: make e2e-versions OTHER=REV"
            )?;
            return Ok(None);
        };
        let checkout = PathBuf::from(checkout);
        let checkout = checkout.canonicalize().with_context(|| format!("{VARIABLE}={}", checkout.display()))?;
        let other = Self { checkout };
        ensure!(other.operator().is_file(), "{VARIABLE}: {} does not exist", other.operator().display());
        Ok(Some(other))
    }

    fn operator(&self) -> PathBuf {
        self.checkout.join("target/debug/linkerd-operator")
    }

    /// The binary of one of the two versions, as [`e2e::ManagerOptions`] has it.
    pub(crate) fn binary(&self, version: Version) -> Option<PathBuf> {
        match version {
            Version::This => None,
            Version::Other => Some(self.operator()),
        }
    }

    /// The root of the repository of one of the two versions.
    pub(crate) fn repository(&self, version: Version) -> PathBuf {
        match version {
            Version::This => Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
            Version::Other => self.checkout.clone(),
        }
    }
}

// === impl Version ===

impl Version {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::This => "this",
            Self::Other => "other",
        }
    }
}
