//! `chart FOLDER REPOSITORY CHART...`: packs Helm charts into a folder, as packages and as OCI image layouts.
//!
//! * In: the folders of the charts; the repository of the image that their values name, which may be empty;
//!   `SOURCE_DATE_EPOCH`, and `LINKERD_OPERATOR_BUILD_DATE` with the same time.
//! * Out: NAME-VERSION.tgz and NAME-VERSION-oci.tar of each chart.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use e2e::chart::{Chart, Created};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [output, repository, charts @ ..] = arguments.as_slice() else {
        bail!("usage: chart FOLDER REPOSITORY CHART...")
    };
    let set = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set: run `make helm-package`"));
    let created = Created {
        seconds: set("SOURCE_DATE_EPOCH")?.parse().context("SOURCE_DATE_EPOCH")?,
        date: set("LINKERD_OPERATOR_BUILD_DATE")?,
    };
    fs::create_dir_all(output)?;
    for folder in charts {
        let mut chart = Chart::read(Path::new(folder), created.clone())?;
        if !repository.is_empty() {
            chart.set_image(repository).with_context(|| folder.clone())?;
        }
        let name = format!("{output}/{}-{}", chart.name()?, chart.version()?);
        for (end, archive) in [(".tgz", chart.package()?), ("-oci.tar", chart.layout()?)] {
            fs::write(format!("{name}{end}"), archive).with_context(|| format!("writing {name}{end}"))?;
            println!("{name}{end}");
        }
    }
    Ok(())
}
