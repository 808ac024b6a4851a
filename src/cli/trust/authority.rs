//! `trust new`, `trust issuer` and `trust bridge`: certificates in files on this machine.
//!
//! In: the old root and its key, as files. Out: new files, and what to do with them. Always holds: a file that exists is
//! never replaced; a private key is readable by its owner only; nothing is sent anywhere.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args as ClapArgs, builder::TypedValueParser};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use zeroize::Zeroizing;

use super::super::terminal::write;
use crate::{
    text::sha256,
    x509::{
        authority::{NewAuthority, bridge, issuer_of},
        certificate::ChainCertificate,
        chain, pem,
    },
};

/// The end of a command that writes an object as `kubectl create` prints it.
const APPLY: &str = "--dry-run=client -o yaml | kubectl apply --server-side --force-conflicts -f -";
const KEY_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const CERTIFICATE_MODE: u32 = 0o644;
const DEFAULT_DAYS: u16 = 365;
/// The maximum length of a trust domain, in bytes.
const LONGEST_DOMAIN: usize = 253;
/// The maximum length of a file that is read, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

#[derive(Clone, Debug, ClapArgs)]
pub struct NewRootArgs {
    /// Folder for the new files
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Certificate of the old root, for a bridge
    #[arg(long, value_name = "FILE", requires = "old_key")]
    pub bridge_from: Option<PathBuf>,

    /// Private key of the old root: ECDSA, in PEM
    #[arg(long, value_name = "FILE", requires = "bridge_from")]
    pub old_key: Option<PathBuf>,

    /// Declare the root so that the operator writes the bundle and the issuer: with the mode Enforce, and the issuer of the
    /// Secret linkerd-identity-issuer-next
    #[arg(long)]
    pub enforce: bool,

    /// Certificate of a root whose key was stolen: no proxy may trust it any longer
    #[arg(long, value_name = "FILE")]
    pub distrust: Option<PathBuf>,

    /// Days until the root ends
    #[arg(long, value_name = "DAYS", default_value = "3650", value_parser = days())]
    pub days: u16,

    /// Days until the issuer ends
    #[arg(long, value_name = "DAYS", default_value = "365", value_parser = days())]
    pub issuer_days: u16,

    /// Days until the bridge ends
    #[arg(long, value_name = "DAYS", default_value = "365", value_parser = days())]
    pub bridge_days: u16,

    /// Namespace of Linkerd's control plane
    #[arg(long, short, value_name = "NAME", default_value = "linkerd", value_parser = domain)]
    pub namespace: String,

    /// Trust domain of the mesh
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", value_parser = domain)]
    pub trust_domain: String,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct IssuerArgs {
    /// Folder for the new files
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Certificate of the root
    #[arg(long, value_name = "FILE")]
    pub root: PathBuf,

    /// Private key of the root: ECDSA, in PEM
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,

    /// Days until the issuer ends; if absent, 365, or until the root ends
    #[arg(long, value_name = "DAYS", value_parser = days())]
    pub days: Option<u16>,

    /// Namespace of Linkerd's control plane
    #[arg(long, short, value_name = "NAME", default_value = "linkerd", value_parser = domain)]
    pub namespace: String,

    /// Trust domain of the mesh
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", value_parser = domain)]
    pub trust_domain: String,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct BridgeArgs {
    /// Certificate of the new root
    #[arg(long, value_name = "FILE")]
    pub root: PathBuf,

    /// Certificate of the old root
    #[arg(long, value_name = "FILE")]
    pub old_root: PathBuf,

    /// Private key of the old root: ECDSA, in PEM
    #[arg(long, value_name = "FILE")]
    pub old_key: PathBuf,

    /// Days until the bridge ends
    #[arg(long, value_name = "DAYS", default_value = "365", value_parser = days())]
    pub days: u16,

    /// File for the bridge; if absent, standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

fn domain(text: &str) -> Result<String, String> {
    let is_of_dns = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_domain = (1..=LONGEST_DOMAIN).contains(&text.len()) && text.bytes().all(is_of_dns);
    is_domain.then(|| text.to_owned()).ok_or_else(|| "it is not a DNS name".to_owned())
}

fn days() -> impl TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=36_500)
}

/// Makes a root, its issuer, and a bridge if the old root is given.
pub(super) fn new_root(args: &NewRootArgs) -> Result<ExitCode> {
    let now = Timestamp::now();
    // All that may be wrong with what was given comes before the first file.
    if args.issuer_days > args.days {
        bail!("the issuer would end after its root: give fewer --issuer-days, or more --days");
    }
    let old = match (&args.bridge_from, &args.old_key) {
        (Some(certificate), Some(key)) => Some((root(certificate)?, read_key(key)?)),
        _ => None,
    };
    let distrusted = args.distrust.as_deref().map(root).transpose()?;
    if let (Some(file), Some(false)) = (&args.distrust, distrusted.as_ref().map(ChainCertificate::is_authority)) {
        bail!("{} is not the certificate of a certificate authority (CA)", file.display());
    }
    let made = |made: Result<NewAuthority, _>| made.map_err(|error| anyhow!("cannot make a certificate: {error}"));
    let new = made(NewAuthority::root(&args.trust_domain, now, lifetime(args.days)))?;
    let issuer = made(new.issuer(&args.trust_domain, now, lifetime(args.issuer_days)))?;
    let parsed = parse(&new.certificate).context("cannot read the new root")?;
    let bridged = old.as_ref().map(|(old, key)| bridge(&parsed, old, key, now, lifetime(args.bridge_days))).transpose();
    let bridged = bridged.context("cannot sign a bridge")?.map(|bridge| pem::certificate(&bridge.der));
    // With the root that signed it.
    let signed = bridged.as_ref().zip(old.as_ref());
    let declared = signed.map(|(bridge, (old, _))| format!("{bridge}{}", pem::certificate(&old.der)));

    let folder = &args.folder;
    let chain = format!("{}{}", issuer.certificate, bridged.as_deref().unwrap_or_default());
    create_all(
        folder,
        &[
            ("ca.crt", &*new.certificate, CERTIFICATE_MODE),
            ("ca.key", &new.key, KEY_MODE),
            ("issuer.crt", &chain, CERTIFICATE_MODE),
            ("issuer.key", &issuer.key, KEY_MODE),
            ("linkerdtrust.yaml", &manifest(&new.certificate, declared.as_deref(), distrusted, args), CERTIFICATE_MODE),
        ],
    )?;
    write(&advice(folder, args, bridged.is_some(), &sha256(&parsed.der)))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a LinkerdTrust that declares the root, and the bridge to it with its signer.
fn manifest(
    certificate: &str,
    bridge: Option<&str>,
    distrusted: Option<ChainCertificate>,
    args: &NewRootArgs,
) -> String {
    let pem = |field: &str, certificate: &str| {
        let lines: String = certificate.lines().map(|line| format!("      {line}\n")).collect();
        format!("  {field}:\n    pem: |\n{lines}")
    };
    let bridge = bridge.map_or_else(String::new, |bridge| pem("bridge", bridge));
    let distrust = distrusted.map_or_else(String::new, |root| {
        let connections = "    # Cut is for an attack that goes on: proxies then refuse each other until all have restarted.\n    \
                           connections: Keep\n";
        pem("distrust", &pem::certificate(&root.der)) + connections
    });
    let (namespace, mode) = (&args.namespace, if args.enforce { "Enforce" } else { "Observe" });
    let manage = if args.enforce { "Secret" } else { "None" };
    format!(
        "apiVersion: config.linkerd.io/v1alpha1\nkind: LinkerdTrust\nmetadata:\n  name: mesh\nspec:\n  \
         controlPlaneNamespace: {namespace}\n  # With Enforce, the operator writes the bundle.\n  mode: {mode}\n  issuer:\n    \
         # With Secret, the operator writes the issuer of Secret linkerd-identity-issuer-next.\n    manage: {manage}\n{}{bridge}{distrust}",
        pem("anchors", certificate)
    )
}

/// Returns what the files are, and the commands that use them. They keep the roots that the bundle has.
fn advice(folder: &Path, args: &NewRootArgs, is_bridged: bool, root: &str) -> String {
    let at = quoted(&folder.display().to_string());
    let chain = if is_bridged { "the issuer, and the bridge after it" } else { "the issuer" };
    let namespace = &args.namespace;
    // There is no way back to a distrusted root.
    let saved = if args.distrust.is_some() { String::new() } else { saved(&at, namespace) };
    let steps = match args.enforce {
        true => enforced(&at, args, (is_bridged, root), &saved),
        false => by_hand(&at, args, is_bridged, &saved),
    };
    let back = way_back(&at, args, is_bridged);
    format!(
        "{at}/ca.crt       the new root\n\
         {at}/ca.key       its key: keep it off the cluster, and off this machine\n\
         {at}/issuer.crt   {chain}\n\
         {at}/issuer.key   the key of the issuer\n\
         {at}/linkerdtrust.yaml   declares the new root, for trust plan and for the operator, which then reports each phase\n\
         \n\
         {steps}{back}\n"
    )
}

/// Returns how a rotation is taken back.
fn way_back(at: &str, args: &NewRootArgs, is_bridged: bool) -> String {
    // Without a bridge, Pods that are created with the old bundle refuse the certificates of the new issuer.
    let (last, without) = if is_bridged { (3, ", without spec.bridge") } else { (2, "") };
    match (&args.distrust, args.enforce) {
        (Some(_), _) => "The resource is Ready when no proxy trusts the distrusted root: for that, each workload restarts after the \
                        rotation."
            .to_owned(),
        (None, true) => format!(
            "To go back, declare the old root in {at}/linkerdtrust.yaml{without}, apply it, and restart the control \
             plane. {at}/before.yaml has the key of the issuer: delete it afterwards."
        ),
        (None, false) => format!(
            "With --enforce, the operator does these steps. To go back, first declare the old root again{without}.\n\
             Before step {last}, this goes back: kubectl apply --server-side --force-conflicts -f {at}/before.yaml\n\
             It has the key of the issuer: delete it afterwards."
        ),
    }
}

/// Returns the command that saves what a rotation changes.
fn saved(at: &str, namespace: &str) -> String {
    format!(
        "0. Save the present objects, for a rollback:\n   \
            (umask 077; kubectl -n {namespace} get configmap/linkerd-identity-trust-roots secret/linkerd-identity-issuer \
         -o yaml | sed -E '/^    (resourceVersion|uid):/d' > {at}/before.yaml)\n"
    )
}

/// The steps, if the operator writes the bundle and the issuer. `root`: the SHA-256 of the new root.
fn enforced(at: &str, args: &NewRootArgs, (is_bridged, root): (bool, &str), saved: &str) -> String {
    let namespace = &args.namespace;
    let restarts = match is_bridged {
        true if args.distrust.is_some() => "No proxy has to restart before the old root has left the bundle.",
        true => "No proxy has to restart.",
        false => "Without a bridge, each workload and the control plane restart once, before the issuer changes.",
    };
    let next = write_next(at, namespace);
    let restart = match is_bridged {
        true => String::new(),
        false => format!(
            "   Then wait until the bundle has it, and restart the control plane, and the workloads that a LinkerdConfig does not \
             restart: linkerd-operator trust lists them:\n   \
                kubectl wait --for=jsonpath='{{.status.anchors[?(@.sha256==\"{root}\")].inBundle}}'=true linkerdtrust/mesh \
             --timeout=5m\n   \
                kubectl -n {namespace} rollout restart deployment\n"
        ),
    };
    format!(
        "{restarts} The operator writes the bundle and the issuer, if it has the permission and the Deployment \
         linkerd-operator-issuer:\n\
         {saved}\
         1. Write the next issuer:\n   \
            {next}\n\
         2. Declare the root:\n   \
            kubectl apply -f {at}/linkerdtrust.yaml\n\
         {restart}\
         3. Wait until no certificate needs another root. `kubectl get linkerdtrusts -o wide` shows the next step:\n   \
            kubectl wait --for=condition=Ready linkerdtrust/mesh --timeout=48h\n"
    )
}

/// The steps, if people write the bundle and the issuer.
fn by_hand(at: &str, args: &NewRootArgs, is_bridged: bool, saved: &str) -> String {
    let namespace = &args.namespace;
    let order = match is_bridged {
        true if args.distrust.is_some() => {
            "No proxy has to restart before the old root has left the bundle. In this order:"
        }
        true => "No proxy has to restart. In this order:",
        false => {
            "Without a bridge, each proxy must restart between step 1 and step 2, those of the control plane first. In this \
             order:"
        }
    };
    let (apply, secret) = (APPLY, write_secret(at, namespace));
    format!(
        "{order}\n\
         {saved}\
         1. Add the root to the bundle. The first command is for a LinkerdConfig that restarts workloads: then it restarts only \
         what must:\n   \
            kubectl apply -f {at}/linkerdtrust.yaml\n   \
            {{ cat {at}/ca.crt && kubectl -n {namespace} get configmap linkerd-identity-trust-roots \
         -o jsonpath='{{.data.ca-bundle\\.crt}}'; }} > {at}/ca-bundle.crt\n   \
            kubectl -n {namespace} create configmap linkerd-identity-trust-roots --from-file={at}/ca-bundle.crt {apply}\n\
         2. Write the issuer into its Secret, {secret}\
         3. When `linkerd-operator trust` says so, leave only the new root in the bundle:\n   \
            kubectl -n {namespace} create configmap linkerd-identity-trust-roots --from-file=ca-bundle.crt={at}/ca.crt \
         {apply}\n"
    )
}

/// Returns the end of the sentence that begins with the Secret, and its commands. `at` is the folder, quoted.
fn write_secret(at: &str, namespace: &str) -> String {
    let create = format!("kubectl -n {namespace} create secret");
    let tls = format!("{create} tls linkerd-identity-issuer --cert={at}/issuer.crt --key={at}/issuer.key {APPLY}");
    let files = format!("--from-file=crt.pem={at}/issuer.crt --from-file=key.pem={at}/issuer.key");
    let chart = format!("{create} generic linkerd-identity-issuer {files} {APPLY}");
    format!(
        "if its type is kubernetes.io/tls:\n   {tls}\n   or if its type is Opaque, as in Linkerd's chart:\n   {chart}\n"
    )
}

/// Returns the command that writes the next issuer.
fn write_next(at: &str, namespace: &str) -> String {
    format!(
        "kubectl -n {namespace} create secret tls linkerd-identity-issuer-next --cert={at}/issuer.crt \
         --key={at}/issuer.key {APPLY}"
    )
}

/// Makes an issuer under a root.
pub(super) fn new_issuer(args: &IssuerArgs) -> Result<ExitCode> {
    let (root, key, now) = (root(&args.root)?, read_key(&args.key)?, Timestamp::now());
    let of_root = root.not_after.duration_since(now);
    if !of_root.is_positive() {
        bail!("the root ended at {}: replace it, with linkerd-operator trust new", root.not_after);
    }
    let days = match args.days.map(lifetime) {
        Some(days) if days > of_root => {
            bail!("the issuer would end after its root, at {}: give fewer --days", root.not_after)
        }
        days => days.unwrap_or(lifetime(DEFAULT_DAYS).min(of_root)),
    };
    let issuer = issuer_of(&root, &key, &args.trust_domain, now, days);
    let issuer = issuer.context("cannot sign an issuer")?;
    create_all(
        &args.folder,
        &[("issuer.crt", &issuer.certificate, CERTIFICATE_MODE), ("issuer.key", &issuer.key, KEY_MODE)],
    )?;
    let at = quoted(&args.folder.display().to_string());
    let (secret, next) = (write_secret(&at, &args.namespace), write_next(&at, &args.namespace));
    write(&format!(
        "No proxy has to restart. If a bridge is in use, append it to issuer.crt: it is the second certificate of the \
         present file. Write the issuer into its Secret, {secret}   \
         or if a LinkerdTrust has `spec.issuer.manage: Secret`, which also keeps the bridge:\n   {next}\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'/' | b'_');
    if text.bytes().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Signs a new root with the old one.
pub(super) fn write_bridge(args: &BridgeArgs) -> Result<ExitCode> {
    let (new, old, key) = (root(&args.root)?, root(&args.old_root)?, read_key(&args.old_key)?);
    let bridge = bridge(&new, &old, &key, Timestamp::now(), lifetime(args.days)).context("cannot sign a bridge")?;
    let pem = pem::certificate(&bridge.der);
    match &args.out {
        Some(file) => create(file, &pem, CERTIFICATE_MODE)?,
        None => write(&pem)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn lifetime(days: u16) -> SignedDuration {
    SignedDuration::from_hours(i64::from(days) * 24)
}

/// Reads the certificate of a root: the only one of its file.
fn root(file: &Path) -> Result<ChainCertificate> {
    let text = read(file)?;
    let text = str::from_utf8(&text).with_context(|| format!("{} is not text", file.display()))?;
    parse(text).with_context(|| format!("{} is not the file of a root", file.display()))
}

fn parse(text: &str) -> Result<ChainCertificate> {
    let (own, others) = chain::read(text.as_bytes()).map_err(|why| anyhow!("it {why}"))?;
    if !others.is_empty() {
        bail!("it has {} certificates: give a file with one", others.len() + 1);
    }
    Ok(own)
}

/// Reads a private key. `openssl ecparam -genkey` writes the parameters of the curve before it.
pub(super) fn read_key(file: &Path) -> Result<Zeroizing<Vec<u8>>> {
    const END: &[u8] = b"-----END EC PARAMETERS-----";
    let text = read(file)?;
    let end = text.windows(END.len()).position(|window| window == END).map(|at| at + END.len());
    Ok(Zeroizing::new(text.get(end.unwrap_or_default()..).unwrap_or_default().to_vec()))
}

pub(super) fn read(file: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let cannot = || format!("cannot read {}", file.display());
    // A device or a pipe shows no length. Where the buffer grows, a copy of the key would stay in memory.
    let most = LONGEST_FILE + 1;
    let mut text = Zeroizing::new(Vec::with_capacity(usize::try_from(most).unwrap_or(usize::MAX)));
    File::open(file).with_context(cannot)?.take(most).read_to_end(&mut text).with_context(cannot)?;
    if text.len() as u64 == most {
        bail!("{} is longer than {LONGEST_FILE} bytes", file.display());
    }
    Ok(text)
}

/// Writes files with their modes into a folder: all or none, because half of the files of two runs do not belong together.
fn create_all(folder: &Path, files: &[(&str, &str, u32)]) -> Result<()> {
    let created = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder);
    created.with_context(|| format!("cannot create {}", folder.display()))?;
    let mut paths = files.iter().map(|(name, ..)| folder.join(name));
    if let Some(existing) = paths.find(|file| file.symlink_metadata().is_ok()) {
        bail!("{} exists: give another folder", existing.display());
    }
    for (at, (name, text, mode)) in files.iter().enumerate() {
        if let Err(error) = create(&folder.join(name), text, *mode) {
            files.iter().take(at).for_each(|(name, ..)| drop(fs::remove_file(folder.join(name))));
            return Err(error);
        }
    }
    Ok(())
}

/// Writes a file that does not exist yet.
fn create(file: &Path, text: &str, mode: u32) -> Result<()> {
    let cannot = || format!("cannot write {}", file.display());
    let mut open = OpenOptions::new().write(true).create_new(true).mode(mode).open(file).with_context(cannot)?;
    let written = open.write_all(text.as_bytes());
    if written.is_err() {
        _ = fs::remove_file(file);
    }
    written.with_context(cannot)
}
