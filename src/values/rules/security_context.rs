//! What the API server requires of a container's security context, beyond its types. Pure.
//!
//! The rules are those of Kubernetes' `SecurityContext`.

use serde_json::{Map, Value};

/// Returns the fields that the API server rejects, with what they must be.
pub(super) fn violations(context: &Map<String, Value>) -> Vec<(&'static str, &'static str)> {
    let given = |key: &str| context.get(key).filter(|value| !value.is_null());
    let mut found = Vec::new();
    for key in ["seccompProfile", "appArmorProfile"] {
        if let Some(reason) = given(key).and_then(unusable_profile) {
            found.push((key, reason));
        }
    }
    // A Pod may unmask it only with hostUsers: false, which the author of the Pod sets.
    if given("procMount").and_then(Value::as_str).is_some_and(|mount| mount != "Default") {
        found.push(("procMount", "must be Default"));
    }
    let added = given("capabilities").and_then(|it| it.get("add")).and_then(Value::as_array);
    let adds_admin = added.is_some_and(|it| it.iter().any(|name| name.as_str() == Some("CAP_SYS_ADMIN")));
    if adds_admin && given("allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
        found.push(("allowPrivilegeEscalation", "must not be false if CAP_SYS_ADMIN is added"));
    }
    found
}

fn unusable_profile(profile: &Value) -> Option<&'static str> {
    // The check of the types reports another value.
    let profile = profile.as_object()?;
    let kind = profile.get("type").and_then(Value::as_str).unwrap_or_default();
    let file = profile.get("localhostProfile").filter(|file| !file.is_null());
    match kind {
        "Localhost" if file.and_then(Value::as_str).is_none_or(str::is_empty) => {
            Some("must have a localhostProfile, because its type is Localhost")
        }
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
        violations(context.as_object().unwrap()).into_iter().map(|(field, _)| field).collect()
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
    fn a_mount_and_a_capability_fit_the_pod() {
        assert_eq!(fields(&json!({"procMount": "Default", "capabilities": {"add": ["CAP_SYS_ADMIN"]}})), [""; 0]);
        assert_eq!(fields(&json!({"procMount": "Unmasked"})), ["procMount"]);
        assert_eq!(fields(&json!({"procMount": ""})), ["procMount"]);
        let admin = json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}});
        assert_eq!(fields(&admin), ["allowPrivilegeEscalation"]);
    }
}
