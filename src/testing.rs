//! The files of the repository, for the tests that compare sources, documentation and manifests.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files with an extension below a folder of the repository, sorted.
pub(crate) fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, extension, found);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&repository().join(folder), extension, &mut found);
    found.sort();
    found
}
