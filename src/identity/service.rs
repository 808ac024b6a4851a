//! The answer to a call of `Certify`.
//!
//! In: a request. Out: a certificate, or a refusal. Always holds: the checks have the order of Linkerd's identity
//! service, so that the same mistake gets the same answer; a certificate is issued only after all of them; a call that
//! waits for a review delays no other one.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Code;
use tracing::{debug, error, info};

use super::{
    csr::SigningRequest,
    events::IdentityEvents,
    follow::{FollowedIssuer, LoadedIssuer},
    issued::IssuedLeaves,
    issuer::Leaf,
    metrics::IdentityMetrics,
    possession::ProvenRequests,
    rates::{IssuanceRates, RateOf},
    refusal::CertifyRefusal,
    review::{AUDIENCE, ReviewRefusal, ReviewedToken, Reviewer},
    username::IdentityDomain,
    validity::{LeafLifetime, RenewWithin},
};
use crate::{
    api::LONGEST_NAME,
    proto::identity::{CertifyRequest, CertifyResponse},
    retry::ReportRate,
    text::truncate,
};

/// The shortest time between two reports of an issuer that has expired: every call finds it.
pub(super) const REPORTS: Duration = Duration::from_secs(60);
/// How soon proxies renew during a rotation, so that those that have restarted do not need a day after the issuer has changed.
const ROTATING: SignedDuration = SignedDuration::from_hours(1);
/// The maximum length of a token. Those of ServiceAccounts have about 1 KiB.
const LONGEST_TOKEN: usize = 32 << 10;

pub(super) struct CertifyService {
    pub(super) domain: IdentityDomain,
    pub(super) lifetime: LeafLifetime,
    pub(super) renew_within: RenewWithin,
    pub(super) issued: Arc<IssuedLeaves>,
    pub(super) followed: Arc<FollowedIssuer>,
    pub(super) reviewer: Reviewer,
    pub(super) rates: Mutex<IssuanceRates>,
    pub(super) proven: Mutex<ProvenRequests>,
    pub(super) metrics: Arc<IdentityMetrics>,
    pub(super) events: IdentityEvents,
    /// How often it is reported that the issuer has expired.
    pub(super) expired: ReportRate,
}

// === impl CertifyService ===

impl CertifyService {
    /// Answers a call until its deadline. `client` is the address of its connection, for the log.
    ///
    /// # Errors
    /// When a check fails.
    pub(super) async fn certify(
        &self,
        request: CertifyRequest,
        client: &str,
        deadline: Instant,
    ) -> Result<CertifyResponse, CertifyRefusal> {
        // A client can send a long text instead of a name.
        let identity = truncate(&request.identity, LONGEST_NAME).to_owned();
        let certified = self.certified(request, client, deadline).await;
        if let Err(refusal) = &certified {
            self.metrics.refused(refusal.label());
            report(refusal, &identity, client);
        }
        certified
    }

    async fn certified(
        &self,
        request: CertifyRequest,
        client: &str,
        deadline: Instant,
    ) -> Result<CertifyResponse, CertifyRefusal> {
        let loaded = self.followed.current().ok_or(CertifyRefusal::IssuerNotReady)?;
        let CertifyRequest { identity, token, certificate_signing_request } = request;
        if identity.is_empty() {
            return Err(CertifyRefusal::MissingIdentity);
        }
        if token.is_empty() {
            return Err(CertifyRefusal::MissingToken);
        }
        if certificate_signing_request.is_empty() {
            return Err(CertifyRefusal::MissingRequest);
        }
        if token.len() > LONGEST_TOKEN {
            return Err(CertifyRefusal::TokenTooLong(LONGEST_TOKEN));
        }
        let signing_request = SigningRequest::parse(&certificate_signing_request)?;
        self.check_issuer(&loaded, &identity, Timestamp::now())?;
        signing_request.check_name(&identity)?;
        let token = String::from_utf8(token).map_err(|_| CertifyRefusal::TokenNotText)?;
        let reviewed = self.reviewer.review(&token, deadline).await;
        let reviewed = reviewed.as_ref().as_ref().map_err(|refusal| of_review(refusal, &identity))?;
        let found = self.domain.identity_of(&reviewed.username)?;
        if found != identity {
            let requested = truncate(&identity, LONGEST_NAME).to_owned();
            return Err(CertifyRefusal::OtherIdentity { requested, found });
        }
        let client_of_rate = match &reviewed.pod {
            Some(pod) => RateOf::Pod(&pod.uid),
            None => RateOf::Identity(&identity),
        };
        if !self.rates.lock().allow(client_of_rate, Instant::now()) {
            return Err(CertifyRefusal::TooManyRequests);
        }
        self.verify_possession(&signing_request)?;
        let now = Timestamp::now();
        let leaf = loaded.issuer.issue(&signing_request, &identity, self.lifetime.at(now), rand::random())?;
        self.report_issued(&loaded, &leaf, &identity, reviewed, client, now);
        let renew_within = match self.followed.is_rotating() {
            true => self.renew_within.at_most(ROTATING),
            false => self.renew_within,
        };
        let valid_until = renew_within.valid_until(leaf.not_after, now, rand::random());
        Ok(response(leaf, valid_until, &loaded))
    }

    /// Linkerd verifies the chain of the issuer in each call. Here only its end can have changed since it was loaded.
    fn check_issuer(&self, loaded: &LoadedIssuer, identity: &str, now: Timestamp) -> Result<(), CertifyRefusal> {
        let end = loaded.issuer.not_after();
        if now < end {
            return Ok(());
        }
        let refusal = CertifyRefusal::IssuerExpired(end);
        if self.expired.allows() {
            let identity = truncate(identity, LONGEST_NAME);
            error!(identity, %refusal, "no certificate is issued");
            self.events.issuer_validation_failed(&refusal.to_string(), identity);
        }
        Err(refusal)
    }

    /// Verifies that the sender of a request has the private key, unless that is known of the same request.
    fn verify_possession(&self, request: &SigningRequest) -> Result<(), CertifyRefusal> {
        let hash = request.hash();
        if !self.proven.lock().contains(hash) {
            request.verify_possession()?;
            self.proven.lock().insert(hash);
        }
        Ok(())
    }

    fn report_issued(
        &self,
        loaded: &LoadedIssuer,
        leaf: &Leaf,
        identity: &str,
        token: &ReviewedToken,
        client: &str,
        now: Timestamp,
    ) {
        self.metrics.issued(&loaded.issuer, leaf, now);
        self.issued.add(&loaded.issuer, token.pod.as_ref(), leaf.not_after, now);
        self.events.leaf_issued(identity, token, leaf, now);
        let pod = token.pod.as_ref();
        info!(
            identity,
            until = %leaf.not_after,
            pod = pod.map(|pod| pod.name.as_str()),
            node = pod.and_then(|pod| pod.node.as_deref()),
            client,
            "issued a certificate"
        );
    }
}

fn response(leaf: Leaf, valid_until: Timestamp, loaded: &LoadedIssuer) -> CertifyResponse {
    let valid_until = prost_types::Timestamp { seconds: valid_until.as_second(), nanos: 0 };
    CertifyResponse {
        leaf_certificate: leaf.der,
        intermediate_certificates: loaded.issuer.chain().to_vec(),
        valid_until: Some(valid_until),
    }
}

fn of_review(refusal: &ReviewRefusal, identity: &str) -> CertifyRefusal {
    match refusal {
        ReviewRefusal::Invalid(why) => CertifyRefusal::TokenInvalid(why.clone()),
        ReviewRefusal::Unauthenticated => CertifyRefusal::NotAuthenticated,
        ReviewRefusal::OtherAudience => CertifyRefusal::OtherAudience(AUDIENCE.to_owned()),
        ReviewRefusal::Denied(cause) => {
            CertifyRefusal::ReviewFailed { identity: identity.to_owned(), cause: cause.clone() }
        }
        ReviewRefusal::Unavailable(why) => CertifyRefusal::ReviewUnavailable(why.clone()),
        ReviewRefusal::Overloaded => CertifyRefusal::ReviewUnavailable("too many reviews wait".to_owned()),
    }
}

/// Logs a refusal: a problem of the cluster as an error, a token of another workload for people who look for an attack,
/// and the mistakes of single clients only for those who look for them.
fn report(refusal: &CertifyRefusal, identity: &str, client: &str) {
    match refusal {
        CertifyRefusal::NotAuthenticated
        | CertifyRefusal::OtherAudience(_)
        | CertifyRefusal::OtherIdentity { .. }
        | CertifyRefusal::TooManyRequests => info!(identity, client, %refusal, "refused a certificate"),
        // A mistake of the client, although its code is Internal, as in Linkerd.
        CertifyRefusal::NotEcdsa(_) => debug!(identity, client, %refusal, "refused a certificate"),
        // Logged for all calls together.
        CertifyRefusal::IssuerExpired(_)
        | CertifyRefusal::ReviewFailed { .. }
        | CertifyRefusal::ReviewUnavailable(_) => {
            debug!(identity, client, %refusal, "refused a certificate");
        }
        _ if matches!(refusal.code(), Code::Internal | Code::Unknown) => {
            error!(identity, client, %refusal, "refused a certificate");
        }
        _ => debug!(identity, client, %refusal, "refused a certificate"),
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, fs};

    use http::{Request, Response};
    use jiff::SignedDuration;
    use kube::{Client, client::Body};
    use prometheus::Registry;
    use serde_json::json;
    use tempfile::TempDir;
    use tokio::time::{advance, sleep};
    use tower::service_fn;

    use super::*;
    use crate::{
        events::Events,
        identity::{
            IssuerFileNames, IssuerFiles,
            csr::CsrProblem,
            follow::IssuerFollower,
            testing::{WEB, domain},
        },
        testing::LoggedLines,
        x509::testing::TestCa,
    };

    /// The time of a review.
    const REVIEW: Duration = Duration::from_secs(2);

    /// The service with an issuer, and an API server for which each token is one of `web`.
    async fn service(folder: &TempDir, events: Events) -> CertifyService {
        let root = TestCa::root("root");
        let always = rcgen::CertificateParams::default();
        let issuer = root.signs("issuer", |params| {
            (params.not_before, params.not_after) = (always.not_before, always.not_after);
        });
        for (name, text) in
            [("ca-bundle.crt", &root.pem), ("crt.pem", &issuer.pem), ("key.pem", &issuer.key.serialize_pem())]
        {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let metrics = IdentityMetrics::register(&Registry::new()).unwrap();
        let events = IdentityEvents::new(Some(events), "linkerd", false);
        let [issuer, trust_roots] = [folder.path().to_owned(), folder.path().to_owned()];
        let files = IssuerFiles { issuer, trust_roots, names: IssuerFileNames::Linkerd };
        let followed = FollowedIssuer::new();
        let follower = IssuerFollower::new(files, domain(), &followed, &metrics, events.clone());
        let mut loaded = followed.subscribe();
        tokio::select! {
            () = follower.follow() => {}
            changed = loaded.changed() => changed.unwrap(),
        }
        let review = |_: Request<Body>| async {
            sleep(REVIEW).await;
            let user = json!({"username": "system:serviceaccount:emojivoto:web"});
            let status = json!({"authenticated": true, "user": user, "audiences": [AUDIENCE]});
            let answer = json!({"kind": "TokenReview", "status": status});
            Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
        };
        let client = Client::new(service_fn(review), "default");
        CertifyService {
            domain: domain(),
            lifetime: LeafLifetime::new(SignedDuration::from_hours(24), SignedDuration::from_secs(20)),
            renew_within: RenewWithin::default(),
            issued: IssuedLeaves::new(Timestamp::now()),
            followed,
            reviewer: Reviewer::new(&client, 10, false, &metrics),
            rates: Mutex::default(),
            proven: Mutex::default(),
            metrics,
            events,
            expired: ReportRate::new(REPORTS),
        }
    }

    fn request() -> CertifyRequest {
        let mut params = rcgen::CertificateParams::new(vec![WEB.to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap();
        CertifyRequest {
            identity: WEB.to_owned(),
            token: b"token".to_vec(),
            certificate_signing_request: request.der().to_vec(),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(8)
    }

    /// The same request with another signature.
    fn forged(request: &CertifyRequest) -> CertifyRequest {
        let mut forged = request.clone();
        *forged.certificate_signing_request.last_mut().unwrap() ^= 1;
        forged
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_verified_is_certified_again_and_with_another_signature_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(&folder, Events::for_test()).await;
        let good = request();
        let refusal = Err(CertifyRefusal::Request(CsrProblem::NotPossessed));
        for _ in 0..2 {
            assert!(service.certify(good.clone(), "", soon()).await.is_ok());
            assert_eq!(service.certify(forged(&good), "", soon()).await, refusal);
        }
    }

    /// Thousands of calls wait at the same time, and this is the largest part of the memory of each.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_takes_little_memory() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(&folder, Events::for_test()).await;
        let bytes = size_of_val(&service.certify(request(), "", soon()));
        assert!(bytes <= 2 << 10, "{bytes}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_valid_token_does_not_have_any_number_of_signatures_verified() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(&folder, Events::for_test()).await;
        let bad = forged(&request());
        let mut refusals = Vec::new();
        for _ in 0..201 {
            refusals.push(service.certify(bad.clone(), "", soon()).await.unwrap_err().label());
        }
        assert_eq!(refusals.pop(), Some("rate_limited"));
        assert!(refusals.iter().all(|label| *label == "proof_of_possession"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_of_a_call_counts_from_its_arrival_and_not_from_its_review() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(&folder, Events::for_test()).await;
        for before in [REVIEW / 2, Duration::ZERO] {
            let (request, begun) = (request(), Instant::now());
            let refusal = service.certify(request, "", begun + before).await.unwrap_err();
            assert_eq!((refusal.label(), begun.elapsed() <= before), ("review_unavailable", true));
        }
        assert!(service.certify(request(), "", soon()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_issuer_that_has_expired_is_reported_once_a_minute_and_not_for_each_call() {
        let folder = tempfile::tempdir().unwrap();
        let (events, mut notices) = Events::recorded();
        let (log, service) = (LoggedLines::record(), service(&folder, events).await);
        let loaded = service.followed.current().unwrap();
        let end = loaded.issuer.not_after();
        service.check_issuer(&loaded, WEB, end - SignedDuration::from_secs(1)).unwrap();
        for _ in 0..90 {
            let refusal = service.check_issuer(&loaded, WEB, end).unwrap_err();
            report(&refusal, WEB, "");
            advance(Duration::from_secs(1)).await;
        }
        let notes: Vec<_> = std::iter::from_fn(|| notices.try_recv().ok()).map(|notice| notice.note).collect();
        let note = format!("the certificate of the issuer expired at {end}: replace it - CSR Identity : {WEB}");
        assert_eq!(notes, [note.clone(), note]);
        assert_eq!(log.with("ERROR").len(), 2);
    }
}
