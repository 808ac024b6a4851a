//! Clients that want to exhaust the server, and a good client that is served meanwhile. The server has the memory limit of
//! Linkerd's chart: beyond it, the kernel ends it.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use e2e::{
    eventually,
    hostile_client::{ENDLESS, HostileClient},
    http2::{DATA, Frame, grpc_request},
    identity::{Answered, CertifyCaller, CertifyWorkload, IdentityOptions, IdentityRig, call_all, connect_all},
    memory::mebibytes,
    mesh::SOON,
};
use linkerd2_proxy_api::identity::CertifyRequest;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{net::TcpStream, task::JoinHandle, time::sleep};
use tonic::Code;

const LIMIT: u64 = 250 << 20;
const CERTIFY: &str = "/io.linkerd.proxy.identity.Identity/Certify";
/// The number of calls in most attacks.
const CALLS: usize = 5_000;
/// The bytes of an incomplete request: one frame less than the longest request.
const FRAME: usize = 16 << 10;
const FRAMES: usize = 3;
/// The incomplete requests are larger together than the memory for all calls.
const INCOMPLETE: usize = 2_000;

async fn start(reviews_at_once: usize) -> Result<IdentityRig> {
    IdentityRig::start(IdentityOptions { reviews_at_once, memory_limit: Some(LIMIT), ..IdentityOptions::default() })
        .await
}

/// Runs an attack. A good client must be served so many times before it ends, and the server must stay within its memory.
async fn is_served_during(rig: &mut IdentityRig, times: usize, attack: JoinHandle<Result<()>>) -> Result<()> {
    let caller = CertifyCaller::connect(rig.server.address).await?;
    let workloads = CertifyWorkload::many(100)?;
    let mut served = 0;
    for (number, workload) in workloads.iter().cycle().enumerate() {
        if attack.is_finished() {
            break;
        }
        match caller.code(workload.request(number)).await {
            Code::Ok => served += 1,
            Code::Unavailable => {}
            code => bail!("the good client was refused: {code}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
    attack.await??;
    ensure!(served >= times, "the good client was served {served} times");
    ensure!(rig.server.process.is_running(), "the server ended:\n{}", rig.server.process.log_tail(5));
    let peak = rig.server.memory()?.peak;
    ensure!(peak < LIMIT, "{:.0} MiB at the peak", mebibytes(peak));
    Ok(())
}

/// Makes calls, and checks the code of each.
fn calls(
    address: SocketAddr,
    requests: Vec<CertifyRequest>,
    expects: impl Fn(&Answered) -> bool + Send + 'static,
) -> JoinHandle<Result<()>> {
    tokio::spawn(async move {
        let answers = call_all(&connect_all(address, 10).await?, requests, 1_000).await?;
        match answers.iter().find(|answer| !expects(answer)) {
            Some(wrong) => bail!("{wrong:?}"),
            None => Ok(()),
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_over_the_limit_are_refused_unread() -> Result<()> {
    let mut rig = start(200).await?;
    let mut request = CertifyWorkload::new("app", "web", "web-1")?.request(0);
    request.token = vec![b'x'; 300 << 10];
    let attack = calls(rig.server.address, vec![request; 1_000], |answer| answer.code == Code::ResourceExhausted);
    is_served_during(&mut rig, 1, attack).await
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_tokens_are_reviewed_once_a_second() -> Result<()> {
    let mut rig = start(200).await?;
    rig.reviews.delay(Duration::from_millis(5));
    let mut request = CertifyWorkload::new("app", "web", "web-1")?.request(0);
    request.token = vec![b'x'; 1_000];
    let attack = calls(rig.server.address, vec![request; 20_000], |answer| {
        matches!(answer.code, Code::InvalidArgument | Code::Unavailable)
    });
    is_served_during(&mut rig, 5, attack).await?;
    let invalid = rig.server.metric("linkerd_operator_identity_token_reviews_total", &[("result", "invalid")]).await?;
    ensure!(invalid > 0.5 && invalid < 200.0, "{invalid} reviews of the equal tokens");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_floods_the_server_delays_no_other_one() -> Result<()> {
    let rig = start(10).await?;
    rig.reviews.delay(Duration::from_millis(100));
    let greedy = (0..3_000).map(|pod| CertifyWorkload::new("greedy", "web", &format!("web-{pod}")));
    let greedy = greedy.map(|workload| Ok(workload?.request(0))).collect::<Result<Vec<_>>>()?;
    let callers = connect_all(rig.server.address, 10).await?;
    let at_once = greedy.len();
    let flood = tokio::spawn({
        let callers = callers.clone();
        async move { call_all(&callers, greedy, at_once).await }
    });
    let queued = || rig.server.metric("grpc_server_started_total", &[("grpc_method", "Certify")]);
    eventually(SOON, "the flood to wait", async || {
        ensure!(queued().await? > 500.0, "few calls have begun");
        Ok(())
    })
    .await?;
    // On the same connections.
    let others =
        (0..50).map(|number| CertifyWorkload::new(&format!("app-{number}"), "web", &format!("other-{number}")));
    let others = others.map(|workload| Ok(workload?.request(0))).collect::<Result<Vec<_>>>()?;
    let answers = call_all(&callers, others, 5).await?;
    assert!(answers.iter().all(|answer| answer.code == Code::Ok), "{answers:?}");
    assert!(!flood.is_finished(), "the flood ended before");
    let flood = flood.await??;
    let wrong = flood.iter().find(|answer| !matches!(answer.code, Code::Ok | Code::Unavailable));
    assert!(wrong.is_none(), "{wrong:?}");
    Ok(())
}

/// Sends requests that are never complete, and connections on which nothing is sent. Ends after this time.
async fn half_open(address: SocketAddr, time: Duration) -> Result<()> {
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(TcpStream::connect(address).await?);
    }
    let mut client = HostileClient::connect(address, "", ENDLESS).await?;
    let headers = grpc_request(CERTIFY);
    // The first frame begins a message of 64 KiB.
    let first: Bytes = [&[0, 0, 1, 0, 0][..], &vec![0; FRAME - 5]].concat().into();
    let (other, mut sent, mut stream) = (Bytes::from(vec![0; FRAME]), 0, 0);
    let more = |client: &mut HostileClient| {
        if sent == INCOMPLETE * FRAMES || client.received.room < 2 * FRAME as i64 {
            return;
        }
        let is_first = sent % FRAMES == 0;
        if is_first {
            stream = client.begin_with(headers.clone());
        }
        let payload = if is_first { first.clone() } else { other.clone() };
        client.put(&Frame::new(DATA, 0, stream, payload));
        sent += 1;
    };
    let flooded = tokio::time::timeout(time, client.flood(more, |_, _| {})).await;
    flooded.unwrap_or(Ok(())).context("the flood")?;
    ensure!(sent > FRAMES * 100, "only {sent} frames were sent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_never_complete_take_a_bounded_part_of_the_memory() -> Result<()> {
    let mut rig = start(200).await?;
    let attack = tokio::spawn(half_open(rig.server.address, Duration::from_secs(20)));
    is_served_during(&mut rig, 5, attack).await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_other_bytes_than_a_signing_request_are_refused() -> Result<()> {
    let mut rig = start(200).await?;
    let workload = CertifyWorkload::new("app", "web", "web-1")?;
    let mut random = StdRng::seed_from_u64(7);
    let requests = (0..CALLS).map(|number| {
        let mut request = workload.request(number);
        let csr = &mut request.certificate_signing_request;
        match number % 3 {
            // Random bytes, a truncated request, and one with some other bytes.
            0 => *csr = (0..random.random_range(1..16_000)).map(|_| random.random()).collect(),
            1 => csr.truncate(random.random_range(0..csr.len())),
            _ => {
                for byte in csr.iter_mut() {
                    if random.random_ratio(1, 50) {
                        *byte = byte.wrapping_add(random.random_range(1..=255));
                    }
                }
                // At least one.
                if let Some(byte) = csr.first_mut() {
                    *byte ^= 1;
                }
            }
        }
        request
    });
    let refused = [Code::InvalidArgument, Code::FailedPrecondition, Code::ResourceExhausted];
    let attack = calls(rig.server.address, requests.collect(), move |answer| refused.contains(&answer.code));
    is_served_during(&mut rig, 1, attack).await
}
