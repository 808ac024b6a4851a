//! `image BINARY REFERENCE OUTPUT`: packs the operator's static binary as a container image, with the licenses of what is
//! compiled into it.
//!
//! * In: `LINKERD_OPERATOR_COMMIT`, `LINKERD_OPERATOR_BUILD_DATE`, `SOURCE_DATE_EPOCH`, with the same values as for the
//!   binary.
//! * Out: the archive, and its compressed size. Always: fails when that exceeds the limit, or when the binary needs a
//!   shared library, because the image contains none.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    image::{FileKind, Image, ImageFile, architecture_of, compressed_len},
    notices,
    shipped::in_repository,
};

const NAME: &str = "linkerd-operator";
/// A user other than root, as a number, because Kubernetes can verify only numbers with `runAsNonRoot`.
const USER: &str = "65532:65532";
const MOST: usize = 15_000_000;
/// The path of the loader in the program headers of a dynamically linked ELF file.
const LOADER: &[u8] = b"/ld-linux";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [binary, reference, output] = arguments.as_slice() else { bail!("usage: image BINARY REFERENCE OUTPUT") };
    let set = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set: run `make image`"));
    let content = fs::read(binary).with_context(|| format!("reading {binary}"))?;
    let architecture = architecture_of(&content).with_context(|| format!("packing {binary}"))?;
    ensure!(is_static(&content), "{binary} needs shared libraries, and the image has none");
    let created = set("LINKERD_OPERATOR_BUILD_DATE")?;
    let notices = notices::of_dependencies(NAME)?;
    let labels = [
        ("title", NAME.to_owned()),
        ("description", "A companion to Linkerd's control plane on Kubernetes".to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("revision", set("LINKERD_OPERATOR_COMMIT")?),
        ("created", created.clone()),
        ("licenses", env!("CARGO_PKG_LICENSE").to_owned()),
    ];
    let labels: BTreeMap<String, String> =
        labels.into_iter().map(|(name, value)| (format!("org.opencontainers.image.{name}"), value)).collect();
    let image = Image {
        reference: reference.clone(),
        entrypoint: format!("/{NAME}"),
        files: vec![
            ImageFile { path: format!("/{NAME}"), content, kind: FileKind::Program },
            ImageFile {
                path: "/LICENSE".to_owned(),
                content: fs::read(in_repository("LICENSE"))?,
                kind: FileKind::Data,
            },
            ImageFile { path: "/THIRD-PARTY-NOTICES".to_owned(), content: notices.into_bytes(), kind: FileKind::Data },
        ],
        user: USER.to_owned(),
        architecture: architecture.to_owned(),
        created,
        modified: set("SOURCE_DATE_EPOCH")?.parse().context("SOURCE_DATE_EPOCH")?,
        labels,
    };
    let archive = image.archive()?;
    let compressed = compressed_len(&archive)?;
    if let Some(directory) = Path::new(output).parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(output, &archive).with_context(|| format!("writing {output}"))?;
    println!("{output}: {reference}, {:.1} MB, compressed {:.1} MB", megabytes(archive.len()), megabytes(compressed));
    ensure!(compressed <= MOST, "the compressed image is larger than {} MB", megabytes(MOST));
    Ok(())
}

/// A dynamically linked binary contains the path of its loader near its beginning.
fn is_static(binary: &[u8]) -> bool {
    let beginning = binary.get(..4096).unwrap_or(binary);
    !beginning.windows(LOADER.len()).any(|window| window == LOADER)
}

fn megabytes(bytes: usize) -> f64 {
    let bytes: u32 = bytes.try_into().unwrap_or(u32::MAX);
    f64::from(bytes) / 1e6
}
