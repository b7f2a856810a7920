"""What a Deployment says to an outsider: the knobs that it asks its engines for, and which change it exists for.

Apart from whoever watches (the fleet loop's bed, or a real API server), so that both mean the same by `Seen`.
"""

from functools import cache

from tests.invariants.moment import Object

from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.workload.labels import CHANGE

__all__ = ["knobs_of", "trial_of"]


def knobs_of(deployment: Object) -> Object:
    """What a Deployment asks its engines for, by the names of the API."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return _knobs_in((*(container.get("command") or ()), *(container.get("args") or ())))


@cache
def _knobs_in(command: tuple[str, ...]) -> Object:
    # A story looks at the same few commands thousands of times.
    flags = parse_flags(command)
    found = {
        "maxNumSeqs": flags.max_num_seqs,
        "maxModelLen": flags.max_model_len,
        "kvCacheDtype": flags.kv_cache_dtype,
        "tensorParallelSize": flags.tensor_parallel_size,
    }
    return {knob: value for knob, value in found.items() if value is not None}


def trial_of(deployment: Object) -> str:
    """The id of the change that a Deployment exists for, by its own label."""
    return str(deployment["metadata"].get("labels", {}).get(CHANGE, ""))
