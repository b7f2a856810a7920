"""Whatever stands in spec and status, an object is read or said to be unreadable: nothing is raised past its reader.

`kubectl edit --subresource=status`, an older CRD or a webhook may have put it there. `make soak` tries more of them.
"""

import copy
import json
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.cases import SMALLEST
from tests.api.test_status import active_change
from tests.examples import examples

from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidService, VLLMService, parse_service
from vllm_autotuner.control.read.views import service_entry

EVERYTHING: Final[dict[str, Any]] = {
    "metadata": {"namespace": "prod", "name": "chat", "uid": "u", "generation": 1, "resourceVersion": "1"},
    "spec": {
        **SMALLEST,
        "podTemplate": {"spec": {"containers": [{"name": "vllm", "env": [{"name": "A", "value": "b"}]}]}},
        "objectives": {"ttft": {"quantile": "0.95", "target": "2s"}},
        "tuning": {"mode": "Automatic", "maxNumSeqs": {"min": 1, "max": 64}, "cooldown": "1h"},
    },
    "status": {"activeChange": to_wire(active_change()), "observedGeneration": 1, "conditions": []},
}
ODD: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "9999999h", "9" * 5000, 10**400, -(10**30)]
    ),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inside for place in places(part, (*path, key)))]


PLACES: Final = [place for place in places(EVERYTHING) if place and place[0] != "metadata"]


@settings(max_examples=examples(200, in_soak=20_000))
@given(place=st.sampled_from(PLACES), odd=ODD, again=st.sampled_from(PLACES), other=ODD)
def test_any_object_is_read_or_said_to_be_unreadable(
    place: tuple[Any, ...], odd: Any, again: tuple[Any, ...], other: Any
) -> None:
    body = copy.deepcopy(EVERYTHING)
    for path, value in ((place, odd), (again, other)):
        parent: Any = body
        for key in path[:-1]:
            parent = parent[key] if isinstance(parent, dict | list) and _has(parent, key) else None
        if isinstance(parent, dict | list) and _has(parent, path[-1]):
            parent[path[-1]] = value
    if not isinstance(body["spec"], dict | type(None)):
        return  # the API server holds its type at least
    found = parse_service(body)
    assert isinstance(found, VLLMService | InvalidService)
    assert service_entry(body).name == "chat"
    if isinstance(found, VLLMService):
        json.dumps(to_wire(found.status), allow_nan=False)


def _has(parent: Any, key: Any) -> bool:
    return key in parent if isinstance(parent, dict) else isinstance(key, int) and key < len(parent)
