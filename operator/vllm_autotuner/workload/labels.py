"""The labels and annotations by which children name their service and their configuration.

Apart from rendering, because `cluster` judges ownership and `control` reads views by the same names.
"""

from typing import Final

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""Kubernetes' own label; with the value `OPERATOR` it selects what we watch."""

OPERATOR: Final = "vllm-autotuner"
"""The value of `MANAGED_BY`, and the field manager of every server-side apply."""

SERVICE: Final = "vllm-autotuner.dev/service"
"""Label of every child: the name of its VLLMService, in the same namespace."""

METADATA_HASH: Final = "vllm-autotuner.dev/metadata-hash"
"""Annotation of Deployment and Service: the hash of spec.workloadMetadata; absent without any."""

CONFIG_HASH: Final = "vllm-autotuner.dev/config-hash"
"""Annotation of Deployments and pods: the hash of the effective configuration they were rendered from."""

LEASE_EPOCH: Final = "vllm-autotuner.dev/lease-epoch"
"""Annotation of children, never of pod templates: the epoch of the leader that wrote last (the fencing token)."""

ADOPTION: Final = "vllm-autotuner.dev/adoption"
"""Annotation of a Deployment that a VLLMService names (targetRef): what its owner had written before we wrote."""

CONSENT: Final = "vllm-autotuner.dev/flags"
"""Annotation by which the owner of a Deployment hands the engine's flags over, with the value `CONSENT_GIVEN`."""

CONSENT_GIVEN: Final = "tuned"
"""The value of `CONSENT` that counts; everything else is no consent."""

MANAGED_SELECTOR: Final = f"{MANAGED_BY}={OPERATOR}"
"""The label selector of everything the operator owns."""

SERVICE_UID: Final = "vllm-autotuner.dev/service-uid"
"""Annotation of every child: the uid of its VLLMService, also where no ownerReference names it (Retain)."""

HASH_VERSION: Final = "vllm-autotuner.dev/hash-version"
"""Annotation beside `CONFIG_HASH`: the version of the rendering; hashes of two versions cannot be compared."""

TRACK: Final = "vllm-autotuner.dev/track"
"""Label that tells pods of one service apart; in the selector of each Deployment, not in the Service's."""

STABLE: Final = "stable"
"""The value of `TRACK` for the service's own Deployment; `change.trial_deployments.Track` has the others."""

CHANGE: Final = "vllm-autotuner.dev/change"
"""Label of a Deployment that exists for one change, and of its pod: the change's id."""
