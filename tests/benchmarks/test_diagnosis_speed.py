import json

import pytest

from benchmarks import diagnosis_speed


def test_questions_do_not_grow_with_the_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnosis_speed.main(["--services", "1", "7", "--json"]) == 0
    one, seven = json.loads(capsys.readouterr().out)["fleets"]
    assert one["questions"] == seven["questions"] > 0
    assert (one["services"], seven["services"]) == (1, 7)
    assert one["named"] == seven["named"] == ["ConcurrencyCapped"]


def test_no_service_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        diagnosis_speed.main(["--services", "0"])
    assert "--services must be at least 1" in capsys.readouterr().err
