"""Megatron's GPTModel in the shape of a Hugging Face model, one rank's part of it, still without values.

Its local layer spec, with our own attention and norms. Nothing here asks Megatron for process groups of its own or for
a CUDA device: the groups are given, and a model on a CPU is built the same way. Megatron is imported when a model is
built, never before.
"""

from __future__ import annotations

import os
import warnings
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from podium.engines.train.megatron_cpu import run_without_cuda
from podium.engines.train.megatron_model import MegatronModel, Norm, PlannedAttention
from podium.engines.train.megatron_names import Cut
from podium.errors import ConfigError
from podium.models.attention import window_of
from podium.models.load import backbone
from podium.models.value import ValueModel


def build(
    module: PreTrainedModel | ValueModel, cut: Cut, mesh: DeviceMesh, sequence_parallel: bool = False
) -> MegatronModel:
    """Without values, on the CPU, float32. `mesh`: axes replicate, shard, and alone (one rank).

    `sequence_parallel`: between the layers' matrix products each rank has its stretch of the tokens.
    """
    megatron = import_megatron()
    body: Any = backbone(module)
    config, layers, values = body.config, body.layers, isinstance(module, ValueModel)
    spec = megatron.layer_spec(normalization="RMSNorm", qk_layernorm=hasattr(layers[0].self_attn, "q_norm"))
    parts, attention = spec.submodules, spec.submodules.self_attention.submodules
    attention.core_attention = PlannedAttention
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    if hasattr(layers[0].self_attn, "q_norm"):
        attention.q_layernorm = attention.k_layernorm = Norm
    gpt = megatron.GPTModel(
        transformer_config(megatron, config, cut, layers[0].self_attn, sequence_parallel),
        megatron.BlockSubmodules(layer_specs=[spec] * len(layers), layer_norm=Norm),
        vocab_size=cut.vocabulary_rows * cut.size,
        max_sequence_length=config.max_position_embeddings,
        position_embedding_type="none",
        share_embeddings_and_output_weights=values or config.tie_word_embeddings,
        pg_collection=megatron.groups(mesh),
    )
    for layer, theirs in zip(gpt.decoder.layers, layers, strict=True):
        layer.self_attention.core_attention.window = window_of(theirs.self_attn)
        if body.is_gradient_checkpointing:
            _recompute(layer)
    root = MegatronModel(gpt, cut, mesh.get_group("shard"), megatron.regions, deepcopy(body.rotary_emb))
    if values:
        root.value_head = nn.Linear(config.hidden_size, 1)
    return root.train(module.training)


def transformer_config(megatron: Any, config: Any, cut: Cut, attention: Any, sequence_parallel: bool) -> Any:
    """Megatron's settings of a model; what is fused needs CUDA kernels, and dropout a policy must not have."""
    if config.hidden_act != "silu":
        raise ConfigError(f"strategy=megatron takes models with hidden_act=silu; this one has {config.hidden_act!r}.")
    plain = ("bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion")
    return megatron.TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=cut.heads,
        num_query_groups=cut.kv_heads,
        kv_channels=cut.head_dim,
        ffn_hidden_size=cut.intermediate,
        softmax_scale=attention.scaling,
        layernorm_epsilon=config.rms_norm_eps,
        normalization="RMSNorm",
        activation_func=F.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=attention.q_proj.bias is not None,
        qk_layernorm=hasattr(attention, "q_norm"),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=cut.size,
        sequence_parallel=sequence_parallel and cut.size > 1,
        transformer_impl="local",
        use_cpu_initialization=True,
        perform_initialization=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        **dict.fromkeys(plain, False),
    )


def _recompute(layer: Any) -> None:
    """Gradient checkpointing of one layer."""
    forward = layer.forward

    def again(*inputs: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **options)
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **options)

    layer.forward = again


@dataclass(frozen=True)
class Megatron:
    """The parts of the package that are used."""

    GPTModel: Any
    TransformerConfig: Any
    BlockSubmodules: Any
    layer_spec: Any
    collection: Any
    regions: Any

    def groups(self, mesh: DeviceMesh) -> Any:
        """Process groups, so that Megatron's own state of the whole process is not needed."""
        shard, replicate, alone = (mesh.get_group(axis) for axis in ("shard", "replicate", "alone"))
        return self.collection(tp=shard, tp_cp=shard, dp=replicate, dp_cp=replicate, pp=alone, cp=alone, embd=alone)


def import_megatron() -> Megatron:
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # its order of kernels; it warns without
    warnings.filterwarnings("ignore", module=r"megatron\.")  # about optional packages, and its own old ways
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)  # names that torch 2.13 has renamed
    try:
        from megatron.core import parallel_state
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.tensor_parallel import mappings
        from megatron.core.transformer import TransformerConfig
        from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    except ImportError as error:
        raise ConfigError(
            f"strategy=megatron needs {error.name}, which is not installed: pip install 'podium[megatron]'"
        ) from error
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:  # the only state of the process that layers ask for
        parallel_state._set_global_memory_buffer()
    run_without_cuda()
    return Megatron(
        GPTModel,
        TransformerConfig,
        TransformerBlockSubmodules,
        get_gpt_layer_local_spec,
        ProcessGroupCollection,
        mappings,
    )
