//! The certificate of the webhook server, which follows its files or is offered each new pair.
//!
//! In: the folder of a mounted Secret of type `kubernetes.io/tls`, or pairs. Out: the certificate and the key for each TLS
//! handshake. Always holds: the certificate and the key in use match; a new pair that is not valid leaves the old one
//! in use; without a pair, handshakes fail.

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use jiff::Timestamp;
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
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

const CERTIFICATE_FILE: &str = "tls.crt";
const KEY_FILE: &str = "tls.key";
/// How often the files are read. The kubelet itself may need more than a minute to update them.
const READ_INTERVAL: Duration = Duration::from_secs(5);

/// The certificate and the key that a server presents, if it has them. A new pair is used from the next TLS handshake on.
#[derive(Debug, Default)]
pub struct ServingCertificate(RwLock<Option<InUse>>);

#[derive(Debug)]
struct InUse {
    pair: Arc<CertifiedKey>,
    hash: PairHash,
    not_after: Timestamp,
}

/// The bytes of both files, or of both keys of a Secret.
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

/// Returns the sentence about a certificate that expired at this time. `/ready` appends where the certificate is from.
pub fn expired_at(end: Timestamp) -> String {
    format!("the certificate of the webhooks expired at {end}")
}

// === impl ServingCertificate ===

impl ServingCertificate {
    /// Reads `tls.crt` and `tls.key`.
    ///
    /// # Errors
    /// When a file cannot be read or is not valid, or when the key does not belong to the certificate. The error names
    /// the file and says what to do.
    pub fn from_folder(folder: &Path) -> anyhow::Result<Arc<Self>> {
        let in_use = PairFiles::read(folder)?.parse(folder)?;
        Ok(Arc::new(Self(RwLock::new(Some(in_use)))))
    }

    /// Uses this pair, in PEM. Returns whether it is another one than before.
    ///
    /// # Errors
    /// When the pair is not valid. Then the one in use stays.
    pub fn offer(&self, certificate: &[u8], key: &[u8]) -> anyhow::Result<bool> {
        let pair = PairFiles { certificate: certificate.to_vec(), key: key.to_vec() };
        if self.uses(&pair.hash()) {
            return Ok(false);
        }
        let in_use = pair.parse(Path::new(""))?;
        *self.0.write() = Some(in_use);
        Ok(true)
    }

    /// Returns when the certificate in use expires; `None` without one.
    pub fn not_after(&self) -> Option<Timestamp> {
        self.0.read().as_ref().map(|in_use| in_use.not_after)
    }

    /// Returns a sentence if the certificate in use has expired, for `/ready`. `source` is where the certificate is from.
    pub fn expired(&self, source: impl Display) -> Option<String> {
        let end = self.not_after().filter(|end| *end <= Timestamp::now())?;
        Some(format!("{}: {source}", expired_at(end)))
    }

    /// Reads the files every 5 s, forever, and uses each new valid pair.
    pub async fn follow(self: Arc<Self>, folder: PathBuf) {
        let (mut reported, mut expired) = (Reported::default(), None);
        loop {
            if let Some(why) = self.newly_expired(&folder, &mut expired) {
                warn!("{why}: API servers reject it, so replace it");
            }
            sleep(READ_INTERVAL).await;
            if let Some(why) = self.refresh(&folder, &mut reported) {
                warn!(why, "the new webhook certificate cannot be used, keeping the old one");
            }
        }
    }

    /// Returns the sentence of [`Self::expired`], once for each certificate.
    fn newly_expired(&self, folder: &Path, known: &mut Option<String>) -> Option<String> {
        let expired = self.expired(folder.join(CERTIFICATE_FILE).display());
        let is_new = expired != *known;
        known.clone_from(&expired);
        expired.filter(|_| is_new)
    }

    /// Reads the files once. Returns a problem that must be logged.
    pub(super) fn refresh(&self, folder: &Path, reported: &mut Reported) -> Option<String> {
        let (hash, why) = match PairFiles::read(folder) {
            Ok(files) => {
                let hash = files.hash();
                if self.uses(&hash) {
                    *reported = Reported::default();
                    return None;
                }
                match files.parse(folder) {
                    Ok(in_use) => {
                        *self.0.write() = Some(in_use);
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

    fn uses(&self, hash: &PairHash) -> bool {
        self.0.read().as_ref().is_some_and(|in_use| in_use.hash == *hash)
    }

    fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().as_ref().map(|in_use| Arc::clone(&in_use.pair))
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
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

    /// Errors name the files in this folder.
    fn parse(&self, folder: &Path) -> anyhow::Result<InUse> {
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
            Ok(()) => {
                let not_after = pair.cert.first().and_then(|leaf| not_after(leaf)).unwrap_or(Timestamp::MAX);
                Ok(InUse { pair: Arc::new(pair), hash: self.hash(), not_after })
            }
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

fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
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
    const END_OF_SEC1: &str = "2126-11-01T14:33:36Z";

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
        certificate.current().unwrap().cert.clone()
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

    #[test]
    fn without_a_pair_there_is_none_and_an_offered_one_is_used_until_a_better_one_is_offered() {
        let certificate = ServingCertificate::default();
        assert!(certificate.current().is_none() && certificate.not_after().is_none());
        let (one, other) = (issue(), issue());
        let offer = |certificate: &ServingCertificate, pair: &str, key: &str| {
            certificate.offer(pair.as_bytes(), key.as_bytes()).map_err(|error| format!("{error:#}"))
        };
        assert!(offer(&certificate, &one.certificate, &other.key).unwrap_err().starts_with("tls.key is not the key"));
        assert!(certificate.current().is_none());
        assert_eq!(offer(&certificate, &one.certificate, &one.key), Ok(true));
        assert_eq!(offer(&certificate, &one.certificate, &one.key), Ok(false));
        offer(&certificate, "", &other.key).unwrap_err();
        assert_eq!(presented(&certificate), [one.der()]);
        assert_eq!(offer(&certificate, &other.certificate, &other.key), Ok(true));
        assert_eq!(presented(&certificate), [other.der()]);
        // Made by `openssl req`; `openssl x509 -noout -enddate` prints the time.
        assert_eq!(offer(&certificate, SEC1, SEC1), Ok(true));
        assert_eq!(certificate.not_after().unwrap().to_string(), END_OF_SEC1);
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
    fn a_certificate_that_has_expired_is_named_and_logged_once() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["webhook.test".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2025, 1, 1), rcgen::date_time_ymd(2025, 2, 1));
        let (old, new) = (params.self_signed(&key).unwrap().pem(), issue());
        let folder = folder(&Issued { certificate: old, key: key.serialize_pem() });
        let certificate = ServingCertificate::from_folder(folder.path()).unwrap();
        let file = folder.path().join("tls.crt");
        let expected = format!("the certificate of the webhooks expired at 2025-02-01T00:00:00Z: {}", file.display());
        assert_eq!(certificate.expired(file.display()), Some(expected.clone()));
        let mut known = None;
        let mut logged = || certificate.newly_expired(folder.path(), &mut known);
        assert_eq!([logged(), logged()], [Some(expected), None]);
        certificate.offer(new.certificate.as_bytes(), new.key.as_bytes()).unwrap();
        assert_eq!((logged(), certificate.expired("")), (None, None));
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
