//! The files of a release, used as their users do: pushed to a real registry, and installed by Helm and Krew.
//!
//! A release build takes minutes, so the image has an empty program, and the archive has the debug binary.

mod krew;
mod package;
mod registry;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use e2e::{
    command::Ended,
    image::{FileKind, Image, ImageFile, architecture},
    shipped::{in_repository, remove_makes_variables},
};
use tokio::process::Command;

const DEADLINE: Duration = Duration::from_secs(180);
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The time in the files, as a number and as a date.
const CREATED: [&str; 2] = ["1700000000", "2023-11-14T22:13:20Z"];
const LABEL: &str = "org.opencontainers.image.version";

/// The folder `dist/release` of a test.
struct Release {
    folder: tempfile::TempDir,
}

// === impl Release ===

impl Release {
    fn new() -> Result<Self> {
        Ok(Self { folder: tempfile::tempdir()? })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        fs::read(self.path(name)).with_context(|| name.to_owned())
    }

    /// Writes the image, as `make image` names it.
    fn write_image(&self, registry: &str) -> Result<()> {
        let file = |path: &str, content: &str, kind| ImageFile {
            path: path.to_owned(),
            content: content.as_bytes().to_vec(),
            kind,
        };
        let image = Image {
            reference: format!("{registry}/linkerd-operator:{VERSION}"),
            entrypoint: "/linkerd-operator".to_owned(),
            files: vec![
                file("/linkerd-operator", "", FileKind::Program),
                file("/THIRD-PARTY-NOTICES", "notices", FileKind::Data),
            ],
            user: "65532:65532".to_owned(),
            architecture: architecture().to_owned(),
            created: CREATED[1].to_owned(),
            modified: CREATED[0].parse()?,
            labels: BTreeMap::from([(LABEL.to_owned(), VERSION.to_owned())]),
        };
        let name = format!("linkerd-operator-{VERSION}-image-{}.tar", architecture());
        Ok(fs::write(self.path(&name), image.archive()?)?)
    }

    /// Writes the charts, as `make helm-package` does.
    async fn write_charts(&self, repository: &str) -> Result<()> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chart"));
        command.arg(self.folder.path()).arg(repository);
        command
            .args(["linkerd-operator-crds", "linkerd-operator"].map(|name| in_repository(&format!("charts/{name}"))));
        command.env("SOURCE_DATE_EPOCH", CREATED[0]).env("LINKERD_OPERATOR_BUILD_DATE", CREATED[1]);
        run(command).await.map(drop)
    }

    /// Runs make on this folder.
    async fn make(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("make");
        command.current_dir(in_repository("")).args(args).arg(format!("RELEASE={}", self.folder.path().display()));
        remove_makes_variables(&mut command);
        command.env("SOURCE_DATE_EPOCH", CREATED[0]);
        run(command).await
    }
}

/// Runs a command, and returns its output. It fails if the command does.
async fn run(command: Command) -> Result<String> {
    let what = format!("{command:?}");
    Ended::of(command, DEADLINE).await?.succeeded().context(what)
}

/// The files of an archive, by their paths.
fn unpack(archive: impl std::io::Read) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content)?;
        files.insert(entry.path()?.display().to_string(), content);
    }
    Ok(files)
}

/// Puts the directory of a program before those of `PATH`.
fn path_with(directory: Option<&Path>) -> String {
    let directory = directory.map(|path| path.display().to_string()).unwrap_or_default();
    format!("{directory}:{}", std::env::var("PATH").unwrap_or_default())
}
