//! Issuers and trust anchors, and the volumes in which the kubelet mounts them.
//!
//! * In: a folder. Out: files that are swapped as the kubelet swaps them: a new folder, and `..data` renamed over the old
//!   link. Always: the files of the last swap are complete.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType, date_time_ymd,
};
use sha2::{Digest, Sha256};

use crate::archive::digest;

const HOUR: Duration = Duration::from_secs(3600);

static VERSION: AtomicUsize = AtomicUsize::new(0);

/// A volume with the files of a Secret or a ConfigMap.
pub struct Volume(pub PathBuf);

/// A certificate authority: a root, or an issuer that a root has signed.
#[derive(Clone)]
pub struct MeshAuthority(Arc<CertifiedIssuer<'static, KeyPair>>);

// === impl Volume ===

impl Volume {
    pub fn new(folder: PathBuf) -> Result<Self> {
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    /// Swaps the files of the volume.
    pub fn put(&self, files: &[(&str, &str)]) -> Result<()> {
        let version = format!("..v{}", VERSION.fetch_add(1, Ordering::Relaxed));
        let folder = self.0.join(&version);
        fs::create_dir(&folder)?;
        for (name, text) in files {
            fs::write(folder.join(name), text)?;
            let link = self.0.join(name);
            if fs::symlink_metadata(&link).is_err() {
                symlink(Path::new("..data").join(name), link)?;
            }
        }
        let (data, next) = (self.0.join("..data"), self.0.join("..next"));
        let old = fs::canonicalize(&data);
        symlink(version, &next)?;
        fs::rename(next, data)?;
        if let Ok(old) = old {
            fs::remove_dir_all(old)?;
        }
        Ok(())
    }

    pub fn put_issuer(&self, issuer: &MeshAuthority) -> Result<()> {
        self.put_pair(issuer, issuer)
    }

    /// Writes an issuer, with the certificates after it, such as a bridge.
    ///
    /// # Errors
    /// Fails if there is no issuer, or a file cannot be written.
    pub fn put_chain(&self, issuer: &[&MeshAuthority]) -> Result<()> {
        let chain: String = issuer.iter().map(|authority| authority.pem()).collect();
        let key = issuer.first().context("no issuer")?.key_pem();
        self.put(&[("crt.pem", &chain), ("key.pem", &key)])
    }

    /// Writes the certificate of one issuer, and the key of one.
    pub fn put_pair(&self, certificate: &MeshAuthority, key: &MeshAuthority) -> Result<()> {
        self.put(&[("crt.pem", &certificate.pem()), ("key.pem", &key.key_pem())])
    }

    pub fn put_roots(&self, roots: &[&MeshAuthority]) -> Result<()> {
        self.put(&[("ca-bundle.crt", &roots.iter().map(|root| root.pem()).collect::<String>())])
    }
}

// === impl MeshAuthority ===

impl MeshAuthority {
    pub fn root(name: &str) -> Result<Self> {
        Ok(Self(Arc::new(CertifiedIssuer::self_signed(params(name), KeyPair::generate()?)?)))
    }

    /// A root that ended yesterday.
    ///
    /// # Errors
    /// Fails if no key can be made.
    pub fn expired_root(name: &str) -> Result<Self> {
        let mut params = params(name);
        let now = date_time_ymd(1970, 1, 1) + SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        params.not_after = now - 24 * HOUR;
        Ok(Self(Arc::new(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)))
    }

    pub fn signs(&self, name: &str) -> Result<Self> {
        Ok(Self(Arc::new(CertifiedIssuer::signed_by(params(name), KeyPair::generate()?, &self.0)?)))
    }

    /// Signs another certificate for the name and the key of that authority.
    pub fn bridges(&self, other: &Self, name: &str) -> Result<Self> {
        let key = KeyPair::from_pem(&other.key_pem())?;
        Ok(Self(Arc::new(CertifiedIssuer::signed_by(params(name), key, &self.0)?)))
    }

    /// Signs a certificate of 36 hours for a proxy, which has this age. Returns it in DER, and its key in PKCS #8.
    ///
    /// # Errors
    /// Fails if the name is not a DNS name.
    pub fn signs_leaf(&self, identity: &str, age: Duration) -> Result<(Vec<u8>, Vec<u8>)> {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::default());
        params.subject_alt_names = vec![match identity.contains("://") {
            true => SanType::URI(identity.try_into()?),
            false => SanType::DnsName(identity.try_into()?),
        }];
        params.distinguished_name = DistinguishedName::new();
        let now = date_time_ymd(1970, 1, 1) + SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        (params.not_before, params.not_after) = (now - age, now - age + 36 * HOUR);
        Ok((params.signed_by(&key, &self.0)?.der().to_vec(), key.serialize_der()))
    }

    pub fn der(&self) -> &[u8] {
        self.0.der()
    }

    /// The SHA-256 of the public key, as `openssl pkey -pubout -outform der | sha256sum` prints it.
    pub fn key_id(&self) -> String {
        digest(&PublicKeyData::subject_public_key_info(self.0.key()))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// The SHA-256 of the certificate, in hexadecimal digits.
    pub fn sha256(&self) -> String {
        Sha256::digest(self.der()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}
