//! Packs a Helm chart, as a package for `helm install` and as an OCI image layout for a registry.
//!
//! `helm package` writes the current time into a package, and `helm push` into the manifest, so that neither has the
//! same digest twice.
//!
//! * In: the folder of a chart without dependencies, and a time. Out: the two archives.
//! * Always: the same input produces the same bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::archive::{Archive, DATA, digest, gzip};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// The media types of <https://helm.sh/docs/topics/registries>.
pub const CONFIG_TYPE: &str = "application/vnd.cncf.helm.config.v1+json";
pub const CONTENT_TYPE: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

const VALUES: &str = "values.yaml";
const EMPTY: &str = "\n  repository: \"\"\n";

/// A chart.
pub struct Chart {
    /// `Chart.yaml`.
    metadata: Value,
    /// The content of each file, by its path in the chart.
    files: BTreeMap<String, Vec<u8>>,
    created: Created,
}

/// The time that the archives contain.
#[derive(Clone)]
pub struct Created {
    /// In seconds since 1970.
    pub seconds: u64,
    /// The same time in RFC 3339.
    pub date: String,
}

// === impl Chart ===

impl Chart {
    pub fn read(folder: &Path, created: Created) -> Result<Self> {
        let mut files = BTreeMap::new();
        read_folder(folder, "", &mut files).with_context(|| format!("reading {}", folder.display()))?;
        let metadata = files.get("Chart.yaml").with_context(|| format!("{} is not a chart", folder.display()))?;
        let metadata = serde_yaml::from_slice(metadata).context("Chart.yaml")?;
        Ok(Self { metadata, files, created })
    }

    pub fn name(&self) -> Result<&str> {
        self.text("name")
    }

    pub fn version(&self) -> Result<&str> {
        self.text("version")
    }

    fn text(&self, key: &str) -> Result<&str> {
        self.metadata.get(key).and_then(Value::as_str).with_context(|| format!("Chart.yaml has no {key}"))
    }

    /// Sets the default of `image.repository`, in a chart that has an image. All other bytes stay, as do comments.
    pub fn set_image(&mut self, repository: &str) -> Result<()> {
        let values = self.files.get_mut(VALUES).context("the chart has no values")?;
        let text = String::from_utf8(values.clone())?;
        if !text.contains("\nimage:\n") {
            return Ok(());
        }
        let count = text.matches(EMPTY).count();
        ensure!(count == 1, "{VALUES} has {count} empty repositories");
        let text = text.replace(EMPTY, &format!("\n  repository: {repository}\n"));
        let parsed: Value = serde_yaml::from_str(&text).context(VALUES)?;
        let set = parsed.pointer("/image/repository").and_then(Value::as_str);
        ensure!(set == Some(repository), "{repository:?} is not a repository of an image");
        *values = text.into_bytes();
        Ok(())
    }

    /// The package, as `helm package` writes it, but for times and the comments in `Chart.yaml`.
    pub fn package(&self) -> Result<Vec<u8>> {
        let name = self.name()?;
        let mut archive = Archive::new(self.created.seconds);
        for (path, content) in &self.files {
            archive.append(&format!("{name}/{path}"), DATA, content)?;
        }
        gzip(&archive.finish()?)
    }

    /// The archive of an OCI image layout with one manifest, as `helm push` writes it, but for the time. The name of the
    /// manifest in the layout is the version.
    pub fn layout(&self) -> Result<Vec<u8>> {
        let content = self.package()?;
        let config = serde_json::to_vec(&self.metadata)?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": descriptor(CONFIG_TYPE, &config),
            "layers": [descriptor(CONTENT_TYPE, &content)],
            "annotations": self.annotations()?,
        }))?;
        let mut entry = descriptor(MANIFEST_TYPE, &manifest);
        let annotations = json!({"org.opencontainers.image.ref.name": self.version()?});
        entry.as_object_mut().context("a descriptor is an object")?.insert("annotations".to_owned(), annotations);
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]});
        let mut archive = Archive::new(self.created.seconds);
        archive.append("oci-layout", DATA, &serde_json::to_vec(&json!({"imageLayoutVersion": "1.0.0"}))?)?;
        archive.append("index.json", DATA, &serde_json::to_vec(&index)?)?;
        let blobs = [content, config, manifest].map(|blob| (digest(&blob), blob));
        for (digest, blob) in BTreeMap::from(blobs) {
            archive.append(&format!("blobs/sha256/{digest}"), DATA, &blob)?;
        }
        archive.finish()
    }

    /// The annotations that `helm push` derives from the fields of `Chart.yaml` that these charts have.
    fn annotations(&self) -> Result<Value> {
        let known = ["apiVersion", "appVersion", "description", "keywords", "kubeVersion", "name", "type", "version"];
        let keys: BTreeSet<_> = self.metadata.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        let unknown: Vec<_> = keys.difference(&known.into()).copied().collect();
        ensure!(unknown.is_empty(), "the annotations for {unknown:?} of Chart.yaml are not implemented");
        Ok(json!({
            "org.opencontainers.image.created": self.created.date,
            "org.opencontainers.image.description": self.text("description")?,
            "org.opencontainers.image.title": self.name()?,
            "org.opencontainers.image.version": self.version()?,
        }))
    }
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": format!("sha256:{}", digest(blob)), "size": blob.len()})
}

fn read_folder(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name is not UTF-8")?;
        // Helm would pack it, too.
        let is_leftover = name.starts_with('.') || name.ends_with('~');
        ensure!(!is_leftover, "{} is not part of the chart: remove it", entry.path().display());
        if entry.file_type()?.is_dir() {
            read_folder(&entry.path(), &format!("{prefix}{name}/"), files)?;
        } else {
            files.insert(format!("{prefix}{name}"), fs::read(entry.path())?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn chart(values: &str) -> Chart {
        let files = [
            ("Chart.yaml", "name: a\nversion: 1.2.3\ndescription: b\n"),
            ("templates/b/c.yaml", "{}"),
            (VALUES, values),
        ];
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("templates/b")).unwrap();
        for (path, content) in files {
            fs::write(folder.path().join(path), content).unwrap();
        }
        Chart::read(folder.path(), Created { seconds: 7, date: "1970-01-01T00:00:07Z".to_owned() }).unwrap()
    }

    fn files(archive: impl Read) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            assert_eq!((entry.header().mtime().unwrap(), entry.header().uid().unwrap()), (7, 0));
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), content);
        }
        files
    }

    #[test]
    fn the_layout_references_its_blobs_by_digest_and_contains_the_package() {
        let chart = chart("a: 1\n");
        let layout = files(&chart.layout().unwrap()[..]);
        let parsed = |path: &str| serde_json::from_slice::<Value>(&layout[path]).unwrap();
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
            let content = &layout[&format!("blobs/sha256/{digest}")];
            assert_eq!((super::digest(content), json!(content.len())), (digest, descriptor["size"].clone()));
            content
        };
        assert_eq!(parsed("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}));
        let index = parsed("index.json");
        assert_eq!(index["manifests"][0]["annotations"], json!({"org.opencontainers.image.ref.name": "1.2.3"}));
        let manifest: Value = serde_json::from_slice(blob(&index["manifests"][0])).unwrap();
        let config: Value = serde_json::from_slice(blob(&manifest["config"])).unwrap();
        assert_eq!(config, json!({"name": "a", "version": "1.2.3", "description": "b"}));
        assert_eq!(blob(&manifest["layers"][0]), &chart.package().unwrap());
        assert_eq!(layout.len(), 5);
    }

    #[test]
    fn the_package_has_the_files_of_the_folder_below_the_name_of_the_chart() {
        let package = chart("a: 1\n").package().unwrap();
        let files = files(flate2::read::GzDecoder::new(&package[..]));
        assert_eq!(files.keys().collect::<Vec<_>>(), ["a/Chart.yaml", "a/templates/b/c.yaml", "a/values.yaml"]);
        assert_eq!(files["a/values.yaml"], b"a: 1\n");
        // A gzip header without a time, a name and a comment.
        assert_eq!(package[3..8], [0; 5]);
    }

    #[test]
    fn the_repository_of_the_image_is_the_only_value_that_changes() {
        let mut chart = chart("# b\nimage:\n  # c\n  repository: \"\"\n  tag: \"\"\nd: 1\n");
        chart.set_image("example.com/a").unwrap();
        assert_eq!(chart.files[VALUES], b"# b\nimage:\n  # c\n  repository: example.com/a\n  tag: \"\"\nd: 1\n");
        assert!(chart.set_image("example.com/b").is_err());
    }

    #[test]
    fn a_chart_without_an_image_stays_as_it_is() {
        let mut chart = chart("a:\n  repository: \"\"\n");
        chart.set_image("example.com/a").unwrap();
        assert_eq!(chart.files[VALUES], b"a:\n  repository: \"\"\n");
    }

    #[test]
    fn a_repository_that_yaml_reads_as_something_else_is_refused() {
        assert!(chart("b: 1\nimage:\n  repository: \"\"\n").set_image("a # b").is_err());
    }
}
