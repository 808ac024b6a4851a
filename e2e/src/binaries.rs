//! Finds the Kubernetes binaries, or builds them once from `e2e/controlplane` into the user's cache. The node's
//! binaries are a separate set, because most runs do not need them. Helm is built from `e2e/helm`, Prometheus from
//! `e2e/prometheus`, crane from `e2e/crane` and Krew from `e2e/krew`, because they require other versions of common
//! libraries.
//!
//! * In: `KUBEBUILDER_ASSETS` (by convention a directory with etcd, kube-apiserver and kubectl), or a Go toolchain and
//!   `E2E_KUBERNETES`, which selects another version of Kubernetes. The other tools always need a Go toolchain.
//! * Out: a directory in which every tool is complete and executable.
//! * Always: an interrupted build leaves no incomplete file under a tool's name, and two processes never build
//!   concurrently.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

const KUBERNETES_VERSION: &str = "v1.36.3";
/// The variable that selects another version of Kubernetes, such as 1.34.
const SELECTION: &str = "E2E_KUBERNETES";
/// Longer than any build, so that it only ends the wait for a process that hangs.
const LOCK_DEADLINE: Duration = Duration::from_secs(45 * 60);

/// A set of tools that are built together into one directory.
#[derive(Debug)]
struct Set {
    name: &'static str,
    /// The directory of the Go module.
    module: &'static str,
    /// The version that Kubernetes' programs report.
    kubernetes: &'static str,
    /// The file name and the Go package of each tool. The tools that build fastest come last.
    tools: &'static [(&'static str, &'static str)],
    /// The build tags.
    tags: &'static str,
    /// The duration of the first build on two cores.
    minutes: &'static str,
}

const CONTROL_PLANE: Set = Set {
    name: "controlplane",
    module: "controlplane",
    kubernetes: KUBERNETES_VERSION,
    tools: &[
        ("etcd", "go.etcd.io/etcd/server/v3"),
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    ],
    tags: "",
    minutes: "eight minutes",
};

/// The oldest tested version of Kubernetes. etcd and kwok are those of [`CONTROL_PLANE`].
const KUBERNETES_1_34: Set = Set {
    name: "controlplane-1.34",
    module: "controlplane-1.34",
    kubernetes: "v1.34.4",
    tools: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
    tags: "",
    minutes: "seven minutes",
};

const NODE: Set = Set {
    name: "node",
    module: "controlplane",
    kubernetes: KUBERNETES_VERSION,
    tools: &[("kubelet", "k8s.io/kubernetes/cmd/kubelet"), ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy")],
    tags: "",
    minutes: "two minutes after the control plane's",
};

const HELM: Set = Set {
    name: "helm",
    module: "helm",
    kubernetes: KUBERNETES_VERSION,
    tools: &[("helm4", "helm.sh/helm/v4/cmd/helm"), ("helm3", "helm.sh/helm/v3/cmd/helm")],
    tags: "",
    minutes: "three minutes",
};

const PROMETHEUS: Set = Set {
    name: "prometheus",
    module: "prometheus",
    kubernetes: KUBERNETES_VERSION,
    tools: &[
        ("promtool", "github.com/prometheus/prometheus/cmd/promtool"),
        ("prometheus", "github.com/prometheus/prometheus/cmd/prometheus"),
    ],
    // Without service discoveries, whose client libraries are most of Prometheus. Those of files and of HTTP remain.
    tags: "remove_all_sd",
    minutes: "five minutes",
};

/// A client of registries, and a registry for tests.
const CRANE: Set = Set {
    name: "crane",
    module: "crane",
    kubernetes: KUBERNETES_VERSION,
    tools: &[("crane", "github.com/google/go-containerregistry/cmd/crane")],
    tags: "",
    minutes: "a minute",
};

/// The manager of kubectl's plugins.
const KREW: Set = Set {
    name: "krew",
    module: "krew",
    kubernetes: KUBERNETES_VERSION,
    tools: &[("krew", "sigs.k8s.io/krew/cmd/krew")],
    tags: "",
    minutes: "half a minute",
};

/// The directory of the tools. [`Binaries::tool`] fails with instructions when a tool is missing.
#[derive(Clone, Debug)]
pub struct Binaries {
    set: &'static Set,
    directory: PathBuf,
    /// The directory of the tools that the set does not have.
    others: Option<PathBuf>,
}

impl Binaries {
    /// Finds the control plane's binaries, building what is missing. Blocks; the first build takes minutes.
    pub fn find_or_build() -> Result<Self> {
        if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|value| !value.is_empty()) {
            let found = Self { set: &CONTROL_PLANE, directory: assets.into(), others: None };
            for required in ["etcd", "kube-apiserver", "kubectl"] {
                found.tool(required)?;
            }
            return Ok(found);
        }
        let current = Self::cached(&CONTROL_PLANE)?;
        match std::env::var(SELECTION).unwrap_or_default().as_str() {
            "" | "1.36" => Ok(current),
            "1.34" => Ok(Self { others: Some(current.directory), ..Self::cached(&KUBERNETES_1_34)? }),
            other => bail!("{SELECTION} is {other:?}: it must be 1.34 or 1.36"),
        }
    }

    /// Finds or builds the kubelet and kube-proxy. `KUBEBUILDER_ASSETS` is ignored, because it never contains them.
    pub fn find_or_build_node() -> Result<Self> {
        Self::cached(&NODE)
    }

    /// Finds or builds Helm 3 and 4, as `helm3` and `helm4`.
    pub fn find_or_build_helm() -> Result<Self> {
        Self::cached(&HELM)
    }

    /// Finds or builds Prometheus and promtool.
    pub fn find_or_build_prometheus() -> Result<Self> {
        Self::cached(&PROMETHEUS)
    }

    /// Finds or builds crane.
    pub fn find_or_build_crane() -> Result<Self> {
        Self::cached(&CRANE)
    }

    /// Finds or builds Krew.
    pub fn find_or_build_krew() -> Result<Self> {
        Self::cached(&KREW)
    }

    fn cached(set: &'static Set) -> Result<Self> {
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join(set.module);
        let directory = cache_directory(&module, set)?;
        fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let found = Self { set, directory, others: None };
        if !found.complete() {
            let _lock = lock(&found.directory)?;
            found.build(&module)?;
        }
        Ok(found)
    }

    /// The path of one tool.
    pub fn tool(&self, name: &str) -> Result<PathBuf> {
        let directories = [Some(&self.directory), self.others.as_ref()].into_iter().flatten();
        let found = directories.map(|directory| directory.join(name)).find(|path| path.is_file());
        found.with_context(|| {
            format!(
            "{name} is missing in {}: add it there, or unset KUBEBUILDER_ASSETS and run `make control-plane` to have it built",
            self.directory.display()
            )
        })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn complete(&self) -> bool {
        self.set.tools.iter().all(|(name, _)| self.directory.join(name).is_file())
    }

    fn build(&self, module: &Path) -> Result<()> {
        check_go(module)?;
        let Set { tools, tags, minutes, .. } = self.set;
        let count = tools.len();
        eprintln!("the first build of {count} programs takes about {minutes} on two cores; later ones use its results");
        for (number, (name, package)) in (1..).zip(*tools) {
            let output = self.directory.join(name);
            if output.is_file() {
                continue;
            }
            eprintln!("building {name} ({number} of {count})");
            // Built under a temporary name and then renamed, so that a file with the tool's name is always complete.
            let unfinished = self.directory.join(format!(".{name}.unfinished"));
            let status = go(module)
                .args(["build", "-trimpath", "-tags", tags, "-ldflags", &linker_flags(self.set.kubernetes), "-o"])
                .arg(&unfinished)
                .arg(package)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status()
                .context("running go build")?;
            ensure!(status.success(), "go build {package} failed ({status}); its output is above");
            fs::rename(&unfinished, &output).with_context(|| format!("moving {name} into place"))?;
        }
        Ok(())
    }
}

fn linker_flags(kubernetes: &str) -> String {
    let version = "-X k8s.io/component-base/version.git";
    let minor = kubernetes.split('.').nth(1).unwrap_or_default();
    format!("-s -w {version}Version={kubernetes} {version}Major=1 {version}Minor={minor}")
}

fn go(module: &Path) -> Command {
    let mut command = Command::new("go");
    // The user's GOFLAGS or Go workspace must not change the result.
    command
        .current_dir(module)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-buildvcs=false -mod=readonly")
        .env("GOWORK", "off");
    command
}

fn check_go(module: &Path) -> Result<()> {
    const HOW: &str = "install Go 1.26 or newer (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a directory with etcd, \
         kube-apiserver and kubectl";
    match go(module).arg("version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => bail!("`go version` failed: {}; {HOW}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("the Kubernetes control plane for the tests is built with Go, which was not found: {HOW}")
        }
        Err(error) => Err(error).context("running `go version`"),
    }
}

/// The directory name contains a hash of the module files: other versions get another directory, so no binary is stale.
fn cache_directory(module: &Path, set: &Set) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum"] {
        let path = module.join(file);
        hash.update(fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
    }
    let key: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache"))).context(
        "neither XDG_CACHE_HOME nor HOME is set, so there is no cache directory for the Kubernetes binaries",
    )?;
    Ok(cache.join("linkerd-operator").join(format!("{}-{key}", set.name)))
}

/// Locks the directory until the file is dropped. The kernel releases the lock if this process dies.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(".lock");
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    let started = Instant::now();
    let mut announced = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => {
                ensure!(started.elapsed() < LOCK_DEADLINE, "another process has held {} for too long", path.display());
                if !announced {
                    eprintln!("another process is building the Kubernetes binaries; waiting for it");
                    announced = true;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(fs::TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_missing_tool_names_it_and_how_to_get_it() {
        let empty = tempfile::tempdir().unwrap();
        let binaries = Binaries { set: &CONTROL_PLANE, directory: empty.path().to_owned(), others: None };
        let error = binaries.tool("kwok").unwrap_err().to_string();
        assert!(error.starts_with("kwok is missing"), "{error}");
        assert!(error.contains("make control-plane"), "{error}");
    }

    #[test]
    fn a_tool_that_another_version_of_kubernetes_does_not_have_is_the_current_one() {
        let (old, current) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(old.path().join("kubectl"), "").unwrap();
        for name in ["kubectl", "etcd"] {
            fs::write(current.path().join(name), "").unwrap();
        }
        let others = Some(current.path().to_owned());
        let binaries = Binaries { set: &KUBERNETES_1_34, directory: old.path().to_owned(), others };
        assert_eq!(binaries.tool("kubectl").unwrap(), old.path().join("kubectl"));
        assert_eq!(binaries.tool("etcd").unwrap(), current.path().join("etcd"));
        assert!(binaries.tool("kwok").is_err());
    }

    #[test]
    fn the_binaries_report_the_version_of_their_module() {
        for set in [&CONTROL_PLANE, &KUBERNETES_1_34] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(set.module).join("go.mod");
            let module = fs::read_to_string(file).unwrap();
            assert!(module.contains(&format!("k8s.io/kubernetes {}", set.kubernetes)), "{}", set.name);
        }
        assert!(linker_flags("v1.34.4").contains("gitVersion=v1.34.4 "));
        assert!(linker_flags("v1.34.4").ends_with("gitMinor=34"));
    }
}
