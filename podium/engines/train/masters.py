"""Float32 master weights beside a lone device's bfloat16 module.

The module computes (and a rollout engine on the same device samples) with bfloat16 parameters; the optimizer moves
float32 masters, and gradients of all micro-batches add up in float32. Frozen weights need no master. A sharded module
does not need this: FSDP keeps float32 shards and gathers them in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class MasterWeights:
    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Take float32 copies of what is trained, then cast the module to `dtype` (buffers keep theirs)."""
        self.parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.masters = {
            name: parameter.detach().to(torch.float32, copy=True).requires_grad_()
            for name, parameter in self.parameters.items()
        }
        cast_parameters(module.parameters(), dtype)
        for name, parameter in self.parameters.items():
            parameter.register_post_accumulate_grad_hook(self._collector(self.masters[name]))

    @staticmethod
    def _collector(master: Tensor) -> Callable[[Tensor], None]:
        def collect(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if master.grad is None:
                master.grad = parameter.grad.to(master.dtype)
            else:
                master.grad += parameter.grad
            parameter.grad = None

        return collect

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the module."""
        targets = [parameter.data for parameter in self.parameters.values()]
        torch._foreach_copy_(targets, list(self.masters.values()))


@torch.no_grad()
def cast_parameters(parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
    """Parameters only: rotary frequencies and the like are buffers that need their float32."""
    for parameter in parameters:
        parameter.data = parameter.data.to(dtype)
