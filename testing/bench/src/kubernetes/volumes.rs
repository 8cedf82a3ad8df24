//! Makes a volume for each claim, as the provisioner of a storage does. Nothing is mounted, so there is no disk.

use anyhow::Context as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::sync::mpsc;

use super::cluster::{NAMESPACE, PROVISIONER, STORAGE_CLASS};
use super::objects::{Change, follow};
use crate::context::log_progress;

/// Makes volumes until it is dropped.
pub(super) async fn provision(client: Client) {
    let (claimed, mut claims) = mpsc::unbounded_channel();
    let watch = follow(Api::namespaced(client.clone(), NAMESPACE), move |change| {
        if let Change::Present(claim) = change
            && needs_volume(&claim)
        {
            // The receiver is dropped together with the watch.
            let _ = claimed.send(claim);
        }
    });
    let volumes = Api::all(client);
    let make = async {
        let mut made = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(claim) = claims.recv() => made.push(make_volume(&volumes, claim)),
                Some(result) = made.next() => {
                    if let Err(error) = result {
                        log_progress(&format!("a volume was not made: {error:#}"));
                    }
                }
            }
        }
    };
    tokio::join!(watch, make);
}

fn needs_volume(claim: &PersistentVolumeClaim) -> bool {
    let spec = claim.spec.as_ref();
    claim.metadata.deletion_timestamp.is_none()
        && spec.is_some_and(|spec| {
            spec.volume_name.is_none() && spec.storage_class_name.as_deref() == Some(STORAGE_CLASS)
        })
}

async fn make_volume(volumes: &Api<PersistentVolume>, claim: PersistentVolumeClaim) -> anyhow::Result<()> {
    let uid = claim.metadata.uid.context("a claim has no id")?;
    let volume = json!({
        "metadata": {
            "name": format!("pvc-{uid}"), "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": {
            "accessModes": claim.spec.and_then(|spec| spec.access_modes), "capacity": {"storage": "2Gi"},
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": STORAGE_CLASS,
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": uid,
                "namespace": NAMESPACE, "name": claim.metadata.name,
            },
            "hostPath": {"path": "/nonexistent"},
        },
    });
    match volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await {
        Ok(_) => Ok(()),
        // The claim has changed again before it was bound.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error.into()),
    }
}
