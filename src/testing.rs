//! For tests: the files of the repository, which they compare with each other, and the lines of the log.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Once},
};

use parking_lot::Mutex;
use tracing::{
    Event, Level, Metadata, Subscriber,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files with an extension below a folder of the repository, sorted.
pub(crate) fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, extension, found);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&repository().join(folder), extension, &mut found);
    found.sort();
    found
}

/// The lines that the thread logs while this exists, in the plain format.
pub(crate) struct LoggedLines {
    written: Arc<Mutex<Vec<u8>>>,
    _subscriber: DefaultGuard,
}

impl LoggedLines {
    pub(crate) fn record() -> Self {
        // Otherwise a line that another thread logs for the first time at this moment may stay off for good.
        static INTERESTED: Once = Once::new();
        INTERESTED.call_once(|| _ = tracing::subscriber::set_global_default(Interested));
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let writer = Arc::clone(&written);
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(Level::DEBUG);
        let subscriber = subscriber.with_writer(move || LineWriter(Arc::clone(&writer))).finish();
        Self { written, _subscriber: tracing::subscriber::set_default(subscriber) }
    }

    /// Returns the lines that have this text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let written = String::from_utf8(self.written.lock().clone()).unwrap();
        written.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

/// Makes each line of level DEBUG worth a question, and drops it.
struct Interested;

impl Subscriber for Interested {
    fn enabled(&self, line: &Metadata<'_>) -> bool {
        *line.level() <= Level::DEBUG
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct LineWriter(Arc<Mutex<Vec<u8>>>);

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
