"""What the check says about the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.checks.cluster import check_folder, check_room, compare_nodes
from podium.config import load_config
from podium.single_controller.runtime import ensure_ray, shutdown_ray
from podium.single_controller.survey import NodeFacts, look_around


def test_a_node_with_another_version_a_closed_port_or_no_answer_is_a_problem() -> None:
    here, port_error = look_around()
    assert not port_error
    nodes = [
        NodeFacts("10.0.0.1", here),
        NodeFacts("10.0.0.2", here | {"torch": "2.9.0"}),
        NodeFacts("10.0.0.3", here, port_error="Permission denied"),
        NodeFacts("10.0.0.4", error="the node left"),
    ]
    same, version, port, silent = compare_nodes(nodes)
    assert same.level == "ok"
    assert version.level == "problem" and "torch 2.9.0 (here " in version.text and "pip install" in version.fix
    assert port.level == "problem" and "Permission denied" in port.text
    assert silent.level == "problem" and "the node left" in silent.text


def test_several_nodes_are_told_that_they_need_a_common_disk(tmp_path: Path) -> None:
    words = [f"trainer.default_local_dir={tmp_path}", "trainer.runtime=ray"]
    for nodes, wanted in ((1, ["ok"]), (2, ["ok", "note"])):
        config = load_config(None, words)
        config.trainer.nnodes = nodes
        found = list(check_folder(config, model_gb=0.0))
        assert [finding.level for finding in found] == wanted
    assert "on a disk that all nodes see" in found[-1].fix


@pytest.mark.slow
def test_a_cluster_is_asked_for_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("podium.single_controller.survey.SURVEY_TIMEOUT_S", 300.0)  # a busy machine answers late
    ensure_ray(num_cpus=2)
    try:
        monkeypatch.setenv("RAY_ADDRESS", "the one we are connected to")
        monkeypatch.setattr("podium.single_controller.runtime.shutdown_ray", lambda: None)
        words = ["trainer.runtime=ray", "trainer.device=cpu"]
        found = list(check_room(load_config(None, words)))
        assert [finding.level for finding in found] == ["ok", "ok"]
        assert "2 CPUs (2 free)" in found[0].text and "the same versions as here" in found[1].text
        (problem,) = check_room(load_config(None, [*words, "trainer.n_gpus_per_node=64", "data.train_batch_size=64"]))
        assert problem.level == "problem" and "64 CPUs together on one node" in problem.text
    finally:
        shutdown_ray()
