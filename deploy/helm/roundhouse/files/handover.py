"""Completes an update: once this new orchestrator is a standby, it has the active one of an earlier revision deleted.

Only the active orchestrator is ready, so a Deployment replaces the standbys and then waits forever for one of the new
Pods to become ready. This runs beside each orchestrator until there is nothing left to hand over. If the new orchestrator
does not get that far, the earlier one stays active.
"""
import http.client
import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
REVISION = "deployment.kubernetes.io/revision"
# How long this one must have been a standby before it is trusted with the fleet.
STEADY_S = 3


def api(path, method="GET", body=None):
    address = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}"
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read()}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(address, data, headers, method=method)
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    with urllib.request.urlopen(request, timeout=10, context=context) as response:
        return json.load(response)


def own_status():
    """The status that this orchestrator's health has; None if it does not answer."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:8000/health", timeout=2) as response:
            return json.load(response)["status"]
    except urllib.error.HTTPError as answer:
        return json.load(answer).get("status")
    except (OSError, http.client.HTTPException, ValueError):
        return None


def is_ready(pod):
    conditions = pod["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


class Deployment:
    def __init__(self):
        with open(f"{ACCOUNT}/namespace") as file:
            namespace = file.read().strip()
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.replica_sets = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
        labels = api(f"{self.pods}/{os.environ['HOSTNAME']}")["metadata"]["labels"]
        names = ("app.kubernetes.io/name", "app.kubernetes.io/instance")
        self.selector = "%2C".join(f"{name}%3D{labels[name]}" for name in names)
        self.own = self.revision(os.environ["HOSTNAME"])

    def revision(self, pod_name):
        """The Deployment's revision of a Pod. That of an earlier one is raised when it is rolled back to."""
        owners = api(f"{self.pods}/{pod_name}")["metadata"].get("ownerReferences", [])
        name = next(owner["name"] for owner in owners if owner["kind"] == "ReplicaSet")
        return int(api(f"{self.replica_sets}/{name}")["metadata"]["annotations"][REVISION])

    def earlier(self):
        pods = api(f"{self.pods}?labelSelector={self.selector}")["items"]
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return [pod for pod in living if self.revision(pod["metadata"]["name"]) < self.own]

    def delete(self, pod):
        identity = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        api(f"{self.pods}/{pod['metadata']['name']}", "DELETE", identity)


def hand_over():
    """Returns when no earlier orchestrator is left, or this one is active."""
    standby_since = None
    while (status := own_status()) != "ok":
        if status != "standby":
            standby_since = None
        elif standby_since is None:
            standby_since = time.monotonic()
        try:
            deployment = Deployment()
            earlier = deployment.earlier()
            if not earlier:
                return
            if standby_since is not None and time.monotonic() - standby_since >= STEADY_S:
                for pod in filter(is_ready, earlier):
                    print(f"This orchestrator takes over from {pod['metadata']['name']}.", flush=True)
                    deployment.delete(pod)
        except OSError as error:
            # The API server is away, or an object has just been removed: it is tried again.
            print(f"The hand-over is delayed: {error}", file=sys.stderr, flush=True)
        time.sleep(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    hand_over()
    while True:
        signal.pause()
