//! Builds a container image of static programs, without a registry, a daemon or a base image.
//!
//! * In: the content of the image. Out: an archive in the format of `docker save`, accepted by `docker load`,
//!   `kind load image-archive`, `podman load` and `ctr images import`.
//! * Always: the same input produces the same bytes; the only timestamps are the given ones.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::archive::{Archive, DATA, PROGRAM, digest, gzip};

const LAYER: &str = "layer.tar";
/// `CAP_NET_ADMIN` and `CAP_NET_RAW` as effective capabilities of a file: `struct vfs_cap_data` of linux/capability.h, as
/// `setcap cap_net_admin,cap_net_raw+ep` writes it.
const NETWORK_CAPABILITIES: [u8; 20] = [1, 0, 0, 2, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

pub struct Image {
    /// The name of the image, as `name:tag`.
    pub reference: String,
    /// The path of the program that starts by default.
    pub entrypoint: String,
    pub files: Vec<ImageFile>,
    /// `uid` or `uid:gid`.
    pub user: String,
    /// In Go's notation: `amd64`, `arm64`.
    pub architecture: String,
    /// The creation time in RFC 3339.
    pub created: String,
    /// The modification time of the files, in seconds since 1970.
    pub modified: u64,
    pub labels: BTreeMap<String, String>,
}

pub struct ImageFile {
    pub path: String,
    pub content: Vec<u8>,
    pub kind: FileKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Data,
    Program,
    /// A program with which a process without root can change the network, if the container has the capabilities.
    NetworkProgram,
}

// === impl Image ===

impl Image {
    pub fn archive(&self) -> Result<Vec<u8>> {
        let layer = self.layer()?;
        let config = serde_json::to_vec(&self.config(&layer))?;
        let config_name = format!("{}.json", digest(&config));
        let manifest = json!([{"Config": config_name, "RepoTags": [self.reference], "Layers": [LAYER]}]);
        let mut archive = Archive::new(self.modified);
        archive.append(&config_name, DATA, &config)?;
        archive.append(LAYER, DATA, &layer)?;
        archive.append("manifest.json", DATA, &serde_json::to_vec(&manifest)?)?;
        archive.finish()
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = Archive::new(self.modified);
        for file in &self.files {
            if file.kind == FileKind::NetworkProgram {
                layer.extended_attribute("security.capability", &NETWORK_CAPABILITIES)?;
            }
            let mode = if file.kind == FileKind::Data { DATA } else { PROGRAM };
            layer.append(file.path.trim_start_matches('/'), mode, &file.content)?;
        }
        layer.finish()
    }

    fn config(&self, layer: &[u8]) -> Value {
        json!({
            "architecture": self.architecture,
            "os": "linux",
            "created": self.created,
            "config": {"User": self.user, "Entrypoint": [self.entrypoint], "WorkingDir": "/", "Labels": self.labels},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(layer))]},
            "history": [{"created": self.created, "created_by": self.entrypoint}],
        })
    }
}

/// The size of the gzipped archive, approximately as a registry stores it and a node pulls it.
pub fn compressed_len(archive: &[u8]) -> Result<usize> {
    Ok(gzip(archive)?.len())
}

/// Returns the architecture of an ELF program, as images name it.
///
/// # Errors
/// Fails for a file that is no ELF program, or one of another architecture.
pub fn architecture_of(program: &[u8]) -> Result<&'static str> {
    ensure!(program.starts_with(b"\x7fELF"), "it is no ELF program");
    // The field `e_machine` of the header: EM_X86_64 and EM_AARCH64.
    match program.get(18..20) {
        Some([62, 0]) => Ok("amd64"),
        Some([183, 0]) => Ok("arm64"),
        other => bail!("no image is made for the machine {other:?} of its ELF header"),
    }
}

/// The architecture of this host, as images name it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn image() -> Image {
        Image {
            reference: "operator:dev".into(),
            entrypoint: "/operator".into(),
            files: vec![
                ImageFile { path: "/operator".into(), content: b"#!".to_vec(), kind: FileKind::Program },
                ImageFile { path: "/LICENSE".into(), content: b"MIT".to_vec(), kind: FileKind::Data },
            ],
            user: "65532".into(),
            architecture: "amd64".into(),
            created: "1970-01-01T00:00:07Z".into(),
            modified: 7,
            labels: BTreeMap::from([("org.opencontainers.image.version".into(), "1".into())]),
        }
    }

    #[test]
    fn the_architecture_is_that_of_the_program() {
        let program = |machine: u8| [b"\x7fELF".as_slice(), &[0; 14], &[machine, 0]].concat();
        assert_eq!(architecture_of(&program(62)).unwrap(), "amd64");
        assert_eq!(architecture_of(&program(183)).unwrap(), "arm64");
        assert!(architecture_of(&program(243)).is_err() && architecture_of(b"#!").is_err());
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(architecture_of(&own).unwrap(), architecture());
    }

    fn files(archive: &[u8]) -> BTreeMap<String, (u32, u64, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let read = |mut entry: tar::Entry<'_, &[u8]>| {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            let path = entry.path().unwrap().display().to_string();
            (path, (entry.header().mode().unwrap(), entry.header().mtime().unwrap(), content))
        };
        archive.entries().unwrap().map(|entry| read(entry.unwrap())).collect()
    }

    #[test]
    fn the_archive_references_its_parts_by_digest() {
        let archive = files(&image().archive().unwrap());
        let manifest: Value = serde_json::from_slice(&archive["manifest.json"].2).unwrap();
        let layer = &archive[manifest[0]["Layers"][0].as_str().unwrap()].2;
        let config_name = manifest[0]["Config"].as_str().unwrap();
        let config = &archive[config_name].2;
        assert_eq!(config_name, format!("{}.json", digest(config)));
        assert_eq!(manifest[0]["RepoTags"], json!(["operator:dev"]));
        let config: Value = serde_json::from_slice(config).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"], json!([format!("sha256:{}", digest(layer))]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/operator"]));
        assert_eq!(config["config"]["User"], "65532");
        let expected = [("operator", (0o755, 7, b"#!".to_vec())), ("LICENSE", (0o644, 7, b"MIT".to_vec()))];
        assert_eq!(files(layer), expected.map(|(path, file)| (path.into(), file)).into());
    }

    #[test]
    fn the_same_input_produces_the_same_bytes() {
        assert_eq!(image().archive().unwrap(), image().archive().unwrap());
    }
}
