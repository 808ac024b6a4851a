//! `make e2e-linkerd`: holds the operator against Linkerd itself.
//!
//! * In: paths of Linkerd's own programs, as environment variables: `LINKERD_CONTROLLER` (the Go controller),
//!   `LINKERD_CLI`, `LINKERD_CHARTS` (the directory of the charts), `LINKERD_PROXY`, `LINKERD_POLICY_CONTROLLER`;
//!   `SEEDS="1 2 3"` of the random clusters; `PARTS="answers table clusters traffic identity trust distrust injector reviews bursts service-profiles cli"` to run only these. Out: a
//!   report in Markdown, on standard output.
//! * Always: a part runs where its programs are given, and the report says which parts were left out. A difference that
//!   no row of the documentation explains is a failure, and so is an open stream of ours that differs from a new one.

mod answers;
mod cli;
mod clusters;
mod differences;
mod identity;
mod injector;
mod leases;
mod live;
mod replica;
mod report;
mod rows;
mod service_profiles;
mod table;
mod traffic;

use std::{env, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};

use self::identity::Course;

const LEFT_OUT: &str = "Left out: the path of a program is not set, or PARTS does not name this part.";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("e2e-linkerd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all parts whose programs are given. Returns whether every difference is explained.
async fn run() -> Result<bool> {
    let seeds = env::var("SEEDS").unwrap_or_else(|_| "1 2 3".to_owned());
    let seeds = seeds.split_whitespace().map(|seed| seed.parse().context("SEEDS must be numbers"));
    let seeds: Vec<u64> = seeds.collect::<Result<_>>()?;
    let mut is_explained = true;
    if let Some(controller) = controller_for("answers", "Answers, open streams and Leases")? {
        let answers = answers::compare(&controller, &seeds).await?;
        print!("{}", report::answers(&answers));
        is_explained &= answers.is_explained();
        let live = live::compare(&controller, &seeds).await?;
        print!("{}", report::live(&live));
        is_explained &= live[0].stale.is_empty();
        print!("{}", report::turns(&leases::take_turns(&controller).await?));
    }
    if let Some(controller) = controller_for("table", "Table of cases")? {
        let answers = table::compare(&controller).await?;
        print!("{}", report::table(&answers));
        is_explained &= answers.is_explained();
    }
    if let Some(controller) = controller_for("clusters", "Other clusters")? {
        let answers = clusters::compare(&controller).await?;
        print!("{}", report::clusters(&answers));
        is_explained &= answers.is_explained();
    }
    if is_wanted("traffic") {
        is_explained &= traffic().await?;
    }
    let courses = [
        ("identity", "Identity", Course::Services),
        ("trust", "Trust", Course::Roots),
        ("distrust", "Distrust", Course::Distrusted),
    ];
    for (part, title, course) in courses {
        if is_wanted(part) {
            is_explained &= identity(title, course).await?;
        }
    }
    if let Some(controller) = controller_for("injector", "Injector")? {
        let (charts, cli) = (program("LINKERD_CHARTS")?, program("LINKERD_CLI")?);
        print!("{}", report::steps(&injector::run(&controller, charts.as_deref(), cli.as_deref()).await?));
    }
    if let Some(controller) = controller_for("reviews", "Reviews")? {
        let reviews = injector::compare(&controller).await?;
        print!("{}", report::reviews(&reviews));
        is_explained &= reviews.is_equal();
        if let Some(file) = env::var_os("LINKERD_RECORDING").filter(|file| !file.is_empty()) {
            fs::write(&file, &reviews.fields.recording).context("writing LINKERD_RECORDING")?;
        }
    }
    if let Some(controller) = controller_for("bursts", "Bursts of Pods")? {
        let bursts = injector::bursts(&controller).await?;
        print!("{}", report::bursts(&bursts));
        is_explained &= bursts.iter().all(|burst| burst.injector == "Linkerd" || burst.lost == 0);
    }
    if let Some(controller) = controller_for("service-profiles", "ServiceProfiles")? {
        let compared = service_profiles::compare(&controller).await?;
        print!("{}", report::service_profiles(&compared));
        is_explained &= compared.iter().all(service_profiles::ProfileCompared::is_explained);
    }
    match (program("LINKERD_CLI")?, program("LINKERD_CONTROLLER")?) {
        (Some(cli), Some(controller)) if is_wanted("cli") => {
            print!("{}", report::cli(&cli::compare(&cli, &controller).await?));
        }
        _ => println!("## CLI\n\n{LEFT_OUT}\n"),
    }
    Ok(is_explained)
}

/// Returns Linkerd's controller if this part is to run; otherwise prints that it is left out.
fn controller_for(part: &str, title: &str) -> Result<Option<PathBuf>> {
    let controller = program("LINKERD_CONTROLLER")?.filter(|_| is_wanted(part));
    if controller.is_none() {
        println!("## {title}\n\n{LEFT_OUT}\n");
    }
    Ok(controller)
}

/// Observes traffic through Linkerd's proxies. Returns whether no request failed.
async fn traffic() -> Result<bool> {
    let programs = ["LINKERD_CONTROLLER", "LINKERD_PROXY", "LINKERD_POLICY_CONTROLLER"];
    let [Some(controller), Some(proxy), Some(policy)] =
        [program(programs[0])?, program(programs[1])?, program(programs[2])?]
    else {
        println!("## Traffic\n\nLeft out: not all of {} are set.\n", programs.join(", "));
        return Ok(true);
    };
    if let Some(missing) = traffic::missing() {
        println!("## Traffic\n\nLeft out: {missing}.\n");
        return Ok(true);
    }
    let traffic = traffic::run(&traffic::Programs { controller, proxy, policy }).await?;
    print!("{}", report::traffic(&traffic));
    Ok(traffic.is_good())
}

/// Observes the certificates of Linkerd's proxies. Returns whether all were renewed and no request failed.
async fn identity(title: &str, course: Course) -> Result<bool> {
    let programs = ["LINKERD_CONTROLLER", "LINKERD_PROXY"];
    let [Some(controller), Some(proxy)] = [program(programs[0])?, program(programs[1])?] else {
        println!("## {title}\n\nLeft out: not all of {} are set.\n", programs.join(", "));
        return Ok(true);
    };
    if let Some(missing) = traffic::missing() {
        println!("## {title}\n\nLeft out: {missing}.\n");
        return Ok(true);
    }
    let steps = identity::run(identity::IdentityPrograms { controller, proxy }, course).await?;
    print!("{}", report::identity(title, &steps));
    Ok(steps.iter().all(identity::IdentityStep::is_good))
}

/// Returns whether `PARTS` names this part, or is not set.
fn is_wanted(part: &str) -> bool {
    env::var("PARTS").map_or(true, |parts| parts.trim().is_empty() || parts.split_whitespace().any(|it| it == part))
}

/// Returns the path in a variable of the environment.
fn program(variable: &str) -> Result<Option<PathBuf>> {
    let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) else { return Ok(None) };
    let path = PathBuf::from(path);
    path.canonicalize().map(Some).with_context(|| format!("{variable}={}", path.display()))
}
