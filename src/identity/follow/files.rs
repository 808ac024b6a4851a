//! The files of the issuer and of the trust anchors.
//!
//! In: two folders, which the kubelet fills, or a person. Out: the contents of the three files, and a stamp that changes
//! with them. Always holds: the certificate and the key are read through one target of `..data`, so they are one pair.
//!
//! The stamp is compared several times a second, which costs a few system calls. It is taken before the files are read,
//! so a change while they are read is seen by the next comparison; and it has the time of the inode's last change, which no
//! program can set. Two writes of the same length within one tick of the kernel's clock are found by the next full read.
//! inotify would not save the comparison: a watch ends silently when its folder is made again, and that is how Linkerd's
//! identity misses an issuer.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// The symbolic link that the kubelet swaps when it updates a volume.
const DATA: &str = "..data";
/// The file with the trust anchors, and the key of their ConfigMap.
pub(super) const BUNDLE: &str = "ca-bundle.crt";
/// The maximum size of a file: that of a Secret or a ConfigMap.
const LONGEST: u64 = 1 << 20;

/// Where the files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerFiles {
    /// The folder with the certificate and the key of the issuer.
    pub issuer: PathBuf,
    /// The folder with the trust anchors.
    pub trust_roots: PathBuf,
    pub names: IssuerFileNames,
}

/// The names of the files of an issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuerFileNames {
    /// `crt.pem` and `key.pem`, of the scheme `linkerd.io/tls`.
    Linkerd,
    /// `tls.crt` and `tls.key`, of a Secret of type `kubernetes.io/tls`.
    Kubernetes,
}

pub(super) struct IssuerFileContents {
    pub(super) certificates: Vec<u8>,
    pub(super) key: Zeroizing<Vec<u8>>,
    pub(super) trust_roots: Vec<u8>,
}

/// Identifies the contents without a further copy of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentHash {
    pub(super) issuer: [u8; 32],
    pub(super) trust_roots: [u8; 32],
}

/// Changes when a file is written or a volume is updated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileStamp([Option<[i128; 4]>; 5]);

// === impl FileStamp ===

impl FileStamp {
    /// Returns the stamp of these versions of the Secret and of the ConfigMap.
    pub(super) fn of_versions([issuer, trust_roots]: [i128; 2]) -> Self {
        Self([Some([issuer; 4]), None, None, Some([trust_roots; 4]), None])
    }
}

// === impl IssuerFiles ===

impl IssuerFiles {
    pub(super) fn read(&self) -> Result<IssuerFileContents, String> {
        let (certificate, key) = self.names.pair();
        let issuer = current(&self.issuer);
        Ok(IssuerFileContents {
            certificates: contents(&issuer.join(certificate))?,
            key: Zeroizing::new(contents(&issuer.join(key))?),
            trust_roots: contents(&current(&self.trust_roots).join(BUNDLE))?,
        })
    }

    pub(super) fn stamp(&self) -> FileStamp {
        let (certificate, key) = self.names.pair();
        let link = |folder: &Path| fs::symlink_metadata(folder.join(DATA));
        let file = |folder: &Path, name: &str| fs::metadata(folder.join(name));
        let all = [
            link(&self.issuer),
            file(&self.issuer, certificate),
            file(&self.issuer, key),
            link(&self.trust_roots),
            file(&self.trust_roots, BUNDLE),
        ];
        FileStamp(all.map(|found| found.ok().as_ref().map(stamp)))
    }
}

/// Returns the folder that `..data` points to now; the folder itself if it is no volume of the kubelet.
fn current(folder: &Path) -> PathBuf {
    fs::canonicalize(folder.join(DATA)).unwrap_or_else(|_| folder.to_owned())
}

pub(super) fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let read = || {
        // Otherwise a FIFO would wait for a writer.
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        if found.len() > LONGEST {
            return Err(io::Error::other(format!("it has {} bytes, and the maximum is {LONGEST}", found.len())));
        }
        // With its final size, so that no copy of a key stays behind.
        let mut contents = Vec::with_capacity(usize::try_from(found.len()).unwrap_or_default() + 1);
        file.take(LONGEST).read_to_end(&mut contents)?;
        Ok(contents)
    };
    read().map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn stamp(found: &Metadata) -> [i128; 4] {
    let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
    [found.dev().into(), found.ino().into(), found.len().into(), changed]
}

// === impl IssuerFileNames ===

impl IssuerFileNames {
    /// Returns the names of the certificate and of the key, in a folder and in a Secret.
    pub(super) fn pair(self) -> (&'static str, &'static str) {
        match self {
            Self::Linkerd => ("crt.pem", "key.pem"),
            Self::Kubernetes => ("tls.crt", "tls.key"),
        }
    }
}

// === impl IssuerFileContents ===

impl IssuerFileContents {
    pub(super) fn hash(&self) -> ContentHash {
        let parts = [Sha256::digest(&self.certificates), Sha256::digest(&*self.key)];
        ContentHash {
            issuer: Sha256::digest(parts.concat()).into(),
            trust_roots: Sha256::digest(&self.trust_roots).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// Writes a version of the issuer as the kubelet does.
    fn swap(folder: &Path, version: &str) {
        let data = folder.join(format!("..{version}"));
        fs::create_dir_all(&data).unwrap();
        for (file, text) in [("crt.pem", "certificate"), ("key.pem", "key")] {
            fs::write(data.join(file), format!("{text} {version}")).unwrap();
            if fs::symlink_metadata(folder.join(file)).is_err() {
                symlink(format!("{DATA}/{file}"), folder.join(file)).unwrap();
            }
        }
        symlink(format!("..{version}"), folder.join("..next")).unwrap();
        fs::rename(folder.join("..next"), folder.join(DATA)).unwrap();
    }

    fn files(folder: &TempDir) -> IssuerFiles {
        let trust_roots = folder.path().join("roots");
        fs::create_dir_all(&trust_roots).unwrap();
        fs::write(trust_roots.join(BUNDLE), "roots").unwrap();
        let issuer = folder.path().join("issuer");
        swap(&issuer, "one");
        IssuerFiles { issuer, trust_roots, names: IssuerFileNames::Linkerd }
    }

    #[test]
    fn a_swap_of_the_volume_changes_the_stamp_and_the_pair_together() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        let (stamp, first) = (files.stamp(), files.read().unwrap());
        assert_eq!(
            (&*first.certificates, &**first.key, &*first.trust_roots),
            (&b"certificate one"[..], &b"key one"[..], &b"roots"[..])
        );
        assert_eq!(files.stamp(), stamp);
        swap(&files.issuer, "two");
        assert_ne!(files.stamp(), stamp);
        let second = files.read().unwrap();
        assert_eq!((&*second.certificates, &**second.key), (&b"certificate two"[..], &b"key two"[..]));
        assert_ne!(second.hash().issuer, first.hash().issuer);
        assert_eq!(second.hash().trust_roots, first.hash().trust_roots);
    }

    #[test]
    fn a_file_that_is_no_regular_one_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        let bundle = files.trust_roots.join(BUNDLE);
        for (program, arguments) in [("mkfifo", &[][..]), ("ln", &["-s", "/dev/zero"]), ("mkdir", &[])] {
            fs::remove_file(&bundle).unwrap();
            assert!(std::process::Command::new(program).args(arguments).arg(&bundle).status().unwrap().success());
            assert!(files.read().is_err_and(|why| why.ends_with("it is no regular file")), "{program}");
        }
    }

    #[test]
    fn a_file_of_the_same_length_and_modification_time_changes_the_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        let (bundle, stamp) = (files.trust_roots.join(BUNDLE), files.stamp());
        let modified = fs::metadata(&bundle).unwrap().modified().unwrap();
        // The kernel may count time in ticks of 4 ms. Two writes within one are found by the next full read.
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(&bundle, "ROOTS").unwrap();
        fs::File::options().append(true).open(&bundle).unwrap().set_modified(modified).unwrap();
        assert_eq!(fs::metadata(&bundle).unwrap().modified().unwrap(), modified);
        assert_ne!(files.stamp(), stamp);
    }

    #[test]
    fn files_that_are_written_in_place_and_a_folder_that_is_made_again_change_the_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        let stamp = files.stamp();
        fs::write(files.trust_roots.join(BUNDLE), "ROOTS").unwrap();
        assert_ne!(files.stamp(), stamp);
        fs::remove_dir_all(&files.issuer).unwrap();
        let stamp = files.stamp();
        assert!(files.read().is_err_and(|why| why.contains("crt.pem: No such file")));
        swap(&files.issuer, "one");
        assert_ne!(files.stamp(), stamp);
        assert!(files.read().is_ok());
    }
}
