import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.engine.redaction import HIDDEN, redacted
from vllm_autotuner.engine.startup_log import parse_startup_failure


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve m --api-key s3cret --port 1", f"vllm serve m --api-key {HIDDEN} --port 1"),
        ("--api-key=s3cret", f"--api-key={HIDDEN}"),
        ("--api_key 's3 cret' x", f"--api_key {HIDDEN} x"),
        ("args: {'api_key': ['s3cret', 'b'], 'port': 1}", f"args: {{'api_key': {HIDDEN}, 'port': 1}}"),
        ('{"HF_TOKEN": "s3cret"}', f'{{"HF_TOKEN": {HIDDEN}}}'),
        ("HF_TOKEN=s3cret vllm", f"HF_TOKEN={HIDDEN} vllm"),
        ("password: s3cret", f"password: {HIDDEN}"),
        ("cannot reach https://user:s3cret@hub.example/x", f"cannot reach https://{HIDDEN}@hub.example/x"),
        ("token hf_AbCdEfGhIjKlMnOp is invalid", f"token {HIDDEN} is invalid"),
        ("Authorization: Bearer s3cret", f"Authorization: Bearer {HIDDEN}"),
        ("key sk-proj-abcdefghijklmnop", f"key {HIDDEN}"),
        ("--api-key sk-0123456789abcdef HF_TOKEN=hf_0123456789abcdef", f"--api-key {HIDDEN} HF_TOKEN={HIDDEN}"),
        ("the token limit is 8192", "the token limit is 8192"),
        ("max_tokens must be at least 1", "max_tokens must be at least 1"),
        ("error: unrecognized arguments: --max-num-seq", "error: unrecognized arguments: --max-num-seq"),
    ],
)
def test_hides_what_looks_like_a_credential(text: str, expected: str) -> None:
    assert redacted(text) == expected


@pytest.mark.parametrize(
    "log",
    [
        "vllm: error: unrecognized arguments: --api-kee s3cret --api-key s3cret",
        "OSError: 401 for https://user:s3cret@hub.example/model with hf_s3cretAbCdEf",
        "ValueError: cannot connect to redis://:s3cret@host:6379",
    ],
)
def test_no_credential_of_a_log_reaches_a_status(log: str) -> None:
    found = parse_startup_failure(log)
    assert found is not None
    assert HIDDEN in found.message
    assert "--api-key s3cret" not in found.message
    assert "s3cret@" not in found.message


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(redacted(text), str)
