//! The messages of Linkerd's proxy API. They are generated from `proto/` and checked in, so that a build needs no
//! protoc and changes of the protocol appear in diffs.
//!
//! Maps are `BTreeMap`s, so that equal messages have equal bytes: changes are detected by comparing bytes.
//!
//! As JSON, a message is an object: fields have the names of the `.proto` file, and fields with their default value are
//! absent. A oneof has its name in upper camel case and contains the field that is set, `{"Ip":{"Ipv4":3221225995}}`,
//! or is `null`. The messages of the Identity API have no JSON, because they have the tokens of workloads.

#![allow(clippy::all, clippy::pedantic, unreachable_pub, rustdoc::all, missing_docs, reason = "generated")]

pub mod destination {
    include!("io.linkerd.proxy.destination.rs");
}

pub mod http_types {
    include!("io.linkerd.proxy.http_types.rs");
}

pub mod identity {
    include!("io.linkerd.proxy.identity.rs");
}

pub mod meta {
    include!("io.linkerd.proxy.meta.rs");
}

pub mod net {
    include!("io.linkerd.proxy.net.rs");
}

use serde::{Serialize, Serializer};

/// Returns whether a field is absent from JSON.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serializes a duration. This message is part of `prost-types` and does not implement `Serialize`.
fn duration<S: Serializer>(duration: &Option<prost_types::Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Duration {
        #[serde(skip_serializing_if = "is_default")]
        seconds: i64,
        #[serde(skip_serializing_if = "is_default")]
        nanos: i32,
    }
    duration.map(|prost_types::Duration { seconds, nanos }| Duration { seconds, nanos }).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use prost_build::Config;
    use prost_types::DescriptorProto;

    type Files = BTreeMap<String, String>;

    #[test]
    fn the_checked_in_messages_match_the_protocol_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (generated, checked_in) = (generate(&root.join("proto")), root.join("src/proto"));
        if std::env::var_os("UPDATE_PROTO").is_some() {
            for (name, text) in &generated {
                fs::write(checked_in.join(name), text).unwrap();
            }
        }
        for (name, text) in &generated {
            let current = fs::read_to_string(checked_in.join(name)).unwrap_or_default();
            assert!(
                current == *text,
                "src/proto/{name} differs from the output for proto/: run UPDATE_PROTO=1 cargo test --lib proto"
            );
        }
        assert_eq!(read(&checked_in).len(), generated.len(), "src/proto has a file that proto/ does not generate");
    }

    fn generate(protos: &Path) -> Files {
        let files = protox::compile(["destination.proto", "identity.proto"], [protos]).unwrap();
        let out = tempfile::tempdir().unwrap();
        let mut config = Config::new();
        config.btree_map(["."]).out_dir(out.path());
        for file in files.file.iter().filter(|file| file.package() != "io.linkerd.proxy.identity") {
            config.type_attribute(format!(".{}", file.package()), "#[derive(::serde::Serialize)]");
            for message in &file.message_type {
                add_json_attributes(&mut config, file.package(), message);
            }
        }
        config.compile_fds(files).unwrap();
        read(out.path())
    }

    /// Adds the serde attributes of the fields of a message and of its nested messages.
    ///
    /// The paths have no leading dot: with one they would also match the variants of a oneof, which take no such
    /// attributes.
    fn add_json_attributes(config: &mut Config, parent: &str, message: &DescriptorProto) {
        let path = format!("{parent}.{}", message.name());
        for field in message.field.iter().filter(|field| field.oneof_index.is_none()) {
            let field_path = format!("{path}.{}", field.name());
            config.field_attribute(&field_path, r#"#[serde(skip_serializing_if = "crate::proto::is_default")]"#);
            if field.type_name() == ".google.protobuf.Duration" {
                config.field_attribute(&field_path, r#"#[serde(serialize_with = "crate::proto::duration")]"#);
            }
        }
        for oneof in &message.oneof_decl {
            let (first, rest) = oneof.name().split_at(1);
            let rename = format!("#[serde(rename = \"{}{rest}\")]", first.to_uppercase());
            config.field_attribute(format!("{path}.{}", oneof.name()), rename);
        }
        for nested in &message.nested_type {
            add_json_attributes(config, &path, nested);
        }
    }

    fn read(folder: &Path) -> Files {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let generated = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("io.linkerd."));
        generated
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path()).unwrap()))
            .collect()
    }
}
