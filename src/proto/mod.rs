//! Messages of Linkerd's proxy API, generated from `proto/` and checked in, so that building needs no protoc and a change of the
//! protocol shows in a diff.
//!
//! Maps are `BTreeMap`s: the same message always has the same bytes, which is how changes are told from repetitions.

#![allow(clippy::all, clippy::pedantic, unreachable_pub, rustdoc::all, missing_docs, reason = "generated")]

pub mod destination {
    include!("io.linkerd.proxy.destination.rs");
}

pub mod http_types {
    include!("io.linkerd.proxy.http_types.rs");
}

pub mod meta {
    include!("io.linkerd.proxy.meta.rs");
}

pub mod net {
    include!("io.linkerd.proxy.net.rs");
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    type Files = BTreeMap<String, String>;

    #[test]
    fn the_messages_are_those_that_the_protocol_files_generate() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (generated, checked_in) = (generate(&root.join("proto")), root.join("src/proto"));
        if std::env::var_os("UPDATE_PROTO").is_some() {
            for (name, text) in &generated {
                fs::write(checked_in.join(name), text).unwrap();
            }
        }
        for (name, text) in &generated {
            let there = fs::read_to_string(checked_in.join(name)).unwrap_or_default();
            assert!(
                there == *text,
                "src/proto/{name} is not what proto/ generates: UPDATE_PROTO=1 cargo test --lib proto"
            );
        }
        assert_eq!(read(&checked_in).len(), generated.len(), "src/proto has a file that nothing generates");
    }

    fn generate(protos: &Path) -> Files {
        let files = protox::compile(["destination.proto"], [protos]).unwrap();
        let out = tempfile::tempdir().unwrap();
        prost_build::Config::new().btree_map(["."]).out_dir(out.path()).compile_fds(files).unwrap();
        read(out.path())
    }

    fn read(folder: &Path) -> Files {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let generated = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("io.linkerd."));
        generated
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path()).unwrap()))
            .collect()
    }
}
