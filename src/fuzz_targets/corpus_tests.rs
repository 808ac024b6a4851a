//! Runs the targets of the fuzzer over its corpus, and over mutations of it that are the same in each run.

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
};

use super::{FuzzTarget, TARGETS};
use crate::testing::repository;

/// The number of mutations of a target. `FUZZ_MUTATIONS` sets another one.
const MUTATIONS: usize = 2_000;
/// The longest mutation, in bytes.
const LONGEST: usize = 64 * 1024;
/// Bytes that are limits of numbers, or have a meaning in a format.
const BYTES: [u8; 16] = *b"\x00\x01\x7f\x80\xff\"\\{}[]:,.\n ";

/// A generator of numbers (SplitMix64). The crates for it change their sequences between versions.
struct Numbers(u64);

/// Changes inputs.
struct Mutator {
    numbers: Numbers,
    corpus: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
}

fn folder() -> PathBuf {
    repository().join("e2e/fuzz")
}

/// The inputs of a target, with the names of their files.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = folder().join("corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.file_name().unwrap().display().to_string(), fs::read(&file).unwrap())).collect()
}

/// The words of the dictionary: one in quotes on each line.
fn words() -> Vec<Vec<u8>> {
    let text = fs::read_to_string(folder().join("words.dict")).unwrap();
    let word = |line: &str| line.strip_prefix('"')?.strip_suffix('"').map(|word| word.as_bytes().to_vec());
    text.lines().filter_map(word).collect()
}

/// Runs a target. A panic names the input, which is saved so that it can become a part of the corpus.
fn run((name, entry): FuzzTarget, source: &str, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| entry(input))) {
        let saved = std::env::temp_dir().join(format!("fuzz-{name}-{source}"));
        let _ = fs::write(&saved, input);
        eprintln!("target {name} fails for {source}, saved as {}: {}", saved.display(), input.escape_ascii());
        resume_unwind(panic);
    }
}

fn run_all(name: &str) {
    let target = *TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let corpus = corpus(name);
    run(target, "nothing", &[]);
    for (file, input) in &corpus {
        run(target, file, input);
    }
    let mutations = std::env::var("FUZZ_MUTATIONS").map_or(MUTATIONS, |number| number.parse().unwrap());
    let corpus = corpus.into_iter().map(|(_, input)| input).collect();
    let mut mutator = Mutator { numbers: Numbers(0x1d), corpus, words: words() };
    for number in 0..mutations {
        let input = mutator.next();
        run(target, &format!("mutation-{number}"), &input);
    }
}

// === impl Numbers ===

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below the limit, or 0.
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 1).unwrap() % limit.max(1)
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

// === impl Mutator ===

impl Mutator {
    /// Returns an input of the corpus with one to eight changes.
    fn next(&mut self) -> Vec<u8> {
        let mut input = self.numbers.of(&self.corpus).clone();
        for _ in 0..=self.numbers.below(8) {
            self.change(&mut input);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let numbers = &mut self.numbers;
        let at = numbers.below(input.len() + 1);
        let length = numbers.below((input.len() - at).min(64) + 1);
        match numbers.below(8) {
            0 if at < input.len() => input[at] ^= 1 << numbers.below(8),
            1 if at < input.len() => input[at] = *numbers.of(&BYTES),
            2 => drop(input.drain(at..at + length)),
            3 => {
                let copy = input[at..at + length].to_vec();
                let to = numbers.below(input.len() + 1);
                drop(input.splice(to..to, copy));
            }
            4 => {
                let copy = input[at..at + length].repeat(1 + numbers.below(40));
                drop(input.splice(at..at, copy));
            }
            5 => {
                let word = numbers.of(&self.words).clone();
                drop(input.splice(at..at + length, word));
            }
            6 => {
                let other = numbers.of(&self.corpus);
                let from = numbers.below(other.len() + 1);
                let part = other[from..].to_vec();
                drop(input.splice(at.., part));
            }
            _ => drop(input.splice(at..at, [*numbers.of(&BYTES)])),
        }
    }
}

/// One test for each target, so that they run at the same time and a failure names its target.
macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            run_all(stringify!($name));
        })*

        #[test]
        fn each_target_has_a_test() {
            assert_eq!(TARGETS.map(|(name, _)| name), [$(stringify!($name)),*]);
        }
    };
}
targets!(
    admission_review,
    annotations,
    get_request,
    http2_frames,
    service_profile,
    validation_review,
    values_document,
    webhook_body
);

#[test]
fn each_target_has_a_binary_and_a_corpus_of_small_files() {
    let names = |folder: PathBuf| -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        entries.map(|name| name.trim_end_matches(".rs").to_owned()).collect()
    };
    let expected: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(folder().join("targets")), expected);
    assert_eq!(names(folder().join("corpus")), expected);
    let manifest = fs::read_to_string(folder().join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"targets/{name}.rs\"")), "{name}");
        let entry = fs::read_to_string(folder().join(format!("targets/{name}.rs"))).unwrap();
        assert!(entry.contains(&format!("fuzz_targets::{name}(data)")), "{name}");
        let files = corpus(name);
        assert!(files.len() >= 3, "{name} has {} files", files.len());
        for (file, input) in files {
            assert!(input.len() <= 16 * 1024, "{name}/{file} has {} bytes", input.len());
        }
    }
}

#[test]
fn mutations_are_the_same_in_each_run() {
    let mutations = || {
        let mut mutator = Mutator { numbers: Numbers(7), corpus: vec![b"{\"a\": 1}".to_vec()], words: words() };
        (0..100).map(|_| mutator.next()).collect::<Vec<_>>()
    };
    assert_eq!(mutations(), mutations());
    assert!(mutations().iter().collect::<BTreeSet<_>>().len() > 80);
}
