"""The group of one worker in this process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from controller_light import Peer
from controller_toys import Critic, Toy, make_batch

from podium.single_controller import (
    CompletedFuture,
    Dispatch,
    LocalWorkerGroup,
    RayClassWithInitArgs,
    Worker,
    create_colocated_worker_cls,
    register,
)


@pytest.fixture
def toy() -> LocalWorkerGroup:
    return LocalWorkerGroup(RayClassWithInitArgs(Toy, scale=3), role="toy")


def test_the_worker_knows_it_is_alone(toy: LocalWorkerGroup) -> None:
    [(role, rank, world_size, _, args, kwargs)] = toy.where(1, two=2)
    assert (role, rank, world_size, args, kwargs) == ("toy", 0, 1, (1,), {"two": 2})
    assert toy.world_size == 1 and toy.is_alive()


def test_exceptions_come_through_as_themselves(toy: LocalWorkerGroup) -> None:
    with pytest.raises(KeyError, match="the missing key"):
        toy.raise_on(0)


def test_a_batch_is_passed_by_reference_but_its_columns_are_the_callers(toy: LocalWorkerGroup) -> None:
    batch = make_batch(3)
    result = toy.adds_a_column(batch)
    assert result.batch["x"].data_ptr() == batch.batch["x"].data_ptr()
    assert "z" not in batch.batch and "touched" not in batch.meta_info
    assert torch.equal(result.batch["z"], batch.batch["x"] + 1)


def test_a_call_that_does_not_block_has_run_already(toy: LocalWorkerGroup) -> None:
    future = toy.scaled_later(make_batch(2))
    assert isinstance(future, CompletedFuture) and future.done()
    assert future.get(timeout=0).batch["y"].tolist() == [[0, 0, 0], [3, 3, 3]]


def test_a_partition_of_one_part_orders_the_rows_for_the_worker_only(toy: LocalWorkerGroup) -> None:
    batch = make_batch(3, dp_partition=[[2, 0, 1]])
    assert list(toy.scaled(batch).non_tensor_batch["id"]) == ["row 0", "row 1", "row 2"]


def test_methods_that_are_not_registered_are_refused_with_the_nearest_name(toy: LocalWorkerGroup) -> None:
    with pytest.raises(AttributeError, match=r"Toy registers no method 'scald'; did you mean 'scaled'\?"):
        toy.scald(make_batch(1))
    with pytest.raises(AttributeError, match="registers no method 'not_registered'"):
        toy.not_registered(1)
    assert toy.execute_all("not_registered", 5) == [5]
    assert toy.execute_rank_zero("not_registered", 5) == 5


def test_bound_methods_keep_their_name_and_docstring(toy: LocalWorkerGroup) -> None:
    assert toy.ask_first.__name__ == "ask_first"
    assert toy.ask_first.__doc__ == "Only rank 0 answers."


def test_a_method_may_not_take_the_name_of_the_groups_own() -> None:
    class Clashing(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def shutdown(self) -> None: ...

    with pytest.raises(ValueError, match=r"Clashing.shutdown has the name of a group's own"):
        LocalWorkerGroup(RayClassWithInitArgs(Clashing))


def test_only_workers_can_be_put_into_groups() -> None:
    with pytest.raises(ValueError, match=r"must derive from podium.single_controller.Worker, got <class 'dict'>"):
        RayClassWithInitArgs(dict)


def test_a_lone_worker_makes_no_process_group() -> None:
    peer = LocalWorkerGroup(RayClassWithInitArgs(Peer))
    assert peer.is_initialized() == [False]
    assert peer.sum_of_ranks() == [1.0]


def test_colocated_roles_live_in_one_place_and_are_called_by_role() -> None:
    both = create_colocated_worker_cls(
        {"actor_rollout": RayClassWithInitArgs(Toy, scale=2), "critic": RayClassWithInitArgs(Critic, bias=10.0)}
    )
    group = LocalWorkerGroup(both)
    roles = group.spawn(["actor_rollout", "critic"])
    assert roles["actor_rollout"].where()[0][0] == "actor_rollout"
    assert roles["critic"].compute_values(make_batch(2)).batch["values"][:, 0].tolist() == [10, 11]
    with pytest.raises(AttributeError, match="Critic registers no method 'scaled'"):
        roles["critic"].scaled(make_batch(1))
    with pytest.raises(ValueError, match=r"no such role in this group: \['rm'\]; it has \['actor_rollout', 'critic'\]"):
        group.spawn(["rm"])
    group.shutdown()
    with pytest.raises(ValueError, match="critic is shut down"):
        roles["critic"].compute_values(make_batch(1))


def test_shutdown_closes_the_worker_once() -> None:
    closed = []

    class Closing(Worker):
        def close(self) -> None:
            closed.append(self.role)

    group = LocalWorkerGroup(RayClassWithInitArgs(Closing), role="closing")
    group.shutdown()
    group.shutdown()
    assert closed == ["closing"] and group.dead_ranks() == [0]


def test_a_local_run_imports_no_ray_and_a_worker_class_no_torch() -> None:
    code = (
        "import sys\n"
        "from podium.single_controller.worker import Worker\n"
        "from podium.single_controller.dispatch import register\n"
        "from podium.single_controller import LocalWorkerGroup, RayClassWithInitArgs, ResourcePoolManager, Role\n"
        "class W(Worker):\n"
        "    @register()\n"
        "    def f(self): return self.rank\n"
        "heavy = [m for m in ('ray', 'torch') if m in sys.modules]\n"
        "assert LocalWorkerGroup(RayClassWithInitArgs(W)).f() == [0]\n"
        "ResourcePoolManager({'all': [1]}, {Role.Actor: 'all'})\n"
        "print(heavy, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split("\n")[0] == "[] False"
