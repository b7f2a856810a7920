"""The Kubernetes kinds that the operator reads and writes, and their URL paths.

Apart from `adapter`, so that a new kind is one line here and nothing else.
Must not: discover kinds at run time. The operator's RBAC is a fixed list, and so is this.
"""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from vllm_autotuner.api import service
from vllm_autotuner.cluster.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of the API. `plural` is its name in URLs."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, *, subresource: str | None = None) -> str:
        """Return the URL path of an object, or without `name` of the collection (all namespaces when that is None)."""
        prefix = "api" if "/" not in self.api_version else "apis"
        parts = [prefix, *self.api_version.split("/")]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part is not None]
        return "/" + "/".join(quote(part, safe="") for part in parts)


VLLM_SERVICE: Final = Kind(api_version=service.API_VERSION, kind=service.KIND, plural=service.PLURAL)
DEPLOYMENT: Final = Kind(api_version="apps/v1", kind="Deployment", plural="deployments")
POD: Final = Kind(api_version="v1", kind="Pod", plural="pods")
NODE: Final = Kind(api_version="v1", kind="Node", plural="nodes")
RESOURCE_QUOTA: Final = Kind(api_version="v1", kind="ResourceQuota", plural="resourcequotas")
SERVICE: Final = Kind(api_version="v1", kind="Service", plural="services")
CONFIG_MAP: Final = Kind(api_version="v1", kind="ConfigMap", plural="configmaps")
AUTOSCALER: Final = Kind(
    api_version="autoscaling/v2", kind="HorizontalPodAutoscaler", plural="horizontalpodautoscalers"
)
EVENT: Final = Kind(api_version="events.k8s.io/v1", kind="Event", plural="events")
LEASE: Final = Kind(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases")

_APPLIED: Final = {(kind.api_version, kind.kind): kind for kind in (DEPLOYMENT, SERVICE)}


def kind_of(body: dict[str, Any]) -> Kind:
    """Return the kind of a child object. Raises Refused for a kind that is not among those we own."""
    key = (str(body.get("apiVersion")), str(body.get("kind")))
    if key not in _APPLIED:
        raise Refused(f"{key[1]} ({key[0]}) is not a kind that this operator writes", reason="UnknownKind")
    return _APPLIED[key]
