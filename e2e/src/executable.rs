//! Finds the programs of this workspace that this process starts.
//!
//! * In: the directory of this executable, or a variable with the path of another program.
//! * Out: paths. Always: the operator's binary is not older than its sources, because tests of an old binary prove
//!   nothing. The program of a variable is used as it is.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::SystemTime,
};

use anyhow::{Context, Error, Result, anyhow, ensure};

const OPERATOR_VARIABLE: &str = "LINKERD_OPERATOR_BIN";

/// The operator's binary.
///
/// # Errors
/// Fails also if a source is newer than the binary. Only the first call compares them, so that sources can be edited
/// during a run.
pub fn operator_binary() -> Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find_operator().map_err(|error| format!("{error:#}")));
    found.clone().map_err(Error::msg)
}

fn find_operator() -> Result<PathBuf> {
    if let Some(path) = named(OPERATOR_VARIABLE)? {
        return Ok(path);
    }
    let path = beside_this_executable("linkerd-operator", OPERATOR_VARIABLE)?;
    ensure_newer_than_sources(&path)?;
    Ok(path)
}

/// The path of a binary of this workspace: from the variable, or next to the current executable.
pub(crate) fn beside_this_executable(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = named(variable)? {
        return Ok(path);
    }
    let current = std::env::current_exe().context("finding this executable")?;
    // Tests run from `deps`, one directory below the binaries.
    current.ancestors().skip(1).take(2).map(|directory| directory.join(name)).find(|path| path.is_file()).ok_or_else(
        || {
            anyhow!(
                "the binary `{name}` was not found next to {}: build it with `make build`, or set {variable}",
                current.display()
            )
        },
    )
}

fn named(variable: &str) -> Result<Option<PathBuf>> {
    let Some(path) = std::env::var_os(variable).filter(|value| !value.is_empty()) else { return Ok(None) };
    let path = PathBuf::from(path);
    ensure!(path.is_file(), "{variable} is {}, which is not a file", path.display());
    Ok(Some(path))
}

/// Compares the times of modification, as cargo does. Cargo writes the sources of a binary to a file beside it, which
/// does not contain Cargo.lock and other settings.
fn ensure_newer_than_sources(binary: &Path) -> Result<()> {
    let list = binary.with_extension("d");
    let listed = fs::read_to_string(&list).with_context(|| {
        format!("reading the sources of {} in {}: run `make build`", binary.display(), list.display())
    })?;
    let built = modified(binary)?;
    for source in sources(&listed) {
        let is_older = modified(&source).is_ok_and(|changed| changed <= built);
        ensure!(
            is_older,
            "{} is older than its source {}, or the source was removed: run `make build`",
            binary.display(),
            source.display()
        );
    }
    Ok(())
}

fn modified(path: &Path) -> Result<SystemTime> {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.with_context(|| format!("reading the modification time of {}", path.display()))
}

/// The sources in a rule `binary: source source`, in which a backslash precedes a space of a path.
fn sources(rule: &str) -> Vec<PathBuf> {
    const SPACE: &str = "\0";
    let (_, sources) = rule.split_once(": ").unwrap_or_default();
    let escaped = sources.replace("\\ ", SPACE);
    escaped.split_whitespace().map(|path| path.replace(SPACE, " ").into()).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;

    /// A binary with two sources. The modification times are in seconds.
    fn built(binary: u64, sources: [u64; 2]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let write = |name: &str, modified: u64| {
            let file = File::create(path(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(modified)).unwrap();
        };
        write("operator", binary);
        write("main.rs", sources[0]);
        write("a lib.rs", sources[1]);
        let at = directory.path().display();
        fs::write(path("operator.d"), format!("{at}/operator: {at}/main.rs {at}/a\\ lib.rs\n")).unwrap();
        let binary = path("operator");
        (directory, binary)
    }

    #[test]
    fn a_binary_that_is_newer_than_its_sources_is_used() {
        let (_directory, binary) = built(100, [99, 100]);
        ensure_newer_than_sources(&binary).unwrap();
    }

    #[test]
    fn a_binary_that_is_older_than_a_source_is_refused() {
        let (directory, binary) = built(100, [99, 101]);
        let at = directory.path().display();
        let error = ensure_newer_than_sources(&binary).unwrap_err().to_string();
        let wanted = format!(
            "{at}/operator is older than its source {at}/a lib.rs, or the source was removed: run `make build`"
        );
        assert_eq!(error, wanted);
    }

    #[test]
    fn a_binary_without_a_source_or_without_the_list_is_refused() {
        let (directory, binary) = built(100, [99, 99]);
        fs::remove_file(directory.path().join("main.rs")).unwrap();
        let error = ensure_newer_than_sources(&binary).unwrap_err().to_string();
        assert!(error.contains("main.rs, or the source was removed"), "{error}");
        fs::remove_file(directory.path().join("operator.d")).unwrap();
        let error = ensure_newer_than_sources(&binary).unwrap_err().to_string();
        assert!(error.contains("operator.d: run `make build`"), "{error}");
    }
}
