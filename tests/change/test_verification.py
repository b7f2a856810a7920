"""Whether the running engines really have the value."""

from dataclasses import dataclass

import pytest

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.change.verification import Confirmed, NotEffective, Undecided, Witness, verify
from vllm_autotuner.engine.flags import EngineFlags, flags_from
from vllm_autotuner.observation.observation import KVPool

WANTED = EngineKnobs(max_num_seqs=96, max_model_len=4096, kv_cache_dtype="fp8", tensor_parallel_size=2)
FLAGS = EngineFlags(max_num_seqs=96, max_model_len=4096, kv_cache_dtype="fp8", tensor_parallel_size=2)


def witness(pod: str = "chat-0", *, asked: EngineFlags = FLAGS, started: EngineFlags | None = FLAGS) -> Witness:
    return Witness(pod=pod, asked=asked, started_with=started)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    witnesses: tuple[Witness, ...]
    answer: type[Confirmed] | type[NotEffective] | type[Undecided]
    says: str


OLD = EngineFlags(max_num_seqs=64)

CASES = (
    Case(id="asked and started", witnesses=(witness(),), answer=Confirmed, says="1 pod reports maxNumSeqs=96"),
    Case(id="every pod", witnesses=(witness(), witness("chat-1")), answer=Confirmed, says="2 pods"),
    Case(id="no ready pod", witnesses=(), answer=Undecided, says="no ready pod"),
    Case(
        id="the arguments say otherwise",
        witnesses=(witness(asked=OLD),),
        answer=NotEffective,
        says="chat-0 has maxNumSeqs=64 in its arguments, not 96",
    ),
    Case(
        id="an entrypoint that overrides the flag",
        witnesses=(witness(started=OLD),),
        answer=NotEffective,
        says="chat-0 reports maxNumSeqs=64 at start-up, not 96",
    ),
    Case(
        id="an engine that never saw the flag",
        witnesses=(witness(started=EngineFlags()),),
        answer=NotEffective,
        says="chat-0 reports maxNumSeqs=None at start-up",
    ),
    Case(
        id="a log that is gone",
        witnesses=(witness(started=None),),
        answer=Undecided,
        says="log of chat-0 are not readable",
    ),
    Case(
        id="unreadable arguments",
        witnesses=(witness(), Witness(pod="chat-1", asked=None, started_with=None)),
        answer=Undecided,
        says="arguments or start-up log of chat-1",
    ),
    Case(
        id="one of two logs is gone",
        witnesses=(witness(), witness("chat-1", started=None)),
        answer=Undecided,
        says="log of chat-1",
    ),
    Case(
        id="a contradiction counts more than a silence",
        witnesses=(witness(started=None), witness("chat-1", started=OLD)),
        answer=NotEffective,
        says="chat-1",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_witnesses(case: Case) -> None:
    found = verify(Knob.MAX_NUM_SEQS, WANTED, witnesses=case.witnesses)
    assert isinstance(found, case.answer)
    assert case.says in (found.how if isinstance(found, Confirmed) else found.why)


@pytest.mark.parametrize("knob", [knob for knob in Knob if knob is not Knob.REPLICAS])
def test_each_knob_of_the_engine_is_compared(knob: Knob) -> None:
    assert isinstance(verify(knob, WANTED, witnesses=[witness()]), Confirmed)
    assert isinstance(verify(knob, WANTED, witnesses=[witness(started=EngineFlags())]), NotEffective)
    assert isinstance(verify(knob, EngineKnobs(), witnesses=[witness()]), NotEffective)


@pytest.mark.parametrize(
    ("knob", "wanted", "pool", "agrees"),
    [
        pytest.param(Knob.KV_CACHE_DTYPE, {"kv_cache_dtype": "fp8"}, KVPool(cache_dtype="fp8_e4m3"), True, id="fp8"),
        pytest.param(Knob.KV_CACHE_DTYPE, {"kv_cache_dtype": "fp8"}, KVPool(cache_dtype="auto"), False, id="not fp8"),
        pytest.param(
            Knob.KV_CACHE_DTYPE, {"kv_cache_dtype": "bfloat16"}, KVPool(cache_dtype="fp8"), False, id="still fp8"
        ),
        pytest.param(
            Knob.KV_CACHE_DTYPE, {"kv_cache_dtype": "auto"}, KVPool(cache_dtype="fp8"), True, id="auto is the model's"
        ),
        pytest.param(Knob.KV_CACHE_DTYPE, {"kv_cache_dtype": "fp8"}, KVPool(), True, id="not exported"),
        pytest.param(Knob.MAX_MODEL_LEN, {"max_model_len": 4096}, KVPool(max_model_len=4100), True, id="rounded"),
        pytest.param(Knob.MAX_MODEL_LEN, {"max_model_len": 4096}, KVPool(max_model_len=8192), False, id="as before"),
        pytest.param(Knob.MAX_NUM_SEQS, {"max_num_seqs": 96}, KVPool(max_model_len=8192), True, id="not about seats"),
    ],
)
def test_what_the_engine_exports_is_a_witness(
    knob: Knob, wanted: dict[str, object], pool: KVPool, agrees: bool
) -> None:
    flags = flags_from(wanted)
    given = Witness(pod="chat-0", asked=flags, started_with=flags, pool=pool)
    found = verify(knob, EngineKnobs.model_validate(wanted), witnesses=[given])
    assert isinstance(found, Confirmed if agrees else NotEffective)
