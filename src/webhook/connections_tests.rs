//! Tests of the table of connections.

use std::net::Ipv4Addr;

use tokio::time::advance;

use super::*;
use crate::webhook::review_memory::ReviewMemory;

const API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

async fn open(connections: &Arc<Connections>, client: IpAddr, count: usize) -> Vec<OpenConnection> {
    let mut open = Vec::new();
    for _ in 0..count {
        open.push(connections.admit(client).await.unwrap());
    }
    open
}

fn closed(open: &[OpenConnection]) -> Vec<usize> {
    (0..open.len()).filter(|index| open[*index].activity.closed.is_cancelled()).collect()
}

fn is_about(waited: Duration, expected: Duration) -> bool {
    (expected..expected + 2 * RECHECK).contains(&waited)
}

/// Returns how long a client waits for a place.
async fn wait(connections: &Arc<Connections>, client: IpAddr) -> (Duration, Option<OpenConnection>) {
    let begun = Instant::now();
    let admitted = timeout(Duration::from_secs(60), connections.admit(client)).await;
    (begun.elapsed(), admitted.ok().flatten())
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_a_connection_waits_until_another_one_ends() {
    let connections = Connections::new(4, MemoryBudget::UNLIMITED);
    let mut held = open(&connections, API_SERVER, 4).await;
    held.iter().for_each(OpenConnection::begin);
    let ends = async {
        tokio::time::sleep(Duration::from_secs(8)).await;
        drop(held.pop());
    };
    let ((waited, admitted), ()) = tokio::join!(wait(&connections, API_SERVER), ends);
    assert!(admitted.is_some() && is_about(waited, Duration::from_secs(8)), "{waited:?}");
    assert_eq!(closed(&held), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn fresh_connections_and_those_in_use_are_left_alone_and_one_idle_for_long_ends() {
    let connections = Connections::new(4, MemoryBudget::UNLIMITED);
    let held = open(&connections, API_SERVER, 4).await;
    held.iter().for_each(OpenConnection::established);
    held[0].begin();
    advance(Duration::from_secs(2)).await;
    // This one sends a request, and that one has just had an answer.
    held[1].received();
    held[2].answered();
    let (waited, admitted) = wait(&connections, API_SERVER).await;
    assert!(admitted.is_some() && is_about(waited, Duration::from_secs(3)), "{waited:?}");
    assert_eq!(closed(&held), [3]);
}

#[tokio::test(start_paused = true)]
async fn a_client_with_most_connections_without_a_request_keeps_no_other_client_out() {
    let connections = Connections::new(8, MemoryBudget::UNLIMITED);
    let (own, held) = (open(&connections, API_SERVER, 1).await, open(&connections, POD, 7).await);
    held.iter().for_each(OpenConnection::established);
    own[0].answered();
    let (waited, admitted) = wait(&connections, API_SERVER).await;
    assert_eq!((waited, admitted.is_some(), closed(&held), closed(&own)), (Duration::ZERO, true, vec![0], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_client_with_most_connections_for_a_while_does_not_fill_the_backlog_either() {
    let connections = Connections::new(8, MemoryBudget::UNLIMITED);
    let held = open(&connections, POD, 8).await;
    let drips = async {
        loop {
            // It completes a request just in time.
            tokio::time::sleep(Duration::from_secs(2)).await;
            held.iter().for_each(OpenConnection::answered);
        }
    };
    let (waited, admitted) = tokio::select! {
        result = wait(&connections, POD) => result,
        () = drips => unreachable!(),
    };
    assert!(admitted.is_none() && is_about(waited, GREEDY), "{waited:?}");
    assert_eq!(wait(&connections, POD).await.0, Duration::ZERO);
    // One burst does not count against the next one.
    advance(Duration::from_secs(60)).await;
    held.iter().for_each(OpenConnection::answered);
    let (waited, admitted) = wait(&connections, POD).await;
    assert!(admitted.is_some() && is_about(waited, PATIENCE), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn without_memory_there_are_few_connections() {
    let connections = Connections::new(1000, MemoryBudget::EXHAUSTED);
    let held = open(&connections, API_SERVER, FEW).await;
    held.iter().for_each(OpenConnection::begin);
    assert!(wait(&connections, API_SERVER).await.1.is_none());
    drop(held);
    assert!(wait(&connections, API_SERVER).await.1.is_some());
}

#[tokio::test(start_paused = true)]
async fn of_slow_bodies_the_oldest_of_the_client_with_the_most_memory_ends() {
    let connections = Connections::new(8, MemoryBudget::UNLIMITED);
    let (own, held) = (open(&connections, API_SERVER, 1).await, open(&connections, POD, 3).await);
    own[0].reads_body(3 << 20);
    held[0].reads_body(1 << 20);
    held[1].reads_body(8 << 20);
    own[0].close_a_slow_one();
    assert_eq!((closed(&own), closed(&held)), (vec![], vec![]), "none is slow yet");
    advance(PATIENCE).await;
    own[0].close_a_slow_one();
    assert_eq!((closed(&own), closed(&held)), (vec![], vec![0]));
}

/// Returns the memory of an answer.
async fn answer_of(client: IpAddr, bytes: usize) -> HeldMemory {
    let mut memory = ReviewMemory::new(bytes).of_request(client);
    memory.grow(bytes, || {}).await.unwrap();
    memory
}

#[tokio::test(start_paused = true)]
async fn of_answers_that_are_not_taken_the_oldest_of_the_client_with_the_most_memory_ends() {
    let connections = Connections::new(8, MemoryBudget::UNLIMITED);
    let (own, held) = (open(&connections, API_SERVER, 1).await, open(&connections, POD, 2).await);
    own[0].writes(answer_of(API_SERVER, 1 << 20).await);
    held.iter().for_each(OpenConnection::begin);
    for open in &held {
        open.writes(answer_of(POD, 1 << 20).await);
        advance(Duration::from_secs(1)).await;
    }
    own[0].close_a_slow_one();
    assert_eq!((closed(&own), closed(&held)), (vec![], vec![]), "none is slow yet");
    advance(PATIENCE).await;
    own[0].close_a_slow_one();
    assert_eq!((closed(&own), closed(&held)), (vec![], vec![0]));
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_the_memory_of_their_own_client_keep_no_other_client_out() {
    let connections = Connections::new(8, MemoryBudget::UNLIMITED);
    let (own, held) = (open(&connections, API_SERVER, 1).await, open(&connections, POD, 7).await);
    own[0].begin();
    held.iter().for_each(OpenConnection::queue);
    let (waited, admitted) = wait(&connections, API_SERVER).await;
    assert_eq!((waited, admitted.is_some(), closed(&held), closed(&own)), (Duration::ZERO, true, vec![0], vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_answer_has_its_memory_until_everything_is_flushed() {
    let connections = Connections::new(1, MemoryBudget::UNLIMITED);
    let open = open(&connections, API_SERVER, 1).await.remove(0);
    let memory = ReviewMemory::new(2048);
    let mut answer = memory.of_request(API_SERVER);
    answer.grow(1024, || {}).await.unwrap();
    open.begin();
    open.flushed();
    open.taken().await;
    open.writes(answer);
    assert_eq!(memory.free_kib(), 1);
    assert!(timeout(PATIENCE, open.taken()).await.is_err());
    open.flushed();
    open.taken().await;
    assert_eq!(memory.free_kib(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_head_and_an_answer_have_a_deadline_and_an_idle_connection_a_longer_one() {
    let connections = Connections::new(1, MemoryBudget::UNLIMITED);
    let limits = Limits::DEFAULT;
    let open = open(&connections, API_SERVER, 1).await.remove(0);
    open.established();
    let begun = Instant::now();
    open.overdue(&limits).await;
    assert_eq!(begun.elapsed(), limits.idle_time);
    open.received();
    let begun = Instant::now();
    open.overdue(&limits).await;
    assert_eq!(begun.elapsed(), limits.header_time);
    open.begin();
    assert!(timeout(limits.idle_time * 2, open.overdue(&limits)).await.is_err());
    open.writes(answer_of(API_SERVER, 1).await);
    let begun = Instant::now();
    open.overdue(&limits).await;
    assert_eq!(begun.elapsed(), limits.answer_time);
}
