//! A client of `GetProfile`, which a proxy calls for an address before it connects.
//!
//! * In: an authority. Out: streams in which each message replaces the previous one.
//! * Always: every wait has a deadline.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use linkerd2_proxy_api::destination::{DestinationProfile, GetDestination};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Code, Status, Streaming};

use crate::{
    discovery::{DEADLINE, Discovery},
    wait::{settles, stays_quiet},
};

/// A `GetProfile` stream and the messages received so far.
pub struct Profiles {
    updates: Streaming<DestinationProfile>,
    /// All messages so far, oldest first.
    pub messages: Vec<DestinationProfile>,
}

impl Discovery {
    /// `GetProfile` for `path`, with a context token.
    pub async fn get_profile(&self, path: &str, token: &str) -> Result<Profiles, Status> {
        let request = GetDestination { scheme: String::new(), path: path.to_owned(), context_token: token.to_owned() };
        let response = timeout(DEADLINE, self.0.clone().get_profile(request)).await;
        let updates = response.map_err(|_| Status::new(Code::DeadlineExceeded, "no response headers"))??.into_inner();
        Ok(Profiles { updates, messages: Vec::new() })
    }

    /// The first message of a stream.
    pub async fn first_profile(&self, path: &str, token: &str) -> Result<DestinationProfile> {
        let mut profiles = self.get_profile(path, token).await?;
        profiles.next().await?.with_context(|| format!("the stream for {path} ended before its first message"))
    }

    /// Returns the code and the message with which `GetProfile` is refused.
    pub async fn profile_refusal(&self, path: &str, token: &str) -> Result<(Code, String)> {
        match self.get_profile(path, token).await {
            Err(status) => Ok((status.code(), status.message().to_owned())),
            Ok(_) => bail!("GetProfile {path:?} was answered with a stream"),
        }
    }
}

impl Profiles {
    /// The next message. `None` when the stream ended with OK.
    pub async fn next(&mut self) -> Result<Option<DestinationProfile>> {
        let read = timeout(DEADLINE, self.read()).await;
        read.with_context(|| format!("no message; the last one: {:?}", self.messages.last()))?
    }

    /// The last message, which is the current profile.
    pub fn last(&self) -> Result<&DestinationProfile> {
        self.messages.last().context("no message yet")
    }

    /// Reads until the last message satisfies `wanted`.
    pub async fn until(&mut self, what: &str, mut wanted: impl FnMut(&DestinationProfile) -> bool) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while !self.messages.last().is_some_and(&mut wanted) {
            match timeout_at(deadline, self.read()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => bail!("the stream ended before {what}; the last message: {:?}", self.messages.last()),
                Ok(Err(error)) => return Err(error.context(format!("waiting for {what}"))),
                Err(_) => bail!("not seen in time: {what}; the last message: {:?}", self.messages.last()),
            }
        }
        Ok(())
    }

    /// Reads until no message has arrived for `quiet`. False when the stream has ended with OK.
    pub async fn settle(&mut self, quiet: Duration) -> Result<bool> {
        settles(quiet, async || self.read().await).await
    }

    /// Fails when a message arrives within this time.
    pub async fn is_quiet_for(&mut self, time: Duration) -> Result<()> {
        stays_quiet(time, self.read()).await
    }

    /// Waits until the stream ends with OK, and keeps the messages that arrive before.
    pub async fn ended(&mut self) -> Result<()> {
        let end = async {
            while self.read().await?.is_some() {}
            Ok(())
        };
        let ended = timeout(DEADLINE, end).await;
        ended.with_context(|| format!("the stream does not end; the last message: {:?}", self.messages.last()))?
    }

    async fn read(&mut self) -> Result<Option<DestinationProfile>> {
        let message = self.updates.message().await?;
        self.messages.extend(message.clone());
        Ok(message)
    }
}
