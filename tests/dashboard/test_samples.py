"""Samples: pages, filters, orders, groups, and dumps that are not as they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dashboard_runs import sample, samples, token_sample, write_lines

from podium.dashboard.samples import Query, SampleFile, excerpt, histogram


@pytest.fixture
def dump(tmp_path: Path) -> SampleFile:
    records = samples(3, rows=3, per_prompt=4)
    records[5]["score"] = None
    records[7] |= {"data_source": "other", "output": "LONG " * 500, "stop_reason": "aborted"}
    write_lines(tmp_path / "3.jsonl", records)
    return SampleFile(tmp_path / "3.jsonl")


def test_a_plain_page_is_in_file_order_and_parses_only_its_own_lines(dump: SampleFile) -> None:
    lines = dump.select(Query())
    assert [row["line"] for row in dump.page(lines[2:5])] == [2, 3, 4]
    assert dump._rows is None


def test_samples_sort_by_score_with_the_unscored_last(dump: SampleFile) -> None:
    high, low = dump.select(Query(sort="score", descending=True)), dump.select(Query(sort="score"))
    assert high[-1] == low[-1] == 5
    scores = [row.score for row in dump.rows()]
    assert [scores[line] for line in high[:-1]] == sorted((s for s in scores if s is not None), reverse=True)


def test_samples_sort_by_length_and_source(dump: SampleFile) -> None:
    assert dump.select(Query(sort="length", descending=True))[0] == 7
    assert dump.select(Query(sort="source", descending=True))[0] == 7
    assert dump.select(Query(sort="order", descending=True))[0] == 11


def test_filters_narrow_a_list(dump: SampleFile) -> None:
    assert dump.select(Query(source="other")) == [7]
    assert dump.select(Query(stop_reason="aborted")) == [7]
    assert dump.select(Query(scored=False)) == [5]
    assert dump.select(Query(text="long LONG")) == [7]
    assert dump.select(Query(uid="train:addition, row 2")) == [8, 9, 10, 11]
    assert all(dump.rows()[line].score == 1 for line in dump.select(Query(min_score=0.5)))
    assert all(dump.rows()[line].score == 0 for line in dump.select(Query(max_score=0.5)))


def test_groups_hold_the_samples_of_a_prompt(dump: SampleFile) -> None:
    groups = dump.groups(Query(), "order", descending=False)
    assert [group["size"] for group in groups] == [4, 4, 4]
    assert [entry["line"] for entry in groups[1]["samples"]] == [4, 5, 6, 7]
    assert groups[0]["mean"] == pytest.approx(0.5)
    assert groups[0]["spread"] == pytest.approx(0.5)
    assert dump.lines_of_prompt("train:addition, row 1") == [4, 5, 6, 7]
    assert [group["uid"] for group in dump.groups(Query(source="other"), "mean", True)] == ["train:addition, row 1"]


def test_facets_count_what_there_is(dump: SampleFile) -> None:
    facets = dump.facets()
    assert (facets["total"], facets["unscored"], facets["num_prompts"]) == (12, 1, 3)
    assert facets["sources"] == {"addition": 11, "other": 1}
    assert sum(facets["histogram"]["counts"]) == 11


def test_a_list_shows_excerpts_and_one_sample_is_whole(dump: SampleFile) -> None:
    assert len(dump.page([7])[0]["output"]) < 700
    whole = dump.record(7)
    assert whole is not None
    assert whole["output"] == "LONG " * 500


def test_a_half_written_or_damaged_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text(json.dumps(sample(1, 0)) + "\nbroken\n" + json.dumps(sample(1, 1)) + '\n{"input": "half')
    dump = SampleFile(path)
    assert dump.num_samples == 3
    assert [row["line"] for row in dump.page(dump.select(Query()))] == [0, 2]
    assert dump.select(Query(sort="score")) == [0, 2]
    assert dump.record(3) is None


def test_an_empty_dump_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("")
    dump = SampleFile(tmp_path / "1.jsonl")
    assert list(dump.select(Query())) == []
    assert dump.facets()["histogram"] is None


def test_values_of_unexpected_types_do_not_break_a_page(tmp_path: Path) -> None:
    odd = {"input": ["a"], "output": None, "score": "high", "uid": 7, "data_source": {"a": 1}, "gts": [1, 2]}
    write_lines(tmp_path / "1.jsonl", [odd, {}, {"score": 10**400}, {"score": True}])
    dump = SampleFile(tmp_path / "1.jsonl")
    assert [row["score"] for row in dump.page([0, 1, 2, 3])] == [None] * 4
    assert dump.select(Query(sort="score")) == [0, 1, 2, 3]


def test_length_is_in_characters_and_tokens_are_counted_where_the_dump_has_them() -> None:
    record = token_sample(1, 1)
    assert (excerpt(0, record)["length"], excerpt(0, record)["num_tokens"]) == (17, 7)
    assert (excerpt(0, sample(1, 1, output="abc"))["length"], excerpt(0, sample(1, 1))["num_tokens"]) == (3, None)


def test_a_histogram_has_a_bar_for_each_of_few_scores() -> None:
    assert histogram([0.0, 1.0, 1.0]) == {"edges": [0.0, 0.5, 1.0], "counts": [1, 2]}
    assert histogram([2.0, 2.0]) == {"edges": [2.0, 2.0], "counts": [2]}
