"""`approve`, `reject`, `rollback`, `pause`, `resume` and `retry`: what a person tells the operator about one service.

Each sets the annotation of that name (`api.annotations`), which `kubectl annotate` does as well; these commands also
check beforehand whether it can have an effect, and show the operator's answer. Must not: write anything else.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.text import Text

from vllm_autotuner.api.annotations import APPROVE, PAUSE, REJECT, RETRY, ROLLBACK
from vllm_autotuner.api.wording import told_advice
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.kubernetes import NAME_HELP, ClusterOptions
from vllm_autotuner.cli.service.service_object import annotate_service, read_service
from vllm_autotuner.cli.terminal import answers, failed, printable

__all__ = [
    "APPROVE_EXAMPLES",
    "PAUSE_EXAMPLES",
    "REJECT_EXAMPLES",
    "RESUME_EXAMPLES",
    "RETRY_EXAMPLES",
    "ROLLBACK_EXAMPLES",
    "approve",
    "pause",
    "reject",
    "resume",
    "retry",
    "rollback",
]

WAIT: Final = 45.0
"""Seconds to wait for the operator's answer: three ticks at the default interval."""
LOOK_EVERY: Final = 1.0
"""Seconds."""
CODES: Final = "Exit codes: 0 done or accepted, 1 error or without effect."
ANSWERED_CODES: Final = f"{CODES[:-1]}, 2 the operator has not answered within --wait."
NO_ANSWER: Final = 2
APPROVE_EXAMPLES: Final = f"""
Examples:

  Begin what the operator recommends, in mode Approve:

    vllm-autotuner approve chat -n prod

  Only if it still recommends what was reviewed:

    vllm-autotuner approve chat -n prod --id 4f2a91bc

{CODES}
"""
REJECT_EXAMPLES: Final = f"""
Examples:

  Never try the recommended value; `retry` allows it again:

    vllm-autotuner reject chat -n prod

{ANSWERED_CODES}
"""
ROLLBACK_EXAMPLES: Final = f"""
Examples:

  Undo the change under way; its value is not tried again:

    vllm-autotuner rollback chat -n prod

{ANSWERED_CODES}
"""
PAUSE_EXAMPLES: Final = f"""
Examples:

  No change begins or goes on until `resume`, and the replicas stay as they are; serving goes on:

    vllm-autotuner pause chat -n prod

{CODES}
"""
RESUME_EXAMPLES: Final = f"""
Examples:

  End a pause:

    vllm-autotuner resume chat -n prod

{CODES}
"""
RETRY_EXAMPLES: Final = f"""
Examples:

  Allow rejected values again, end the cooldown and close the circuit breaker:

    vllm-autotuner retry chat -n prod

{ANSWERED_CODES}
"""

Tell: TypeAlias = Callable[[Mapping[str, Any]], dict[str, str | None]]
"""Makes annotations of the object as it is."""
Name: TypeAlias = Annotated[str, typer.Argument(help=NAME_HELP)]
Wait: TypeAlias = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.0, help="How long to wait for the operator's answer.")
]
ReviewedId: TypeAlias = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="Only if this is the recommendation. Default: whatever it is now."),
]


@with_groups
def approve(name: Name, *, identity: ReviewedId = None, cluster: ClusterOptions) -> None:
    """Approve the current recommendation of a service, in mode Approve."""

    def tell(body: Mapping[str, Any]) -> dict[str, str | None]:
        tuning = (body.get("spec") or {}).get("tuning") or {}
        if (mode := tuning.get("mode", "Recommend")) != "Approve":
            way = (
                "the operator needs no approval"
                if mode == "Automatic"
                else f"set spec.tuning.mode to Approve, or apply `vllm-autotuner export {_named(body)}`"
            )
            raise CommandError(f"{_key(body)} is in mode {mode}: {way}")
        return {APPROVE: _recommendation(body, reviewed=identity)["id"]}

    body = _annotated(name, tell, where=cluster)
    advice = _recommendation(body, reviewed=None)
    held = advice.get("heldBy")
    _say(
        f"{_key(body)}: approved {_values(advice)}. "
        + (f"It begins when this no longer holds: {held}." if held else "It begins within a tick (15 s).")
        + f" Watch it: vllm-autotuner explain {_named(body)}"
    )


@with_groups
def reject(name: Name, *, identity: ReviewedId = None, wait: Wait = WAIT, cluster: ClusterOptions) -> None:
    """Reject the current recommendation of a service: its value is not tried."""
    body = _annotated(name, lambda body: {REJECT: _recommendation(body, reviewed=identity)["id"]}, where=cluster)
    advice = _recommendation(body, reviewed=None)
    _answer(body, "reject", advice["id"], done=f"rejected {_values(advice)}", wait=wait, where=cluster)


@with_groups
def rollback(name: Name, *, wait: Wait = WAIT, cluster: ClusterOptions) -> None:
    """Roll back the change under way; after a failed rollback, try the last known good configuration once more."""
    once = f"{time.time():.3f}"
    body = _annotated(name, lambda body: {ROLLBACK: once}, where=cluster)
    change = (body.get("status") or {}).get("activeChange")
    what = "" if change is None else f" of {change['knob']}={change['toValue']}"
    _answer(body, "rollback", once, done=f"rollback{what} requested", wait=wait, where=cluster)


@with_groups
def pause(name: Name, *, cluster: ClusterOptions) -> None:
    """Pause tuning of a service.

    A change that is paused for 24 hours is rolled back; one in its bake is kept if its pods are ready.
    """
    body = _annotated(name, lambda body: {PAUSE: "true"}, where=cluster)
    _say(
        f"{_key(body)}: paused. Serving goes on, with the replicas of now; "
        f"end it with `vllm-autotuner resume {_named(body)}`"
    )


@with_groups
def resume(name: Name, *, cluster: ClusterOptions) -> None:
    """End the pause of a service."""
    body = _annotated(name, lambda body: {PAUSE: None}, where=cluster)
    if (body.get("spec") or {}).get("paused"):
        raise failed(f"{_key(body)} is still paused by spec.paused: set it to false where the object is kept", code=1)
    _say(f"{_key(body)}: tuning resumes")


@with_groups
def retry(name: Name, *, wait: Wait = WAIT, cluster: ClusterOptions) -> None:
    """Allow rejected values again, end the cooldown, close the circuit breaker, resume a contested workload."""
    once = f"{time.time():.3f}"
    body = _annotated(name, lambda body: {RETRY: once}, where=cluster)
    done = "rejected values may be tried again; cooldown and circuit breaker are cleared"
    _answer(body, "retry", once, done=done, wait=wait, where=cluster)


def _annotated(name: str, tell: Tell, *, where: ClusterOptions) -> Mapping[str, Any]:
    """Read the object, set the annotations that `tell` makes of it, and return it as it was read."""
    try:
        return asyncio.run(_annotate(name, tell, where=where))
    except CommandError as error:
        raise failed(error, code=1) from None


async def _annotate(name: str, tell: Tell, *, where: ClusterOptions) -> Mapping[str, Any]:
    body = await read_service(name, where=where)
    # By the namespace that was read, should the context change in between.
    await annotate_service(name, tell(body), where=replace(where, namespace=body["metadata"]["namespace"]))
    return body


def _answer(body: Mapping[str, Any], kind: str, nonce: str, *, done: str, wait: float, where: ClusterOptions) -> None:
    """Wait until the operator has handled the request, and show what it said."""
    metadata = body["metadata"]
    place = replace(where, namespace=metadata["namespace"])
    try:
        handled = asyncio.run(_handled(metadata["name"], kind, nonce, wait=wait, where=place))
    except CommandError as error:
        raise failed(error, code=1) from None
    if handled is None:
        requested = f"{_key(body)}: {kind} requested; the operator has not answered within {wait:g} s"
        hint = f"Is it running? vllm-autotuner explain {_named(body)} shows its answer"
        raise failed(f"{requested}. {hint}", code=NO_ANSWER, kind="no answer")
    if answer := handled.get("answer"):
        raise failed(f"{_key(body)}: {answer}", code=1, kind="without effect")
    _say(f"{_key(body)}: {done}")


async def _handled(name: str, kind: str, nonce: str, *, wait: float, where: ClusterOptions) -> Mapping[str, Any] | None:
    latest = time.monotonic() + wait
    while True:
        status = (await read_service(name, where=where)).get("status") or {}
        for request in status.get("handledRequests") or []:
            if (request.get("kind"), request.get("nonce")) == (kind, nonce):
                return dict(request)
        if time.monotonic() + LOOK_EVERY > latest:
            return None
        await asyncio.sleep(LOOK_EVERY)


def _recommendation(body: Mapping[str, Any], *, reviewed: str | None) -> Mapping[str, Any]:
    """The current recommendation. Raises CommandError when there is none, or not the reviewed one."""
    advice = (body.get("status") or {}).get("recommendation")
    if not advice:
        raise CommandError(f"{_key(body)} has no recommendation: see `vllm-autotuner explain {_named(body)}`")
    if reviewed is not None and advice["id"] != reviewed:
        raise CommandError(f"the recommendation is now {_values(advice)}, not {reviewed}")
    return dict(advice)


def _values(advice: Mapping[str, Any]) -> str:
    return f"{told_advice(advice)} (id {advice['id']})"


def _key(body: Mapping[str, Any]) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def _named(body: Mapping[str, Any]) -> str:
    """The service as a command takes it, from whichever namespace the shell is in."""
    return f"{body['metadata']['name']} -n {body['metadata']['namespace']}"


def _say(text: str) -> None:
    answers().print(Text(printable(text)), soft_wrap=True)
