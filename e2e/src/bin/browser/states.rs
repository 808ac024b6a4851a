//! The states of the page that a person on call must recognize at once.
//!
//! * In: a browser with the page of a real manager. Out: an error that names what is not visible. Always: each state is
//!   checked on a desktop and on a phone, in light and in dark colors.
//!
//! A state that is hard to cause is made by a script that changes what the page receives: in the browser, so that the
//! manager's real answer keeps all else.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use e2e::browser::Browser;
use serde_json::{Value, json};

use super::{accessible, passed};

/// What fits on a screen.
const FOLD: u32 = 900;
const SCREENS: [(&str, u32, bool); 4] = [
    ("desktop-light", 1280, false),
    ("desktop-dark", 1280, true),
    ("phone-light", 390, false),
    ("phone-dark", 390, true),
];

/// A state, and the texts that must be visible without scrolling, each with the selector of its place.
pub(super) struct PageState<'a> {
    pub(super) name: &'a str,
    pub(super) visible: &'a [(&'a str, &'a str)],
}

/// Returns a script that changes each answer of a path. `change` is JavaScript that changes `answer`.
fn changing(path: &str, change: &str) -> String {
    format!(
        "const real = window.fetch.bind(window);
        window.fetch = async (path, options) => {{
          const response = await real(path, options);
          if (!String(path).startsWith({path})) return response;
          const answer = await response.json();
          {change}
          return new Response(JSON.stringify(answer));
        }};",
        path = json!(path)
    )
}

/// The injectors deny the declared configuration, and the one before it is restored.
pub(super) fn denied() -> (String, PageState<'static>) {
    let message = "replica linkerd-proxy-injector-6c9d-x2x4q denies Pods: could not parse proxy.logLevel \"debgu\"";
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-11-27T11:48:10Z"})
    };
    let conditions = [condition("Ready", "False", "RolledBack"), condition("Stalled", "True", "RolledBack")];
    let (command, next) = (
        "linkerd-operator explain mesh",
        "Change the declared values, or fix the cause and run linkerd-operator rollout retry.",
    );
    let title = "The injectors denied the declared configuration, or workloads failed with it";
    let summary = json!({"attention": "problem", "reason": "RolledBack", "title": title, "sentence": message,
        "next": next, "command": command, "conditions": conditions});
    let headline = json!({"attention": "problem", "subject": "LinkerdConfig mesh", "reason": "RolledBack",
        "title": title, "sentence": message, "next": next, "command": command, "since": "2026-11-27T11:48:10Z"});
    let tile = json!({"name": "Configuration", "value": "Not in effect", "tone": "bad",
        "lines": [{"text": "mesh, mode Enforce", "tone": "quiet"},
            {"text": "RolledBack, since 11:48:10", "tone": "quiet"}]});
    let change = format!(
        "Object.assign(answer.linkerdConfigs[0], {summary});
        answer.linkerdConfigs[0].tiles[0] = {tile};
        answer.headlines = [{headline}];"
    );
    let visible = &[
        ("#banner", "Problem The injectors denied the declared configuration"),
        ("#banner", "LinkerdConfig mesh · RolledBack · since"),
        ("#banner", "denies Pods: could not parse proxy.logLevel"),
        ("#banner code", "linkerd-operator explain mesh"),
        (".tile", "Not in effect"),
    ];
    (changing("overview.json", &change), PageState { name: "denied", visible })
}

/// The certificate of the webhooks was not renewed.
pub(super) fn expired() -> (String, PageState<'static>) {
    let title = "the certificate of the webhooks expired at 2026-11-26T09:00:00Z";
    let sentence = "it is from Secret default/linkerd-operator-webhook";
    let next = "Renew it: API servers reject the certificate, so calls of the webhooks fail.";
    let headline = json!({"attention": "problem", "subject": "Process", "reason": "CertificateExpired",
        "title": title, "sentence": sentence, "next": next, "command": "linkerd-operator check"});
    let tile = json!({"name": "Certificate", "value": "Expired", "tone": "bad",
        "lines": [{"text": "of the webhooks", "tone": "quiet"}, {"text": "until 2026-11-26 09:00", "tone": "quiet"}]});
    let change = format!(
        "answer.certificates[0].notAfter = '2026-11-26T09:00:00Z';
        answer.tiles[2] = {tile};
        answer.headlines = [{headline}];"
    );
    let visible = &[
        ("#banner", "Problem the certificate of the webhooks expired"),
        ("#banner", "Renew it"),
        ("#banner code", "linkerd-operator check"),
        (".tile", "Expired"),
    ];
    (changing("overview.json", &change), PageState { name: "expired", visible })
}

/// Tenants write names and messages that look like markup, have no space, or change the direction of writing.
pub(super) fn hostile() -> (String, PageState<'static>) {
    let markup = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>";
    let (endless, other_direction) = ("w".repeat(900), "\u{202e}txet rehto");
    let message = format!("{markup} {other_direction} {endless}");
    let headline = json!({"attention": "problem", "subject": format!("LinkerdConfig {endless}"), "reason": markup,
        "title": message, "sentence": message, "next": message, "command": message, "since": "2026-11-27T11:48:10Z"});
    let failure = json!({"namespace": "w".repeat(63), "kind": "Deployment", "name": markup, "reason": markup,
        "message": message});
    let event = json!({"time": "2026-11-27T11:48:10Z", "type": "Warning", "reason": markup, "object": endless,
        "note": message});
    let condition = json!({"type": "Stalled", "status": "True", "reason": markup, "message": message,
        "lastTransitionTime": "2026-11-27T11:48:10Z"});
    let change = format!(
        "const [headline, failure, event, condition] = [{headline}, {failure}, {event}, {condition}];
        Object.assign(answer.linkerdConfigs[0], {{ conditions: [condition], warnings: [headline.title] }});
        Object.assign(answer.linkerdConfigs[0].rollout, {{ failures: [failure, failure], failed: 2 }});
        answer.linkerdConfigs[0].tiles[0].lines[0].text = headline.title;
        answer.headlines = Array(20).fill(headline);
        answer.events = [event];
        answer.waitingFor = [headline.title];"
    );
    let visible = &[("#banner-title", "<img src=x")];
    (changing("overview.json", &change), PageState { name: "hostile", visible })
}

/// Another replica leads.
pub(super) fn followed() -> (String, PageState<'static>) {
    let tile = json!({"name": "Replicas", "value": "2 running", "tone": "plain", "lines": [
        {"text": "Another replica leads", "tone": "good"},
        {"text": "leader: linkerd-operator-6c9d8b7f5-x2x4q", "tone": "quiet"}]});
    let change = format!(
        "answer.tiles[0] = {tile};
        for (const lease of answer.leases) Object.assign(lease, {{ holder: 'linkerd-operator-6c9d8b7f5-x2x4q', leads: false }});"
    );
    let visible = &[("#banner", "Nothing is wrong"), (".tile", "leader: linkerd-operator-6c9d8b7f5-x2x4q")];
    (changing("overview.json", &change), PageState { name: "followed", visible })
}

/// Checks the open page on each screen.
pub(super) async fn check(browser: &mut Browser, state: &PageState<'_>, screenshots: Option<&Path>) -> Result<()> {
    for (screen, width, dark) in SCREENS {
        browser.set_screen(width, FOLD, dark).await?;
        browser.evaluate("scrollTo(0, 0)").await?;
        for (place, text) in state.visible {
            let shown = browser.shows(&above_fold(place, text)).await;
            shown.with_context(|| format!("{}, {screen}: {text:?} in {place}", state.name))?;
        }
        accessible::check(browser).await.with_context(|| format!("{}, {screen}", state.name))?;
        if let Some(folder) = screenshots {
            save(browser, folder, &format!("dashboard-{}-{screen}", state.name)).await?;
        }
    }
    passed(&format!("{}: visible in the first {FOLD} pixels, on a desktop and on a phone, light and dark", state.name));
    Ok(())
}

/// Opens the page with a script that makes a state, checks it, and opens the page as it is.
pub(super) async fn check_made(
    browser: &mut Browser,
    page: &str,
    (script, state): (String, PageState<'_>),
    screenshots: Option<&Path>,
) -> Result<()> {
    let script: Value = browser.add_script(&script).await?;
    reopen(browser, page).await?;
    browser.shows("document.querySelector('#namespaces details') !== null").await?;
    // The details of the process open by themselves if the process has a problem.
    let opens = "document.querySelector('#process').open \
                 === document.querySelector('#process-title').innerText.includes('problem')";
    browser.shows(opens).await?;
    check(browser, &state, screenshots).await?;
    browser.remove_script(script).await?;
    reopen(browser, page).await
}

/// Opens an address in a new document, also if only its fragment differs.
pub(super) async fn reopen(browser: &mut Browser, address: &str) -> Result<()> {
    browser.open("about:blank").await?;
    browser.open(address).await
}

pub(super) async fn save(browser: &mut Browser, folder: &Path, name: &str) -> Result<()> {
    let data = browser.screenshot().await?;
    fs::create_dir_all(folder)?;
    Ok(fs::write(folder.join(format!("{name}.png")), BASE64_STANDARD.decode(&data)?)?)
}

/// Returns an expression that is true if an element with the text is on the first screen as a whole.
fn above_fold(place: &str, text: &str) -> String {
    let [place, text] = [place, text].map(|text| json!(text).to_string());
    format!(
        "[...document.querySelectorAll({place})].some((it) => {{
          const {{ top, bottom, left, right }} = it.getBoundingClientRect();
          return it.innerText.includes({text}) && it.checkVisibility() && top >= 0 && left >= 0
            && bottom <= {FOLD} && right <= innerWidth && bottom > top;
        }})"
    )
}
