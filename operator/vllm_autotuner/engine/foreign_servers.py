"""Servers that are no vLLM engine and look like one, or stand where one was expected: recognised by their metric names.

Separate from `metric_names`, which is about vLLM itself. Naming a server saves its owner the search; what would be
needed is said beside it. Source: the metrics pages of the named servers.
Must not: read a value.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["FOREIGN", "ForeignServer", "foreign_server", "foreign_sign"]

_NOT_VLLM: Final = "only vLLM's own metrics can be diagnosed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignServer:
    """One kind of server."""

    name: str
    sign: str
    """A regular expression that matches the whole name of one of its metrics."""
    needed: str
    """What to do instead."""

    @property
    def message(self) -> str:
        """Name and remedy in one sentence."""
        return f"these are metrics of {self.name}: {self.needed}"


FOREIGN: Final[tuple[ForeignServer, ...]] = (
    ForeignServer(
        name="the router of vLLM's production-stack",
        sign="vllm:(?:current_qps|healthy_pods_total|avg_ttft)",
        needed="it repeats the engines' gauges without their histograms; scrape the engines themselves",
    ),
    ForeignServer(
        name="vLLM on Ray Serve",
        sign="ray_(?:serve_)?vllm[:_]num_requests_running",
        needed="Ray renames them; relabel ray_vllm: and ray_vllm_ to vllm: when they are scraped",
    ),
    ForeignServer(name="SGLang", sign="sglang[:_]num_running_reqs", needed=_NOT_VLLM),
    ForeignServer(
        name="TensorRT-LLM", sign="trtllm_request_success_total|nv_trt_llm_request_metrics", needed=_NOT_VLLM
    ),
    ForeignServer(name="Text Generation Inference (TGI)", sign="tgi_(?:queue_size|request_count)", needed=_NOT_VLLM),
    ForeignServer(
        name="Triton Inference Server",
        sign="nv_inference_request_success",
        needed="its vLLM backend exports no gauges; run vLLM's own server, or scrape its /metrics",
    ),
    ForeignServer(
        name="an inference gateway (endpoint picker)",
        sign="inference_(?:pool_average_kv_cache_utilization|model_request_total|objective_request_total)",
        needed="it sees the engines from outside; scrape the engines themselves",
    ),
    ForeignServer(name="LMDeploy", sign="lmdeploy:num_requests_running", needed=_NOT_VLLM),
    ForeignServer(name="llama.cpp", sign="llamacpp:requests_processing", needed=_NOT_VLLM),
    ForeignServer(
        name="Dynamo's frontend", sign="dynamo_frontend_requests_total", needed="scrape the vLLM workers behind it"
    ),
)
"""In order of precedence: a router before the servers whose metrics it repeats."""


def foreign_server(names: Iterable[str]) -> ForeignServer | None:
    """Return the first kind of server that one of these metric names is a sign of; None for none."""
    known = set(names)
    for server in FOREIGN:
        if any(re.fullmatch(server.sign, name) for name in known):
            return server
    return None


def foreign_sign() -> str:
    """Return the PromQL matcher of the signs of all of them."""
    return f'__name__=~"{"|".join(server.sign for server in FOREIGN)}"'
