"""What the operator may ask for: the rules of the chart, and nothing else.

Apart from the model of the API server, because the real one is given the same files (`e2e/operator_account.py`).
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from vllm_autotuner.cluster.errors import FORBIDDEN, Refused
from vllm_autotuner.cluster.kinds import Kind

__all__ = ["require_permitted"]

FILES: Final = Path(__file__).resolve().parents[2] / "charts" / "vllm-autotuner" / "files"
IN_ITS_NAMESPACE: Final = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
"""The limits of the administrator; the chart grants this one ConfigMap by its name."""


def require_permitted(verb: str, kind: Kind, subresource: str = "") -> None:
    """Raise Refused as the API server does where no rule allows it."""
    group, _, _ = kind.api_version.rpartition("/")
    resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
    if any(group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"] for rule in _rules()):
        return
    message = f'cannot {verb} resource "{resource}" in API group "{group}"'
    raise Refused(message, reason="Forbidden", status=FORBIDDEN)


@cache
def _rules() -> list[dict[str, Any]]:
    files = sorted(FILES.glob("rules*.yaml"))
    return [IN_ITS_NAMESPACE, *(rule for path in files for rule in yaml.safe_load(path.read_text(encoding="utf-8")))]
