//! A name server with one name, for Pods: a cluster DNS would require an image from a registry.
//!
//! * In: the name and its address. Out: answers over UDP: `A` for the name, an empty answer for its other types,
//!   NXDOMAIN for other names.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result};
use tokio::{net::UdpSocket, task::JoinHandle};

const HEADER: usize = 12;
const TYPE_A: [u8; 2] = [0, 1];
const NO_SUCH_NAME: u8 = 3;

pub(crate) struct NameServer {
    answered: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl NameServer {
    pub(crate) async fn start(address: Ipv4Addr, name: &str, is_at: Ipv4Addr) -> Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::from((address, 53))).await.context("binding the name server")?;
        let answered = Arc::new(AtomicUsize::new(0));
        let (name, count) = (labels(name), Arc::clone(&answered));
        let serving = tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut query).await {
                let Some(answer) = query.get(..length).and_then(|query| answer(query, &name, is_at)) else { continue };
                if socket.send_to(&answer, from).await.is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { answered, serving })
    }

    /// The number of answered queries.
    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The name in wire format: each label after its length, and an empty label.
fn labels(name: &str) -> Vec<u8> {
    let mut labels: Vec<u8> = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        labels.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        labels.extend(label.to_ascii_lowercase().bytes());
    }
    labels.push(0);
    labels
}

/// Answers a message with one question; `None` for an invalid message.
fn answer(query: &[u8], name: &[u8], is_at: Ipv4Addr) -> Option<Vec<u8>> {
    let id = query.get(..2)?;
    let rest = query.get(HEADER..)?;
    let end = rest.iter().position(|byte| *byte == 0)? + 1;
    let (queried, question) = (rest.get(..end)?, rest.get(..end + 4)?);
    let known = queried.eq_ignore_ascii_case(name);
    let address = known && rest.get(end..end + 2)? == TYPE_A;
    let mut answer = id.to_vec();
    // A response with recursion desired and available; one question, at most one answer, no other records.
    answer.extend([0x81, if known { 0x80 } else { 0x80 | NO_SUCH_NAME }, 0, 1, 0, u8::from(address), 0, 0, 0, 0]);
    answer.extend(question);
    if address {
        // A pointer to the name in the question, type A, class IN, TTL 5 s, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        answer.extend(is_at.octets());
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, kind: u8) -> Option<Vec<u8>> {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        query.extend(labels(name));
        query.extend([0, kind, 0, 1]);
        answer(&query, &labels("web.example"), Ipv4Addr::new(10, 0, 0, 1))
    }

    #[test]
    fn only_the_configured_name_has_an_address() {
        let answer = query("Web.example", 1).unwrap();
        assert_eq!(answer[..4], [7, 9, 0x81, 0x80]);
        assert_eq!(answer[answer.len() - 4..], [10, 0, 0, 1]);
        assert_eq!(query("web.example", 28).unwrap()[3..8], [0x80, 0, 1, 0, 0], "known, without an IPv6 address");
        assert_eq!(query("other.example", 1).unwrap()[3], 0x83);
        assert_eq!(answer_to_an_invalid_query(), None);
    }

    fn answer_to_an_invalid_query() -> Option<Vec<u8>> {
        answer(&[0; 5], &[0], Ipv4Addr::LOCALHOST)
    }
}
