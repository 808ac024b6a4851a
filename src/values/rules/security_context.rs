//! The requirements of the API server for a container's security context, beyond its types. Pure.
//!
//! The rules are those of Kubernetes' `SecurityContext`.

use serde_json::{Map, Value};

/// The capability that lets a process escalate its privileges. Its other spellings are not checked.
pub(super) const ADMIN: &str = "CAP_SYS_ADMIN";
/// The longest name of a profile of AppArmor, in bytes.
const LONGEST_PROFILE: usize = 4095;

type FileCheck = fn(&str) -> bool;

/// The kinds of profiles, the check of the file of a node, and what the file must be.
const PROFILES: [(&str, FileCheck, &str); 2] = [
    (
        "seccompProfile",
        |file| !file.is_empty() && !file.starts_with('/') && file.split('/').all(|part| part != ".."),
        "must have a localhostProfile that is a relative path without .., because its type is Localhost",
    ),
    (
        "appArmorProfile",
        |file| !file.is_empty() && file.trim() == file && file.len() <= LONGEST_PROFILE,
        "must have a localhostProfile of 1 to 4095 bytes without spaces at its ends, because its type is Localhost",
    ),
];

/// Returns the fields that the API server rejects for a container on Linux, with what they must be.
pub(crate) fn unusable_fields(context: &Map<String, Value>) -> Vec<(&'static str, &'static str)> {
    let given = |key: &str| context.get(key).filter(|value| !value.is_null());
    let mut found = Vec::new();
    for (key, is_file, wanted) in PROFILES {
        if let Some(reason) = given(key).and_then(|profile| unusable_profile(profile, is_file, wanted)) {
            found.push((key, reason));
        }
    }
    if given("windowsOptions").is_some() {
        found.push(("windowsOptions", "must be absent: the containers of the proxy run on Linux"));
    }
    // A Pod may unmask it only with hostUsers: false, which the author of the Pod sets.
    if given("procMount").and_then(Value::as_str).is_some_and(|mount| mount != "Default") {
        found.push(("procMount", "must be Default"));
    }
    let added = given("capabilities").and_then(|it| it.get("add")).and_then(Value::as_array);
    let adds_admin = added.is_some_and(|it| it.iter().any(|name| name == ADMIN));
    if adds_admin && given("allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
        found.push(("allowPrivilegeEscalation", "must not be false if CAP_SYS_ADMIN is added"));
    }
    found
}

fn unusable_profile(profile: &Value, is_file: FileCheck, wanted: &'static str) -> Option<&'static str> {
    // The check of the types reports another value.
    let profile = profile.as_object()?;
    let kind = profile.get("type").and_then(Value::as_str).unwrap_or_default();
    let file = profile.get("localhostProfile").filter(|file| !file.is_null());
    match kind {
        "Localhost" if !file.and_then(Value::as_str).is_some_and(is_file) => Some(wanted),
        "RuntimeDefault" | "Unconfined" if file.is_some() => {
            Some("must have no localhostProfile, because its type is not Localhost")
        }
        "Localhost" | "RuntimeDefault" | "Unconfined" => None,
        _ => Some("must have one of the types Localhost, RuntimeDefault and Unconfined"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(context: &Value) -> Vec<&'static str> {
        unusable_fields(context.as_object().unwrap()).into_iter().map(|(field, _)| field).collect()
    }

    #[test]
    fn a_profile_has_a_type_and_a_file_only_for_localhost() {
        for key in ["seccompProfile", "appArmorProfile"] {
            for profile in [
                json!({"type": "RuntimeDefault"}),
                json!({"type": "Unconfined", "localhostProfile": null}),
                json!({"type": "Localhost", "localhostProfile": "a/b"}),
                json!(null),
            ] {
                assert_eq!(fields(&json!({key: profile})), [""; 0], "{profile}");
            }
            for profile in [
                json!({}),
                json!({"type": "runtimeDefault"}),
                json!({"type": "Localhost"}),
                json!({"type": "Localhost", "localhostProfile": ""}),
                json!({"type": "RuntimeDefault", "localhostProfile": "a"}),
            ] {
                assert_eq!(fields(&json!({key: profile})), [key], "{profile}");
            }
        }
    }

    #[test]
    fn the_file_of_a_profile_is_one_that_the_api_server_accepts() {
        let profile = |key: &str, file: &str| fields(&json!({key: {"type": "Localhost", "localhostProfile": file}}));
        for (key, file, fits) in [
            ("seccompProfile", "..a/./b".to_owned(), true),
            ("seccompProfile", "/a".to_owned(), false),
            ("seccompProfile", "../a".to_owned(), false),
            ("seccompProfile", "a/..".to_owned(), false),
            ("appArmorProfile", "/a/../b".to_owned(), true),
            ("appArmorProfile", "a".repeat(4095), true),
            ("appArmorProfile", "a".repeat(4096), false),
            ("appArmorProfile", "é".repeat(2048), false),
            ("appArmorProfile", " a".to_owned(), false),
            ("appArmorProfile", "a\u{a0}".to_owned(), false),
        ] {
            assert_eq!(profile(key, &file).is_empty(), fits, "{key}: {file}");
        }
    }

    /// The API server rejects any options of Windows in a Pod with the name of Linux as its `os`.
    #[test]
    fn a_container_on_linux_has_no_options_of_windows() {
        assert_eq!(fields(&json!({"windowsOptions": null})), [""; 0]);
        for options in [json!({}), json!({"hostProcess": true}), json!({"runAsUserName": "a"})] {
            assert_eq!(fields(&json!({"windowsOptions": options})), ["windowsOptions"], "{options}");
        }
    }

    #[test]
    fn a_mount_and_a_capability_fit_the_pod() {
        assert_eq!(fields(&json!({"procMount": "Default", "capabilities": {"add": ["CAP_SYS_ADMIN"]}})), [""; 0]);
        assert_eq!(fields(&json!({"procMount": "Unmasked"})), ["procMount"]);
        assert_eq!(fields(&json!({"procMount": ""})), ["procMount"]);
        let admin = json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}});
        assert_eq!(fields(&admin), ["allowPrivilegeEscalation"]);
    }
}
