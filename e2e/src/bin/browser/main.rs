//! `make e2e-dashboard`: opens the dashboard of a real manager in Chromium.
//!
//! * In: `browser check`, or `browser [FOLDER]` with a folder for screenshots. Requires Debian's package chromium, or
//!   CHROMIUM with the path of another build.
//! * Out: each step after it was checked; the first failure ends the run with an error. Always: the expected values are
//!   those of the cluster, which `DashboardWorld` wrote.
//!
//! This is a separate program and not a part of `make test`, because a browser comes from no registry of Rust or Go.

mod accessible;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use e2e::{browser::Browser, dashboard::DashboardWorld};
use serde_json::json;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\n{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let program = chromium()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["check"] => Ok(()),
        [] => test(&program, None).await,
        [folder] => test(&program, Some(Path::new(folder))).await,
        _ => bail!("usage: browser check | browser [FOLDER]"),
    }
}

/// Returns the path of Chromium.
fn chromium() -> Result<PathBuf> {
    if let Some(named) = env::var_os("CHROMIUM").map(PathBuf::from) {
        ensure!(named.is_file(), "CHROMIUM={}: there is no such file", named.display());
        return Ok(named);
    }
    let known = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].map(PathBuf::from);
    let found = known.into_iter().find(|path| path.is_file());
    found.context("Chromium is not installed: make e2e-dashboard-packages, or set CHROMIUM to its path")
}

fn passed(step: &str) {
    println!("ok: {step}");
}

async fn test(program: &Path, screenshots: Option<&Path>) -> Result<()> {
    let world = DashboardWorld::start().await?;
    world.shows_rollout().await?;
    let mut browser = Browser::start(program).await?;
    browser.set_screen(1280, 1600, false).await?;
    let page = format!("http://localhost:{}/dashboard/", world.manager.admin_address().port());
    browser.open(&page).await?;

    browser.shows("document.querySelector('#ready').innerText === 'Ready'").await?;
    browser.shows("document.querySelector('#leases').innerText.includes('linkerd/linkerd-operator')").await?;
    browser
        .shows("[...document.querySelectorAll('#leases tbody tr')].every((row) => row.innerText.includes('leads'))")
        .await?;
    browser.shows("document.querySelector('#certificates').innerText.includes('webhooks')").await?;
    passed("the page shows that the process is ready, its Leases and its certificate");

    browser.shows(&row("#cluster", "pods", "current")).await?;
    browser.shows(&row("#cluster", "servers.policy.linkerd.io", "not served")).await?;
    passed("the page shows each watch");

    browser.shows(&row("#config", "proxy.logLevel", "\"debug\"")).await?;
    browser.shows(&row("#workloads", "shop/Deployment/web", "Pending, number 1")).await?;
    browser.shows(&row("#workloads", "shop/Deployment/db", "NotSelected")).await?;
    passed("the page shows where a value is from, and each workload with its place and its reason");

    browser.evaluate("document.querySelector('#authority').focus()").await?;
    browser.type_text(DashboardWorld::AUTHORITY).await?;
    browser.press("Enter", 13).await?;
    browser.shows(&row("#endpoints", "192.0.2.11:8080", "web.shop")).await?;
    browser.shows(&row("#endpoints", "192.0.2.12:8080", "web.shop")).await?;
    browser.shows("document.querySelector('#profile').innerText.includes('web.shop.svc.cluster.local')").await?;
    passed("an authority is followed with the keyboard alone");

    if let Some(folder) = screenshots {
        fs::create_dir_all(folder)?;
        for (name, width, height, dark, section) in [
            ("dashboard-health", 1280, 900, false, "health"),
            ("dashboard-discovery", 1280, 900, true, "discovery"),
            ("dashboard-phone", 390, 844, false, "configuration"),
        ] {
            browser.set_screen(width, height, dark).await?;
            browser.evaluate(&format!("document.querySelector('#{section}').scrollIntoView()")).await?;
            let data = browser.screenshot().await?;
            fs::write(folder.join(format!("{name}.png")), BASE64_STANDARD.decode(&data)?)?;
        }
    }

    browser.shows("!document.body.innerText.includes('undefined')").await?;
    passed("no part of the page is undefined");

    world.set_addresses(&["192.0.2.12", "192.0.2.13"]).await?;
    browser.shows(&row("#endpoints", "192.0.2.13:8080", "web.shop")).await?;
    browser.shows("!document.querySelector('#endpoints').innerText.includes('192.0.2.11')").await?;
    browser.shows("document.querySelector('#changes').innerText.includes('removed 192.0.2.11:8080')").await?;
    passed("a change of the Service appears without a reload");

    let address = browser.evaluate("location.href").await?;
    browser.open("about:blank").await?;
    browser.open(address.as_str().context("no address")?).await?;
    browser.shows(&row("#endpoints", "192.0.2.13:8080", "web.shop")).await?;
    passed("a reload of the page's address follows the same authority");

    for (width, dark) in [(1280, false), (1280, true), (390, false), (390, true)] {
        browser.set_screen(width, 1500, dark).await?;
        accessible::check(&mut browser).await.with_context(|| format!("with {width} pixels, dark: {dark}"))?;
    }
    passed("each control has a name, texts have enough contrast, and nothing is wider than the screen");

    let outside = "performance.getEntriesByType('resource').map((it) => new URL(it.name).origin)\
                   .filter((it) => it !== location.origin)";
    ensure!(browser.evaluate(outside).await? == json!([]), "the page loaded something from elsewhere");
    passed("nothing was loaded from elsewhere");

    let mut world = world;
    world.manager.kill().await?;
    browser.shows("document.querySelector('#connection').innerText.startsWith('not reachable')").await?;
    passed("the page says that the process is gone");
    println!("e2e-dashboard: run");
    Ok(())
}

/// Returns an expression that is true if a table has a row with both texts.
fn row(table: &str, one: &str, other: &str) -> String {
    let [table, one, other] = [table, one, other].map(|text| json!(text).to_string());
    format!(
        "[...document.querySelector({table}).querySelectorAll('tbody tr')]\
         .some((row) => row.innerText.includes({one}) && row.innerText.includes({other}))"
    )
}
