//! The images that the tests on a real node need beside the operator's. Both are compiled here, because no registry is
//! available.
//!
//! * In: a directory. Out: the archives in it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tokio::{process::Command, time::timeout};

use crate::image::{FileKind, Image, ImageFile, architecture};

/// Holds the namespaces of a Pod. Also the container of workloads that only wait.
pub(super) const PAUSE: &str = "linkerd-operator-e2e/pause:1";
/// The proxy's image in `config/samples/linkerd.yaml`. A stand-in that checks what its containers need.
const PROXY: &str = "cr.l5d.io/linkerd/proxy:edge-26.8.3";
const COMPILE_DEADLINE: Duration = Duration::from_secs(60);

/// Builds both images.
pub(super) async fn build(directory: &Path) -> Result<[PathBuf; 2]> {
    let pause = compile(directory, "pause", include_str!("pause.c")).await?;
    let proxy = compile(directory, "proxy", include_str!("proxy.c")).await?;
    let program =
        |path: &str, content: &[u8], kind| ImageFile { path: path.to_owned(), content: content.to_vec(), kind };
    let of_proxy = [
        ("linkerd2-proxy", FileKind::Program),
        ("linkerd-await", FileKind::Program),
        ("linkerd2-proxy-init", FileKind::NetworkProgram),
    ];
    let of_proxy = of_proxy.map(|(name, kind)| program(&format!("/usr/lib/linkerd/{name}"), &proxy, kind));
    Ok([
        archive(directory, PAUSE, "65535:65535", vec![program("/pause", &pause, FileKind::Program)])?,
        archive(directory, PROXY, "2102", of_proxy.into())?,
    ])
}

async fn compile(directory: &Path, name: &str, source: &str) -> Result<Vec<u8>> {
    let (file, binary) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&file, source)?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-static", "-Os", "-s", "-Wall", "-o"])
        .arg(&binary)
        .arg(&file)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(COMPILE_DEADLINE, compiler.output()).await.context("cc hangs")??;
    ensure!(output.status.success(), "cc {name}.c: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(fs::read(&binary)?)
}

/// Writes an image. Its first program starts by default.
fn archive(directory: &Path, reference: &str, user: &str, files: Vec<ImageFile>) -> Result<PathBuf> {
    let first = files.first().context("the image has no program")?;
    let image = Image {
        reference: reference.to_owned(),
        entrypoint: first.path.clone(),
        files,
        user: user.to_owned(),
        architecture: architecture().to_owned(),
        created: "1970-01-01T00:00:00Z".to_owned(),
        modified: 0,
        labels: Default::default(),
    };
    let archive = directory.join(format!("{}.tar", image.entrypoint.rsplit('/').next().unwrap_or_default()));
    fs::write(&archive, image.archive()?)?;
    Ok(archive)
}
