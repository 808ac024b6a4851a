//! The certificate of the webhook server, which follows its files.
//!
//! In: the folder of a mounted Secret of type `kubernetes.io/tls`. Out: the certificate and the key for each TLS
//! handshake. Always holds: the certificate and the key in use match; a new pair that is not valid leaves the old one
//! in use.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use parking_lot::RwLock;
use rustls::{
    Error, InconsistentKeys,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tracing::{info, warn};

const CERTIFICATE_FILE: &str = "tls.crt";
const KEY_FILE: &str = "tls.key";
/// How often the files are read. The kubelet itself may need more than a minute to update them.
const READ_INTERVAL: Duration = Duration::from_secs(5);

/// The certificate and the key that a server presents. A new pair is used from the next TLS handshake on.
#[derive(Debug)]
pub struct ServingCertificate(RwLock<InUse>);

#[derive(Debug)]
struct InUse {
    pair: Arc<CertifiedKey>,
    hash: PairHash,
}

/// The bytes of both files.
struct PairFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Identifies the bytes of both files without a further copy of the private key.
type PairHash = [u8; 32];

/// The reason why the files could not be used at the last read.
#[derive(Debug, PartialEq, Eq)]
struct Unusable {
    hash: Option<PairHash>,
    why: String,
}

/// The unusable files that were seen, to log each content once.
#[derive(Default)]
pub(super) struct Reported {
    last: Option<Unusable>,
    is_logged: bool,
}

// === impl ServingCertificate ===

impl ServingCertificate {
    /// Reads `tls.crt` and `tls.key`.
    ///
    /// # Errors
    /// When a file cannot be read or is not valid, or when the key does not belong to the certificate. The error names
    /// the file and says what to do.
    pub fn from_folder(folder: &Path) -> anyhow::Result<Arc<Self>> {
        let files = PairFiles::read(folder)?;
        let pair = Arc::new(files.parse(folder)?);
        Ok(Arc::new(Self(RwLock::new(InUse { pair, hash: files.hash() }))))
    }

    /// Reads the files every 5 s, forever, and uses each new valid pair.
    pub async fn follow(self: Arc<Self>, folder: PathBuf) {
        let mut reported = Reported::default();
        loop {
            sleep(READ_INTERVAL).await;
            if let Some(why) = self.refresh(&folder, &mut reported) {
                warn!(why, "the new webhook certificate cannot be used, keeping the old one");
            }
        }
    }

    /// Reads the files once. Returns a problem that must be logged.
    pub(super) fn refresh(&self, folder: &Path, reported: &mut Reported) -> Option<String> {
        let (hash, why) = match PairFiles::read(folder) {
            Ok(files) => {
                let hash = files.hash();
                if hash == self.0.read().hash {
                    *reported = Reported::default();
                    return None;
                }
                match files.parse(folder) {
                    Ok(pair) => {
                        *self.0.write() = InUse { pair: Arc::new(pair), hash };
                        *reported = Reported::default();
                        info!(folder = %folder.display(), "using the new webhook certificate");
                        return None;
                    }
                    Err(error) => (Some(hash), error),
                }
            }
            Err(error) => (None, error),
        };
        reported.add(Unusable { hash, why: format!("{why:#}") })
    }

    fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read().pair)
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

// === impl PairFiles ===

impl PairFiles {
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let read = |name| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| {
                format!("cannot read {}: mount a Secret of type kubernetes.io/tls there", path.display())
            })
        };
        Ok(Self { certificate: read(CERTIFICATE_FILE)?, key: read(KEY_FILE)? })
    }

    fn parse(&self, folder: &Path) -> anyhow::Result<CertifiedKey> {
        let (certificate, key) = (folder.join(CERTIFICATE_FILE), folder.join(KEY_FILE));
        let (certificate, key) = (certificate.display(), key.display());
        let chain = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| anyhow!("{certificate} is not valid PEM: {error}: replace it"))?;
        if chain.is_empty() {
            bail!("{certificate} has no certificate: write the certificate in PEM, and then its chain");
        }
        let private = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                anyhow!("{key} has no private key: write a key in PEM (PKCS#8, PKCS#1 or SEC1), without a password")
            }
            error => anyhow!("{key} is not valid PEM: {error}: replace it"),
        })?;
        let signer = ring::sign::any_supported_type(&private)
            .map_err(|error| anyhow!("{key} cannot be used: {error}: use an RSA, ECDSA P-256, P-384 or Ed25519 key"))?;
        let pair = CertifiedKey::new(chain, signer);
        match pair.keys_match() {
            Ok(()) => Ok(pair),
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                bail!("{key} is not the key of the first certificate in {certificate}: write a pair that matches")
            }
            Err(error) => bail!("{certificate} cannot be used with {key}: {error}: replace both"),
        }
    }

    fn hash(&self) -> PairHash {
        let parts = [&self.certificate, &self.key].map(Sha256::digest);
        Sha256::digest(parts.concat()).into()
    }
}

// === impl Reported ===

impl Reported {
    /// Returns the reason if it must be logged: once for each content, at the second read. The kubelet swaps a symlink,
    /// so one read may see the old certificate and the new key.
    fn add(&mut self, unusable: Unusable) -> Option<String> {
        if self.last.as_ref() != Some(&unusable) {
            *self = Self { last: Some(unusable), is_logged: false };
            return None;
        }
        let is_new = !std::mem::replace(&mut self.is_logged, true);
        is_new.then_some(unusable.why)
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::webhook::testing::{Issued, issue};

    /// Made by `openssl req -x509`; the keys were converted by `openssl rsa -traditional` and `openssl ec`. They are used
    /// only here.
    const PKCS1: &str = include_str!("testdata/pkcs1.pem");
    const SEC1: &str = include_str!("testdata/sec1.pem");

    fn folder(issued: &Issued) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        issued.write(folder.path());
        folder
    }

    fn error(certificate: &str, key: &str) -> String {
        let folder = folder(&Issued { certificate: certificate.to_owned(), key: key.to_owned() });
        format!("{:#}", ServingCertificate::from_folder(folder.path()).unwrap_err())
    }

    fn presented(certificate: &ServingCertificate) -> Vec<CertificateDer<'static>> {
        certificate.current().cert.clone()
    }

    #[test]
    fn chains_and_all_formats_of_keys_are_accepted() {
        let leaf = issue();
        let chain = format!("{}{}", leaf.certificate, issue().certificate);
        for (certificate, key, length) in [(&*chain, &*leaf.key, 2), (PKCS1, PKCS1, 1), (SEC1, SEC1, 1)] {
            let folder = folder(&Issued { certificate: certificate.to_owned(), key: key.to_owned() });
            let loaded = ServingCertificate::from_folder(folder.path()).unwrap();
            assert_eq!(presented(&loaded).len(), length);
        }
    }

    #[test]
    fn an_error_names_the_file_and_says_what_to_do() {
        let (one, other) = (issue(), issue());
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        let not_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let bad_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        for (certificate, key, expected) in [
            ("", &*one.key, "tls.crt has no certificate: write"),
            (broken, &one.key, "tls.crt is not valid PEM"),
            (not_der, &one.key, "tls.crt cannot be used with"),
            (&one.certificate, "", "tls.key has no private key: write"),
            (&one.certificate, bad_key, "tls.key cannot be used"),
            (&one.certificate, &other.key, "tls.key is not the key of the first certificate in"),
        ] {
            let error = error(certificate, key);
            assert!(error.contains(expected), "{error}");
        }
        let folder = folder(&one);
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        let error = format!("{:#}", ServingCertificate::from_folder(folder.path()).unwrap_err());
        assert!(error.contains("tls.key: mount a Secret"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_pair_is_used_after_the_next_read() {
        let (old, new) = (issue(), issue());
        let folder = folder(&old);
        let certificate = ServingCertificate::from_folder(folder.path()).unwrap();
        let task = tokio::spawn(Arc::clone(&certificate).follow(folder.path().to_owned()));
        sleep(READ_INTERVAL).await;
        assert_eq!(presented(&certificate), [old.der()]);
        new.write(folder.path());
        sleep(2 * READ_INTERVAL).await;
        assert_eq!(presented(&certificate), [new.der()]);
        task.abort();
    }

    #[test]
    fn a_bad_new_pair_keeps_the_old_one_in_use() {
        let (old, new) = (issue(), issue());
        let folder = folder(&old);
        let certificate = ServingCertificate::from_folder(folder.path()).unwrap();
        let mut reported = Reported::default();
        let mut refresh = || certificate.refresh(folder.path(), &mut reported);
        // As during an update of the kubelet.
        Issued { certificate: new.certificate.clone(), key: old.key.clone() }.write(folder.path());
        assert_eq!(refresh(), None);
        new.write(folder.path());
        assert_eq!(refresh(), None);
        assert_eq!(presented(&certificate), [new.der()]);
        // Two bad contents with the same reason, then a missing file: each is logged once.
        for bad in ["no certificate", "again no certificate"] {
            fs::write(folder.path().join("tls.crt"), bad).unwrap();
            let logged = [refresh(), refresh(), refresh()].map(|why| why.is_some());
            assert_eq!(logged, [false, true, false]);
        }
        fs::remove_file(folder.path().join("tls.crt")).unwrap();
        assert_eq!([refresh(), refresh(), refresh()].map(|why| why.is_some()), [false, true, false]);
        assert_eq!(presented(&certificate), [new.der()]);
    }
}
