//! A long-running command whose output is shown as it appears, as in a second terminal.

use anyhow::{Result, ensure};
use e2e::{Process, mesh::SOON, wait::eventually};

pub(crate) struct Watcher {
    process: Process,
    shown: usize,
}

impl Watcher {
    pub(crate) fn of(process: Process) -> Self {
        Self { process, shown: 0 }
    }

    /// Waits until the new output contains all of these names, and prints it.
    pub(crate) async fn prints(&mut self, names: &[&str]) -> Result<String> {
        let news = eventually(SOON, format_args!("{names:?} to be printed"), async || {
            let log = self.process.log();
            // Only complete lines.
            let new = log.get(self.shown..).unwrap_or_default();
            let news = new.get(..new.rfind('\n').map_or(0, |end| end + 1)).unwrap_or_default().to_owned();
            ensure!(names.iter().all(|name| news.contains(name)), "{news}");
            Ok(news)
        })
        .await?;
        self.shown += news.len();
        println!("{}", news.trim_end());
        Ok(news)
    }
}
