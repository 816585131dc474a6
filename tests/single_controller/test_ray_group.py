"""Groups of Ray workers: dispatch, futures, colocation, peers, and equality with the group in this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from controller_light import Peer
from controller_toys import Critic, Halves, Toy, make_batch, token_batch

from podium.errors import WorkerError
from podium.protocol import DataProto
from podium.single_controller import (
    LocalWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
    ray_group,
)


def column(batch: DataProto, key: str) -> list[Any]:
    return list(batch.non_tensor_batch[key])


def test_every_worker_gets_the_same_arguments(pair: RayWorkerGroup) -> None:
    answers = pair.where("a", b=[1, 2])
    assert [(role, rank, size) for role, rank, size, *_ in answers] == [("toy", 0, 2), ("toy", 1, 2)]
    assert all(args == ("a",) and kwargs == {"b": [1, 2]} for *_, args, kwargs in answers)
    assert len({pid for _, _, _, pid, _, _ in answers}) == 2
    assert [place.pid for place in pair.placements] == [answer[3] for answer in answers]


def test_only_rank_zero_is_asked(pair: RayWorkerGroup) -> None:
    assert pair.ask_first("why?") == "rank 0: why?"
    assert pair.execute_rank_zero("not_registered", 4) == 4
    assert pair.execute_all("not_registered", 4) == [4, 5]


@pytest.mark.parametrize("num_rows", [5, 2, 1, 0])
def test_uneven_tiny_and_empty_batches_are_split_and_joined_in_order(pair: RayWorkerGroup, num_rows: int) -> None:
    batch = make_batch(num_rows)
    result = pair.scaled(batch, offset=1.0)
    assert len(result) == num_rows
    assert torch.equal(result.batch["y"], batch.batch["x"] * 2 + 1)
    assert column(result, "id") == column(batch, "id")
    assert result.meta_info["metrics"]["rows"].result() == num_rows
    assert pair.update(batch)["rows"].result() == num_rows


def test_each_worker_receives_only_its_rows_and_each_part_is_put_once(
    pair: RayWorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = ray_group.ray.put
    sizes: list[int] = []

    def counting_put(value: Any) -> Any:
        sizes.append(value.num_rows if hasattr(value, "num_rows") else value.nbytes)
        return put(value)

    monkeypatch.setattr(ray_group.ray, "put", counting_put)
    result = pair.scaled(make_batch(101, width=1000))
    assert sorted(sizes) == [50, 51]
    assert {(rank, rows) for rank, rows in zip(column(result, "rank"), column(result, "received"), strict=True)} in (
        {(0, 50), (1, 51)},
        {(0, 51), (1, 50)},
    )
    sizes.clear()
    assert pair.total(np.ones(100_000)) == [100_000.0, 100_000.0]
    assert sizes == [800_000]
    sizes.clear()
    pair.scaled(make_batch(8))
    assert sizes == [], "small parts travel inside the call"


def test_an_explicit_partition_decides_who_gets_what_and_the_order_comes_back(pair: RayWorkerGroup) -> None:
    batch = make_batch(5, dp_partition=[[4, 1, 0], [3, 2]], temperature=1.0)
    result = pair.scaled(batch)
    assert column(result, "id") == column(batch, "id")
    assert column(result, "rank") == [0, 0, 1, 1, 0]
    assert result.meta_info["keys"] == ["temperature"]
    sampled = pair.samples(batch, 2)
    assert column(sampled, "id") == column(batch.repeat(2), "id")
    assert column(sampled, "sample") == [0, 1] * 5


def test_metrics_are_merged_over_ranks(pair: RayWorkerGroup) -> None:
    metrics = pair.update(make_batch(3), factor=10.0)
    assert metrics["loss"].result() == pytest.approx(10.0)
    with pytest.raises(ValueError, match=r"bad_metrics\(\) .* must return a dict of Metric"):
        pair.bad_metrics(make_batch(2))


def test_responses_of_different_widths_are_joined(pair: RayWorkerGroup) -> None:
    result = pair.generate(token_batch(4))
    assert result.batch["responses"].tolist() == [[7, 7, 0]] * 2 + [[7, 7, 7]] * 2


def test_futures_run_at_the_same_time_and_can_be_passed_on(pair: RayWorkerGroup, tmp_path: Path) -> None:
    slow = pair.scaled_later(make_batch(4), after=str(tmp_path / "go"))
    assert not slow.done()
    (tmp_path / "go").touch()
    renamed = slow.then(
        lambda batch: DataProto.from_dict({"x": batch.batch["y"]}, {"id": batch.non_tensor_batch["id"]})
    )
    again = pair.scaled(renamed)
    assert slow.done()
    assert torch.equal(again.batch["y"], make_batch(4).batch["x"] * 4)
    assert torch.equal(slow.get().batch["y"], make_batch(4).batch["x"] * 2), "a future can be read twice"


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_local_and_ray_give_the_same_results(pair: RayWorkerGroup, num_rows: int) -> None:
    local = LocalWorkerGroup(RayClassWithInitArgs(Toy, scale=2))
    tokens = token_batch(num_rows)
    assert torch.equal(local.log_probs(tokens).batch["old_log_probs"], pair.log_probs(tokens).batch["old_log_probs"])
    one, two = local.samples(tokens, 3), pair.samples(tokens, 3)
    assert {key: value.tolist() for key, value in one.tensors().items()} == {
        key: value.tolist() for key, value in two.tensors().items()
    }
    assert column(one, "uid") == column(two, "uid") and one.meta_info == two.meta_info
    plain = make_batch(num_rows)
    assert local.update(plain)["loss"].result() == pytest.approx(pair.update(plain)["loss"].result())


def test_workers_get_the_environment_and_the_threads_they_are_given(pair: RayWorkerGroup) -> None:
    [first, second] = pair.environment("TOY_SETTING", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert first == {"TOY_SETTING": "given", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert second["RANK"] == "1"
    assert pair.num_threads() == [1, 1]  # the tests run with OMP_NUM_THREADS=1


def test_each_worker_has_a_log_file_with_all_it_says(pair: RayWorkerGroup, logs_folder: Path) -> None:
    pair.say("good morning")
    for rank in (0, 1):
        text = (logs_folder / f"toy-rank{rank}.log").read_text()
        assert "\ngood morning\n" in f"\n{text}"
        assert "INFO podium.toys: logged good morning" in text and "raw good morning" in text


def test_healthy_workers_are_alive_while_busy(pair: RayWorkerGroup, tmp_path: Path) -> None:
    busy = pair.nap(0, until=str(tmp_path / "awake"))
    assert pair.dead_ranks() == [] and pair.is_alive() and not busy.done()
    (tmp_path / "awake").touch()
    assert busy.get() == [0, 1]
    assert pair.dead_ranks() == []


@pytest.fixture(scope="module")
def roles(cluster: None) -> Iterator[dict[str, RayWorkerGroup]]:
    """Three roles in two processes."""
    classes = {
        "actor_rollout": RayClassWithInitArgs(Toy, scale=2),
        "critic": RayClassWithInitArgs(Critic, bias=5.0),
        "halves": RayClassWithInitArgs(Halves),
    }
    pool = RayResourcePool([2], name_prefix="colocated")
    group = RayWorkerGroup(pool, create_colocated_worker_cls(classes), start_timeout_s=600, call_timeout_s=300)
    assert group.role == "actor_rollout+critic+halves"
    spawned = group.spawn(classes)
    yield spawned
    group.shutdown()
    assert spawned["critic"].dead_ranks() == [0, 1]


def test_colocated_roles_share_a_process_on_every_rank(roles: dict[str, RayWorkerGroup]) -> None:
    values = roles["critic"].compute_values(make_batch(3))
    assert values.batch["values"][:, 0].tolist() == [5, 6, 7]
    toys = [(role, rank, pid) for role, rank, _, pid, *_ in roles["actor_rollout"].where()]
    assert [role for role, *_ in toys] == ["actor_rollout"] * 2
    assert {place[1:] for place in column(values, "place")} == {place[1:] for place in toys}
    assert {place[0] for place in column(values, "place")} == {"critic"}


def test_a_failure_in_a_colocated_role_names_that_role(roles: dict[str, RayWorkerGroup]) -> None:
    with pytest.raises(WorkerError, match=r"critic worker, rank [01], failed in compute_values\(\): KeyError"):
        roles["critic"].compute_values(token_batch(2))


def test_workers_that_hold_one_model_together_get_the_same_rows_and_answer_once(
    roles: dict[str, RayWorkerGroup],
) -> None:
    metrics = roles["halves"].update(make_batch(5))
    assert metrics["rows"].result() == 5 and metrics["leader"].result() == 1
    with pytest.raises(WorkerError, match="came after a data-parallel call"):
        roles["halves"].change_share()


def test_four_groups_started_at_once_find_their_own_peers(cluster: None) -> None:
    pool = RayResourcePool([2], max_colocate_count=4, name_prefix="peers")

    def start(index: int) -> RayWorkerGroup:
        return RayWorkerGroup(
            pool, RayClassWithInitArgs(Peer), f"peers{index}", start_timeout_s=600, call_timeout_s=300
        )

    with ThreadPoolExecutor(4) as threads:
        groups = list(threads.map(start, range(4)))
    assert [group.sum_of_ranks() for group in groups] == [[3.0, 3.0]] * 4
    assert [group.is_initialized() for group in groups] == [[True, True]] * 4
    for group in groups:
        group.shutdown()
