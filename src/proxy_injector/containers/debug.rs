//! The container `linkerd-debug`.

use serde_json::{Value, json};

use super::fields::{NotRenderable, image, set_pull_policy};
use crate::values::ProxyValues;

pub(in crate::proxy_injector) fn debug(values: &ProxyValues) -> Result<Value, NotRenderable> {
    let probe = json!({"exec": {"command": ["true"]}});
    let mut container = json!({
        "name": "linkerd-debug",
        "image": image(values, &values.debug_container.image, "debugContainer.image")?,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "livenessProbe": probe,
        "readinessProbe": probe,
    });
    if let Some(container) = container.as_object_mut() {
        set_pull_policy(container, values.pull_policy_of(&values.debug_container.image));
    }
    Ok(container)
}
