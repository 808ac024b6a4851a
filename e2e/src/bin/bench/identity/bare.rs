//! The smallest cost of a certificate: one verification and one signature with ring, on P-256.

use std::{hint::black_box, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::load::Cost;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey},
};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::spent::SERVERS_CORE;

/// The sizes of what a proxy signs, and of what is signed for it.
const SIGNED_BY_PROXY: usize = 270;
const SIGNED_BY_ISSUER: usize = 420;
const ROUNDS: u32 = 2_000;

/// The CPU time of each part.
#[derive(Clone, Copy, Debug)]
pub(super) struct BareCost {
    pub(super) verify: Duration,
    pub(super) sign: Duration,
}

/// Measures on the server's core, while the server rests.
pub(super) fn cost() -> Result<BareCost> {
    let measured = std::thread::spawn(measure).join();
    measured.map_err(|_| anyhow::anyhow!("the loop of signatures panicked"))?
}

fn measure() -> Result<BareCost> {
    let mut core = CpuSet::new();
    core.set(SERVERS_CORE);
    // This thread.
    sched_setaffinity(None, &core)?;
    let random = SystemRandom::new();
    let failed = |_| anyhow::anyhow!("ring cannot make a key");
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(failed)?;
    let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).ok().context("ring cannot read its key")?;
    let (request, leaf) = ([7; SIGNED_BY_PROXY], [8; SIGNED_BY_ISSUER]);
    let signature = key.sign(&random, &request).map_err(failed)?;
    let public = key.public_key().as_ref().to_vec();
    let verify = repeated(|| {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &public).verify(&request, signature.as_ref()).is_ok()
    })?;
    let sign = repeated(|| key.sign(&random, &leaf).map(black_box).is_ok())?;
    Ok(BareCost { verify, sign })
}

/// Returns the CPU time of one round.
fn repeated(mut work: impl FnMut() -> bool) -> Result<Duration> {
    let before = Cost::of_this_thread()?;
    for _ in 0..ROUNDS {
        ensure!(work(), "a signature failed");
    }
    Ok(Cost::of_this_thread()?.ran.saturating_sub(before.ran) / ROUNDS)
}
