"""An engine whose KV cache does not hold one request of max-model-len: told first, then healed within the bounds.

Apart from the tests, because two engines play it: the simulated one in each run (`test_main_job`), and the real vLLM
where it is installed (`test_real_changes`).
"""

from typing import Final

from e2e.side_by_side import PATIENCE, Play
from e2e.stage import MODEL, condition, plain_client

__all__ = ["healed_by_a_shorter_context"]

TOO_LONG: Final = 2048
FITS: Final = 1280
"""Tokens. Of 12 blocks of 128 tokens the engine keeps one, and a length is a multiple of 256."""
POOL: Final = ("--num-gpu-blocks-override=12", "--block-size=128", "--gpu-memory-utilization=0.2")
"""The last is for the real engine on a CPU, which does not start where others use the memory that it may take."""
WARNING: Final = f"Requests of more than {FITS} tokens would be rejected."


async def healed_by_a_shorter_context(play: Play, name: str, *, seconds: float = PATIENCE) -> None:
    """Play it. `seconds`: for anything that needs an engine to start."""
    tuning = {"mode": "Recommend", "maxNumSeqs": None, "maxModelLen": {"min": 256, "max": TOO_LONG}}
    engine = {"maxNumSeqs": 4, "maxModelLen": TOO_LONG, "args": list(POOL)}
    await play.apply(name, engine=engine, tuning=tuning)
    status = await play.until(
        name, "advice that heals it", lambda found: "recommendation" in found and found["diagnosis"], seconds=seconds
    )
    assert status["diagnosis"]["class"] == "StartupFailure"
    assert "To serve at least one request with the model's max seq len" in status["diagnosis"]["message"]
    advice = status["recommendation"]
    assert (advice["knob"], advice["current"], advice["recommended"]) == ("maxModelLen", str(TOO_LONG), str(FITS))
    assert WARNING in await play.explained(name)
    assert not play.monitor.states(name)

    await play.edit(name, tuning={"mode": "Automatic"})
    change = await play.change_is(name, "Provisioning", seconds=seconds)
    assert (change["knob"], change["toValue"], change["strategy"]) == ("maxModelLen", str(FITS), "InPlace")
    entry = await play.finished(name, seconds=seconds)
    assert (entry["outcome"], entry["toValue"]) == ("Succeeded", str(FITS)), entry
    status = await play.until(name, "Ready", lambda found: condition(found, "Ready") == "True", seconds=seconds)
    assert status["effective"]["maxModelLen"] == FITS

    (pod,) = await play.stage.ready_pods(name)
    async with plain_client(f"http://{pod['status']['podIP']}:8000") as client:
        body = {"model": MODEL, "max_tokens": 4, "ignore_eos": True}
        served = await client.post("/v1/completions", json=body | {"prompt": [7] * 100}, timeout=60)
        assert (served.status_code, served.json()["usage"]["completion_tokens"]) == (200, 4)
        refused = await client.post("/v1/completions", json=body | {"prompt": [7] * (FITS + 1)}, timeout=60)
        assert refused.status_code == 400, refused.text
