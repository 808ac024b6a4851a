//! `make e2e-dashboard`: opens the dashboard of a real manager in Chromium.
//!
//! * In: `browser check`, or `browser [FOLDER]` with a folder for screenshots. Requires Debian's package chromium, or
//!   CHROMIUM with the path of another build.
//! * Out: each step after it was checked; the first failure ends the run with an error. Always: the expected values are
//!   those of the cluster, which `DashboardWorld` wrote.
//!
//! This is a separate program and not a part of `make test`, because a browser comes from no registry of Rust or Go.

mod accessible;
mod states;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{browser::Browser, dashboard::DashboardWorld, executable::operator_binary};
use serde_json::json;
use tokio::process::Command;

use self::states::PageState;

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

    browser.shows("document.querySelector('#process-title').innerText === 'Process: healthy'").await?;
    browser.shows("!document.querySelector('#process').open").await?;
    browser.evaluate("document.querySelector('#process summary').click()").await?;
    browser.evaluate("document.querySelector('#configuration summary').click()").await?;
    browser.shows("document.querySelector('#leases').innerText.includes('linkerd/linkerd-operator')").await?;
    browser
        .shows("[...document.querySelectorAll('#leases tbody tr')].every((row) => row.innerText.includes('leads'))")
        .await?;
    browser.shows("document.querySelector('#certificates').innerText.includes('webhooks')").await?;
    passed("the page shows that the process is healthy, its Leases and its certificate");

    browser.shows(&row("#cluster", "pods", "current")).await?;
    browser.shows(&row("#cluster", "servers.policy.linkerd.io", "not served")).await?;
    passed("the page shows each watch");

    browser.shows(&row("#events", "ConfigMapUpdated", "LinkerdConfig mesh")).await?;
    passed("the page shows the Events of the replica");

    browser.shows("document.querySelector('[data-namespace=shop] summary').innerText.includes('0/2 current')").await?;
    browser.evaluate("document.querySelector('[data-namespace=shop] summary').click()").await?;
    browser.shows(&row("#config", "proxy.logLevel", "\"debug\"")).await?;
    browser.shows(&row("#namespaces", "Deployment/web", "Pending, number 1")).await?;
    browser.shows(&row("#namespaces", "Deployment/db", "NotSelected")).await?;
    browser.evaluate("document.querySelector('[data-filter=Pending]').click()").await?;
    browser.shows("document.querySelectorAll('#namespaces tbody tr').length === 1").await?;
    browser.evaluate("document.querySelector('[data-filter=\"\"]').click()").await?;
    browser.evaluate("document.querySelector('#search').focus()").await?;
    browser.type_text("db").await?;
    browser.shows("document.querySelectorAll('#namespaces tbody tr').length === 1").await?;
    browser.shows(&row("#namespaces", "Deployment/db", "NotSelected")).await?;
    passed(
        "the page shows where a value is from, and a namespace opens to its workloads, which are filtered and found",
    );

    discovery(&mut browser, &page, &world, screenshots).await?;

    browser.shows("!document.body.innerText.includes('undefined')").await?;
    passed("no part of the page is undefined");
    rollout(&mut browser, &page, &world, screenshots).await?;
    for state in [states::denied(), states::expired(), states::hostile(), states::followed()] {
        states::check_made(&mut browser, &page, state, screenshots).await?;
    }

    let outside = "performance.getEntriesByType('resource').map((it) => new URL(it.name).origin)\
                   .filter((it) => it !== location.origin)";
    ensure!(browser.evaluate(outside).await? == json!([]), "the page loaded something from elsewhere");
    passed("nothing was loaded from elsewhere");

    let mut world = world;
    world.manager.kill().await?;
    let gone = PageState {
        name: "unreachable",
        visible: &[("#banner", "Problem The replica does not answer"), ("#banner", "All below is as it was at")],
    };
    states::check(&mut browser, &gone, screenshots).await?;
    println!("e2e-dashboard: run");
    Ok(())
}

/// Follows a rollout from its begin to its end, with a failure.
async fn rollout(browser: &mut Browser, page: &str, world: &DashboardWorld, screenshots: Option<&Path>) -> Result<()> {
    states::reopen(browser, page).await?;
    world.begin_rollout().await?;
    browser.shows("document.querySelector('#namespaces').innerText.includes('1 Updating')").await?;
    browser.shows("document.querySelectorAll('#namespaces > details').length === 28").await?;
    let running = PageState {
        name: "running",
        visible: &[
            ("#banner", "In progress Workloads are being restarted"),
            (".tile", "69 of 82 workloads updated"),
            (".tile", "1 restarting, 12 pending"),
            // 13 restarts in 10 minutes each, without the last.
            (".tile", "at least 2 h left"),
        ],
    };
    states::check(browser, &running, screenshots).await?;

    world.halt_rollout().await?;
    browser.shows("document.querySelector('#namespaces').innerText.includes('1 Failed')").await?;
    let halted = PageState {
        name: "halted",
        visible: &[
            ("#banner", "Problem Workloads failed, and no further restart begins"),
            ("#banner", "LinkerdConfig mesh · RolloutHalted · since"),
            ("#banner", "Fix the cause, then run linkerd-operator rollout retry"),
            ("#banner code", "linkerd-operator rollout retry mesh"),
            (".tile", "Halted"),
            (".tile", "1 failed"),
            ("#failed code", "shop/Deployment/web"),
        ],
    };
    states::check(browser, &halted, screenshots).await?;
    if let Some(folder) = screenshots {
        fs::write(folder.join("status-halted.txt"), status(world).await?)?;
    }

    world.delete_workload().await?;
    browser.shows("document.querySelector('#failures').hidden").await?;
    browser.shows("!document.querySelector('#namespaces').innerText.includes('Failed')").await?;
    let deleted = PageState {
        name: "deleted",
        visible: &[("#banner", "In progress Workloads are being restarted"), (".tile", "69 of 81 workloads updated")],
    };
    states::check(browser, &deleted, screenshots).await?;

    world.end_rollout().await?;
    browser.shows("document.querySelectorAll('#namespaces > details').length === 24").await?;
    let healthy = PageState {
        name: "healthy",
        visible: &[
            ("#banner", "Nothing is wrong Every selected workload runs with the declared configuration"),
            (".tile", "In effect"),
            (".tile", "69 of 69 workloads updated"),
            (".tile", "70 of 70"),
            (".tile", "all are ready"),
        ],
    };
    states::check(browser, &healthy, screenshots).await
}

/// Returns what `linkerd-operator status` prints.
async fn status(world: &DashboardWorld) -> Result<Vec<u8>> {
    let kubeconfig = world.control_plane.kubeconfig();
    let mut command = Command::new(operator_binary()?);
    let output = command.args(["status", "--kubeconfig"]).arg(kubeconfig).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// Follows an authority on the tab Discovery.
async fn discovery(
    browser: &mut Browser,
    page: &str,
    world: &DashboardWorld,
    screenshots: Option<&Path>,
) -> Result<()> {
    browser.evaluate("document.querySelector('nav a[href=\"#discovery\"]').click()").await?;
    browser.shows("!document.querySelector('#overview-tab').checkVisibility()").await?;
    browser.evaluate("document.querySelector('#authority').focus()").await?;
    browser.type_text(DashboardWorld::AUTHORITY).await?;
    browser.press("Enter", 13).await?;
    browser.shows(&row("#endpoints", "192.0.2.11:8080", "web.shop")).await?;
    browser.shows(&row("#endpoints", "192.0.2.12:8080", "web.shop")).await?;
    browser.shows("document.querySelector('#profile').innerText.includes('web.shop.svc.cluster.local')").await?;
    passed("an authority is followed with the keyboard alone");
    let followed = PageState { name: "discovery", visible: &[("#endpoints", "192.0.2.11:8080")] };
    states::check(browser, &followed, screenshots).await?;

    world.set_addresses(&["192.0.2.12", "192.0.2.13"]).await?;
    browser.shows(&row("#endpoints", "192.0.2.13:8080", "web.shop")).await?;
    browser.shows("!document.querySelector('#endpoints').innerText.includes('192.0.2.11')").await?;
    browser.shows("document.querySelector('#changes').innerText.includes('removed 192.0.2.11:8080')").await?;
    passed("a change of the Service appears without a reload");

    let address = browser.evaluate("location.href").await?;
    let address = address.as_str().context("no address")?;
    ensure!(address.starts_with(page) && address.ends_with("#discovery"), "{address}");
    states::reopen(browser, address).await?;
    browser.shows(&row("#endpoints", "192.0.2.13:8080", "web.shop")).await?;
    passed("a reload of the page's address opens the tab and follows the same authority");
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
