"""The run folder: what a step leaves behind, and what a resumed run keeps of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from podium.config import load_config
from podium.errors import RunFolderBusy
from podium.metric import Metric
from podium.tracking import RunLog, Sample, read_events, read_metrics, read_samples


def test_a_step_is_one_line_with_the_step_first(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.begin(None)
        log.log(0, {"val/test_score/addition": 0.25})
        log.log(1, {"critic/score/mean": Metric.mean(6, 8), "actor/entropy": 1.5})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[1] == '{"step": 1, "actor/entropy": 1.5, "critic/score/mean": 0.75}'
    assert [record["step"] for record in read_metrics(tmp_path)] == [0, 1]


def test_non_finite_metrics_are_null_and_noted(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        numbers = log.log(4, {"a": float("nan"), "b": float("inf"), "c": 1.0})
    assert numbers["b"] == float("inf")
    assert read_metrics(tmp_path) == [{"step": 4, "a": None, "b": None, "c": 1.0}]
    (event,) = read_events(tmp_path)
    assert (event["kind"], event["step"], event["metrics"]) == ("non_finite_metrics", 4, {"a": "nan", "b": "inf"})


def test_what_is_known_of_a_step_later_joins_its_line_before_the_rest(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.log(1, {"a": 1.0})
        log.log(2, {"a": 2.0})
        log.log(2, {"val/x": 3.0})
        log.log(2, {"timing_s/save_checkpoint": 0.5})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines == ['{"step": 1, "a": 1.0}', '{"step": 2, "timing_s/save_checkpoint": 0.5, "val/x": 3.0, "a": 2.0}']


def test_a_resumed_run_completes_the_line_of_the_step_it_goes_on_from(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.log(1, {"a": 1.0})
        log.log(2, {"a": 2.0})
    with RunLog(tmp_path) as log:
        log.begin(resumed_step=1)
        log.log(1, {"val/x": 3.0})
        log.log(2, {"a": 2.5})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "val/x": 3.0, "a": 1.0}, {"step": 2, "a": 2.5}]


def test_several_lines_of_one_step_are_merged_by_the_reader(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1.0}\n{"step": 1, "b": 2.0}\n')
    assert read_metrics(tmp_path) == [{"step": 1, "a": 1.0, "b": 2.0}]


def test_a_resumed_run_has_the_record_of_an_unbroken_one(tmp_path: Path) -> None:
    def train(log: RunLog, steps: range) -> None:
        for step in steps:
            log.log(step, {"reward": step / 10})
            log.dump_rollouts(step, [Sample("q", str(step), 1.0)])

    with RunLog(tmp_path / "golden") as golden:
        golden.begin(None)
        train(golden, range(1, 9))
    with RunLog(tmp_path / "broken") as broken:
        broken.begin(None)
        train(broken, range(1, 7))
    with (tmp_path / "broken" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "rew')
    with RunLog(tmp_path / "broken") as resumed:
        resumed.begin(4)
        assert sorted(path.name for path in (tmp_path / "broken" / "rollouts").iterdir())[-1] == "4.jsonl"
        train(resumed, range(5, 9))
    for name in ("metrics.jsonl", "rollouts/4.jsonl", "rollouts/8.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "golden" / name).read_bytes()
    assert [event["kind"] for event in read_events(tmp_path / "broken")] == ["started", "resumed"]


def test_a_new_run_in_a_used_folder_sets_the_old_record_aside(tmp_path: Path) -> None:
    for seed in range(3):
        with RunLog(tmp_path) as log:
            log.begin(None)
            log.log(1, {"seed": seed})
            log.dump_validation(1, [Sample("q", str(seed), 0.0)])
    assert read_metrics(tmp_path) == [{"step": 1, "seed": 2.0}]
    assert [read_metrics(tmp_path / "previous" / name)[0]["seed"] for name in ("1", "2")] == [0.0, 1.0]
    assert read_samples(tmp_path / "previous" / "2" / "validation", 1)[0]["output"] == "1"
    assert read_events(tmp_path)[0]["previous_record"].endswith("previous/2")


def test_opening_a_folder_changes_nothing(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.begin(None)
        log.log(1, {"a": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    RunLog(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert not (tmp_path / "previous").exists()


def test_a_dump_has_the_named_keys_first_and_what_the_reward_returned(tmp_path: Path) -> None:
    sample = Sample(
        input="1+1=",
        output="2",
        score=1.0,
        gts="2",
        uid="addition-7",
        data_source="addition",
        stop_reason="eos",
        policy_version=3,
        extra={"acc": 1.0, "score": 9.0},
    )
    with RunLog(tmp_path) as log:
        path = log.dump_rollouts(12, [sample, Sample("x", "y", None)])
    assert path == tmp_path / "rollouts" / "12.jsonl"
    first, second = read_samples(tmp_path / "rollouts", 12)
    assert list(first) == [
        *("input", "output", "gts", "score", "step"),
        *("uid", "data_source", "stop_reason", "turns", "policy_version", "acc"),
    ]
    assert (first["score"], first["step"], first["acc"]) == (1.0, 12, 1.0)
    assert second["score"] is None


def test_the_config_in_the_folder_is_a_recipe_and_dumps_go_where_it_says(tmp_path: Path) -> None:
    words = [f"trainer.default_local_dir={tmp_path / 'run'}", f"trainer.rollout_data_dir={tmp_path / 'elsewhere'}"]
    config = load_config(None, words)
    with RunLog.from_config(config) as log:
        assert load_config(log.save_config(config)) == config
        log.dump_rollouts(1, [Sample("a", "b", 0.5)])
        log.dump_validation(1, [Sample("a", "b", 0.5)])
    assert json.loads((tmp_path / "elsewhere" / "1.jsonl").read_text())["score"] == 0.5
    assert (tmp_path / "run" / "validation" / "1.jsonl").exists()


def test_readers_of_a_folder_that_is_not_there_read_nothing(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none") == []
    assert read_events(tmp_path / "none") == []


def test_a_folder_that_another_process_writes_to_is_refused_and_left_alone(tmp_path: Path) -> None:
    code = "import sys; from podium.tracking import RunLog; log = RunLog(sys.argv[1]); log.begin(None); input('on\\n')"
    words = [sys.executable, "-uc", code, str(tmp_path)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == "on\n"
        before = (tmp_path / "events.jsonl").read_bytes()
        with pytest.raises(RunFolderBusy, match=r"another process trains in .*trainer\.experiment_name"):
            RunLog(tmp_path)
        assert (tmp_path / "events.jsonl").read_bytes() == before
    finally:
        other.communicate("\n", timeout=60)
    RunLog(tmp_path).close()


def test_one_process_may_open_a_folder_again(tmp_path: Path) -> None:
    with RunLog(tmp_path), RunLog(tmp_path) as again:
        again.begin(None)
        again.log(1, {"a": 1.0})
    assert read_metrics(tmp_path) == [{"step": 1, "a": 1.0}]


def test_what_a_killed_process_had_half_written_is_removed(tmp_path: Path) -> None:
    left = [tmp_path / ".metrics.jsonl.4711", tmp_path / ".config.yaml.4711", tmp_path / "rollouts" / ".3.jsonl.4711"]
    theirs = [tmp_path / ".notes", tmp_path / ".v1.2.txt", tmp_path / "rollouts" / "3.jsonl"]
    (tmp_path / "rollouts").mkdir()
    for path in (*left, *theirs):
        path.write_text("{")
    RunLog(tmp_path).close()
    assert [path for path in left if path.exists()] == [] and all(path.exists() for path in theirs)
