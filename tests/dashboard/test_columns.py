"""Columns picked out of raw lines equal those of parsed lines, whatever the file looks like and however it grows."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
from dashboard_runs import METRICS, metrics_line, write_lines, write_long_metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.dashboard.columns import MetricColumns
from podium.tracking import RunLog, read_metrics

names = st.sampled_from(["a", "b", "a/b", "ä/ü", 'quo"te', "critic/score/mean", "b:", "step/x"])
values = st.one_of(st.none(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False))
lines = st.lists(st.tuples(st.integers(0, 9), st.dictionaries(names, values, max_size=5)), max_size=30)


@given(lines)
@settings(deadline=None)
def test_columns_equal_those_of_the_run_log(written: list[tuple[int, dict[str, float | None]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        write_lines(path, [{"step": step, **record} for step, record in written])
        columns = MetricColumns()
        columns.refresh(path)
        expected = read_metrics(folder)
        assert columns.names == {name for record in expected for name in record} - {"step"}
        for name, (steps, found) in columns.read(path, sorted(columns.names)).items():
            wanted = [(record["step"], record[name]) for record in expected if name in record]
            assert steps.tolist() == [step for step, _ in wanted]
            same = [math.isnan(a) if b is None else a == b for a, (_, b) in zip(found.tolist(), wanted, strict=True)]
            assert all(same)


def test_a_growing_file_is_read_on(tmp_path: Path) -> None:
    path, columns = tmp_path / "metrics.jsonl", MetricColumns()
    write_lines(path, [metrics_line(step, 10) for step in range(1, 4)])
    assert columns.read(path, ["actor/entropy"])["actor/entropy"][0].tolist() == [1, 2, 3]
    write_lines(path, [metrics_line(4, 10) | {"new/one": 5.0}], mode="a")
    both = columns.read(path, ["actor/entropy", "new/one"])
    assert both["actor/entropy"][0].tolist() == [1, 2, 3, 4]
    assert both["new/one"][0].tolist() == [4]


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path, columns = tmp_path / "metrics.jsonl", MetricColumns()
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2')
    assert columns.read(path, ["a"])["a"][0].tolist() == [1]
    with path.open("a") as file:
        file.write("5}\n")
    assert columns.read(path, ["a"])["a"][1].tolist() == [1, 25]


def test_a_resumed_run_that_cut_its_metrics_is_read_again(tmp_path: Path) -> None:
    path, columns = tmp_path / "metrics.jsonl", MetricColumns()
    write_lines(path, [{"step": step, "a": step} for step in range(10)])
    assert len(columns.read(path, ["a"])["a"][0]) == 10
    write_lines(tmp_path / "other", [{"step": step, "a": -step} for step in range(4)])
    (tmp_path / "other").replace(path)
    assert columns.read(path, ["a"])["a"][1].tolist() == [0, -1, -2, -3]


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    path, columns = tmp_path / "metrics.jsonl", MetricColumns()
    path.write_text('{"step": 1, "a": 1}\ngarbage\n[]\n\n{"step": "x", "a": 9}\n{"step": 2, "a": 2}\n')
    assert columns.read(path, ["a"])["a"][1].tolist() == [1, 2]


def test_what_is_known_is_told_without_reading_and_nothing_else_is(tmp_path: Path) -> None:
    path, columns = tmp_path / "metrics.jsonl", MetricColumns()
    write_lines(path, [{"step": 1, "a": 1, "b": 2}])
    assert columns.peek(path, ["a"]) is None
    columns.read(path, ["a"])
    assert columns.peek(path, ["b"]) is None
    known = columns.peek(path, ["a", "no such"])
    assert known is not None
    assert known["a"][1].tolist() == [1]
    write_lines(path, [{"step": 2, "a": 5, "b": 2}], mode="a")
    assert columns.peek(path, ["a"]) is None


def test_an_unknown_metric_has_no_points(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_lines(path, [{"step": 1, "a": 1}])
    assert MetricColumns().read(path, ["b"])["b"][0].tolist() == []


def test_a_record_merges_the_lines_of_its_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_lines(path, [{"step": 1, "a": 1}, {"step": 2, "a": 2}, {"step": 2, "b": 3}])
    assert MetricColumns().record(path, 2) == {"step": 2, "a": 2, "b": 3}
    assert MetricColumns().record(path, 7) == {}


def test_a_name_that_appears_late_in_a_long_file_is_found(tmp_path: Path) -> None:
    path, columns = tmp_path / "metrics.jsonl", MetricColumns()
    write_long_metrics(path, 5000)
    write_lines(path, [{"step": 5000, "zz/last": 1.0}], mode="a")
    columns.refresh(path)
    assert columns.names == {*METRICS, "zz/last"}
    steps, found = columns.read(path, ["critic/score/mean"])["critic/score/mean"]
    parsed = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    assert np.array_equal(found, [record["critic/score/mean"] for record in parsed])
    assert steps.tolist() == list(range(5000))


def test_a_last_line_that_is_completed_is_read_again_and_alone(tmp_path: Path) -> None:
    columns, path = MetricColumns(), tmp_path / "metrics.jsonl"
    with RunLog(tmp_path) as log:
        for step in range(1, 4):
            log.log(step, {"a": float(step)})
        assert columns.read(path, ["a"])["a"][0].tolist() == [1, 2, 3]
        num_lines = columns.num_lines
        log.log(3, {"val/x": 0.5})
        log.log(4, {"a": 4.0})
        curves = columns.read(path, ["a", "val/x"])
    assert columns.num_lines == num_lines + 2, "the completed line and the new one"
    assert [values.tolist() for values in curves["a"]] == [[1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0]]
    assert [values.tolist() for values in curves["val/x"]] == [[3], [0.5]]
    assert columns.record(path, 3) == {"step": 3, "val/x": 0.5, "a": 3.0}
