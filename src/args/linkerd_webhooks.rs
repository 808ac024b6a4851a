//! The flags of the containers `proxy-injector` and `sp-validator` of Linkerd's own Deployments.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{
    containers::{ContainerFlags, address},
    exit::Exit,
    manager::ManagerArgs,
};
use crate::{drop_in::DropIn, go::flags::go_switch};

/// The flags that only `proxy-injector` has.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
pub(super) struct LinkerdProxyInjectorArgs {
    /// Address of the admission webhook
    #[arg(long, value_name = "ADDR", default_value = ":8443")]
    addr: String,

    /// Address of /metrics, /ping and /ready
    #[arg(long, value_name = "ADDR", default_value = ":9995")]
    metrics_addr: String,

    /// Namespace of Linkerd's control plane
    #[arg(long, value_name = "NAME", default_value = "linkerd")]
    linkerd_namespace: String,

    /// Folder with tls/tls.crt, tls/tls.key, config/values and identity/trust-roots/ca-bundle.crt; only in
    /// linkerd-operator
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/linkerd")]
    folder: PathBuf,
}

/// The flags that only `sp-validator` has.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
pub(super) struct LinkerdSpValidatorArgs {
    /// Address of the admission webhook
    #[arg(long, value_name = "ADDR", default_value = ":8443")]
    addr: String,

    /// Address of /metrics, /ping and /ready
    #[arg(long, value_name = "ADDR", default_value = ":9997")]
    metrics_addr: String,

    /// Folder with tls/tls.crt and tls/tls.key; only in linkerd-operator
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/linkerd")]
    folder: PathBuf,
}

// === impl LinkerdProxyInjectorArgs ===

impl ContainerFlags for LinkerdProxyInjectorArgs {
    const DROP_IN: DropIn = DropIn::ProxyInjector;

    fn apply(self, manager: &mut ManagerArgs) -> Result<(), Exit> {
        manager.webhook_addr = address("addr", &self.addr)?;
        manager.admin_addr = address("metrics-addr", &self.metrics_addr)?;
        manager.controller_namespace = self.linkerd_namespace;
        manager.webhook_folder = self.folder;
        manager.enable_proxy_injector = true;
        Ok(())
    }
}

// === impl LinkerdSpValidatorArgs ===

impl ContainerFlags for LinkerdSpValidatorArgs {
    const DROP_IN: DropIn = DropIn::SpValidator;

    fn apply(self, manager: &mut ManagerArgs) -> Result<(), Exit> {
        manager.webhook_addr = address("addr", &self.addr)?;
        manager.admin_addr = address("metrics-addr", &self.metrics_addr)?;
        manager.webhook_folder = self.folder;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::testing::{command, manager, run};

    #[test]
    fn the_flags_of_linkerds_chart_select_the_injector_alone() {
        let args = [
            "proxy-injector",
            "-log-level=info",
            "-log-format",
            "plain",
            "-linkerd-namespace=mesh",
            "-enable-pprof=false",
        ];
        let settings = command(&args).unwrap();
        assert!(settings.enable_proxy_injector && settings.replaces == Some(DropIn::ProxyInjector));
        assert!(!settings.enable_destination && !settings.enable_external_workload && !settings.enable_linkerd_config);
        assert_eq!((settings.webhook_addr.port(), settings.admin_addr.port()), (8443, 9995));
        assert_eq!(settings.controller_namespace, "mesh");
        assert_eq!(settings.webhook_folder.to_str(), Some("/var/run/linkerd"));
        assert!(settings.notices.is_empty(), "{:?}", settings.notices);
    }

    #[test]
    fn an_unknown_flag_is_ignored_with_a_notice_and_strictly_refused() {
        let settings = command(&["proxy-injector", "-newer", "value", "-enable-pprof"]).unwrap();
        assert_eq!(settings.notices.len(), 2, "{:?}", settings.notices);
        assert!(command(&["proxy-injector", "-newer=value", "-strict-flags"]).is_err());
        assert!(command(&["proxy-injector", "-addr=nonsense"]).is_err());
        assert!(command(&["proxy-injector", "-log-level=loud"]).is_err());
    }

    #[test]
    fn the_flags_of_linkerds_chart_select_the_validator_alone() {
        let args = ["sp-validator", "-log-level=info", "-log-format=plain", "-enable-pprof=false"];
        let settings = command(&args).unwrap();
        assert!(
            settings.replaces == Some(DropIn::SpValidator)
                && !settings.enable_webhooks
                && !settings.enable_proxy_injector
        );
        assert!(!settings.enable_destination && !settings.enable_external_workload && !settings.enable_linkerd_config);
        assert_eq!((settings.webhook_addr.port(), settings.admin_addr.port()), (8443, 9997));
        assert_eq!(settings.webhook_folder.to_str(), Some("/var/run/linkerd"));
        assert!(settings.notices.is_empty(), "{:?}", settings.notices);
        assert_eq!(manager(&[]).unwrap().replaces, None);
    }

    #[test]
    fn values_are_checked_as_in_go() {
        let settings = command(&["sp-validator", "-addr", "127.0.0.1:1", "-metrics-addr=:2", "-newer", "x"]).unwrap();
        assert_eq!((settings.webhook_addr.to_string(), settings.admin_addr.port()), ("127.0.0.1:1".to_owned(), 2));
        assert_eq!(settings.notices.len(), 1, "{:?}", settings.notices);
        assert_eq!(run(&["sp-validator", "-addr=nonsense"]).unwrap_err().code, 1);
        assert_eq!(run(&["sp-validator", "-log-level=loud"]).unwrap_err().code, 1);
        assert_eq!(run(&["sp-validator", "-version"]).unwrap_err().code, 0);
    }
}
