//! Parses the texts of flags.

use std::{str::FromStr, time::Duration};

use k8s_openapi::jiff::SignedDuration;

use crate::text::log_filter::mistake_in;

/// Parses a filter of logs. Spaces around a directive are dropped before the filter is used.
pub(super) fn log_filter(text: &str) -> Result<String, String> {
    match text.split(',').map(str::trim).find(|directive| mistake_in(directive).is_some()) {
        Some(directive) => Err(format!(
            "{directive} is neither a level (error, warn, info, debug, trace, off) nor a directive MODULE=LEVEL"
        )),
        None => Ok(text.to_owned()),
    }
}

/// Parses a duration as Kubernetes and Go write it: `90s`, `10m`, `1h30m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let duration = SignedDuration::from_str(text).map_err(|error| error.to_string())?;
    Duration::try_from(duration).map_err(|_| "it must not be negative".to_owned())
}

/// Parses a duration that is greater than zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match SignedDuration::from_str(text).map(Duration::try_from) {
        Err(error) => Err(error.to_string()),
        Ok(Ok(duration)) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("it must be greater than zero".to_owned()),
    }
}
