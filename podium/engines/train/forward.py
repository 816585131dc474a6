"""The module an engine runs: a model whose forward pass takes a Pack and gives numbers per response token.

Head and loss inputs are computed inside this module's `forward`, because the root of a sharded module has its weights
together only there. Outputs are plain dicts of tensors: sharding hooks look for tensors in them.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from podium.engines.train.logprobs import HeadOutputs, chunked_log_probs
from podium.engines.train.packing import Pack
from podium.models.load import backbone, logit_transform
from podium.models.lora import head_parameters
from podium.models.value import ValueModel


class PackedModel(nn.Module):
    def __init__(self, model: PreTrainedModel | ValueModel) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # else the first call to train() would find nothing to do

    def forward(
        self,
        pack: Pack,
        *,
        hidden_only: bool = False,
        temperature: float = 1.0,
        with_entropy: bool = False,
        with_sum_pi_squared: bool = False,
    ) -> dict[str, Tensor]:
        """`values` of a value model, else `log_probs`, `entropy`, `sum_pi_squared`: [rows, R]. Or `hidden` [N, H]."""
        body, tokens = backbone(self.model), {"input_ids": pack.input_ids}
        if pack.images is not None:
            tokens = {"inputs_embeds": pack.images.embed(body, self.model.config, pack.input_ids)}
        hidden = body(
            **tokens,
            position_ids=pack.position_ids,
            attention_plan=pack.attention,
            use_cache=False,
        ).last_hidden_state
        hidden = hidden.squeeze(0).index_select(0, pack.sources)  # [N, H]
        if hidden_only:
            return {"hidden": hidden}
        if isinstance(self.model, ValueModel):
            return {"values": pack.spread(self.model.value_head(hidden).squeeze(-1).float())}
        weight, bias = head_parameters(self.model.get_output_embeddings())
        outputs = chunked_log_probs(
            hidden,
            weight,
            bias,
            pack.labels,
            temperature,
            with_entropy=with_entropy,
            with_sum_pi_squared=with_sum_pi_squared,
            transform=logit_transform(self.model),
        )
        return spread(outputs, pack)


def spread(outputs: HeadOutputs, pack: Pack) -> dict[str, Tensor]:
    """What a head gave, by name and row: [rows, R]."""
    named = {"log_probs": outputs.log_probs, "entropy": outputs.entropy, "sum_pi_squared": outputs.sum_pi_squared}
    return {name: pack.spread(per_token) for name, per_token in named.items() if per_token is not None}
