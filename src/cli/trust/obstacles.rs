//! What prevents that a restart gives Pods of a workload the present bundle.
//!
//! In: the rows of a report. Out: the obstacles. Always holds: what cannot be read has none.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::api::apps::v1 as apps;
use kube::{Api, Client};

use crate::{
    cluster::{
        Problems, Projected,
        kinds::apps_workload::{AppsKind, AppsObject, AppsWorkloadOf},
    },
    trust::{behind::BehindRow, obstacle::RestartObstacle, seen::MeshedWorkload},
};

/// Reads the workloads of the rows, which are few.
pub(super) async fn obstacles(client: &Client, rows: &[BehindRow]) -> BTreeMap<MeshedWorkload, RestartObstacle> {
    let read = rows.iter().map(async |row| {
        let obstacle = match row.kind.as_str() {
            "Deployment" => obstacle::<apps::Deployment>(client, row).await,
            "StatefulSet" => obstacle::<apps::StatefulSet>(client, row).await,
            "DaemonSet" => obstacle::<apps::DaemonSet>(client, row).await,
            _ => None,
        };
        let [namespace, kind, name] = [&row.namespace, &row.kind, &row.name].map(String::clone);
        Some((MeshedWorkload { namespace, kind, name }, obstacle?))
    });
    join_all(read).await.into_iter().flatten().collect()
}

async fn obstacle<K: AppsKind>(client: &Client, row: &BehindRow) -> Option<RestartObstacle>
where
    AppsObject<K>: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    let api = Api::<AppsObject<K>>::namespaced(client.clone(), &row.namespace);
    let found = api.get_opt(&row.name).await.ok()??;
    RestartObstacle::of(&AppsWorkloadOf::<K>::project(found, &mut Problems::default()).resource)
}
