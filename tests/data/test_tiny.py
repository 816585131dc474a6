"""The shipped tiny model: its files, its tokenizer, and where its warm start left it."""

from __future__ import annotations

import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from podium.config.schema import DataConfig
from podium.data.dataset import RLHFDataset
from podium.data.tasks import get_task

PRINTABLE = "".join(map(chr, range(32, 127)))


@pytest.fixture(scope="module")
def model(tiny_folder):
    return AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


def test_the_files_are_small_and_hold_about_a_million_parameters(tiny_folder, model):
    assert (tiny_folder / "model.safetensors").stat().st_size <= 3_000_000
    assert 700_000 <= model.num_parameters() <= 1_200_000


def test_it_is_a_plain_qwen2_that_other_engines_can_run(tiny_folder, tokenizer):
    config = AutoConfig.from_pretrained(tiny_folder)
    assert config.architectures == ["Qwen2ForCausalLM"] and config.tie_word_embeddings
    assert config.head_dim % 32 == 0 and config.hidden_size == config.head_dim * config.num_attention_heads
    assert config.vocab_size == len(tokenizer)
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert config.max_position_embeddings >= 1024


def test_the_tokenizer_has_distinct_end_and_padding_tokens(tokenizer):
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


@given(st.one_of(st.text(max_size=40), st.text(alphabet=PRINTABLE, max_size=80), st.just("user\nassistant user\n")))
def test_no_text_is_lost(tokenizer, text):
    text = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_printable_character_is_one_token(tokenizer):
    assert len(tokenizer.encode(PRINTABLE)) == len(PRINTABLE)


@torch.no_grad()
def scores(model, tokenizer, task_name, num_prompts, samples=None):
    """Scores of greedy responses to validation prompts, or of several samples each: [prompts, samples]."""
    dataset = RLHFDataset([f"task:{task_name}?rows={num_prompts}"], tokenizer, DataConfig(), "val")
    rows = list(dataset)
    batch = dataset.collate_fn(rows)
    sampling = {"do_sample": False, "temperature": None} if samples is None else {"num_return_sequences": samples}
    tokens = model.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=12, **sampling
    )
    texts = tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    per_prompt = samples or 1
    task = get_task(task_name)
    results = [task.score(text, rows[i // per_prompt]["ground_truth"]) for i, text in enumerate(texts)]
    values = [result["score"] if isinstance(result, dict) else result for result in results]
    return torch.tensor(values).view(-1, per_prompt)


def test_it_adds_without_carrying_so_that_most_sums_are_wrong(model, tokenizer):
    assert 0.15 <= scores(model, tokenizer, "addition", 256).mean().item() <= 0.38


def test_samples_are_right_often_enough_to_learn_from(model, tokenizer):
    torch.manual_seed(0)
    found = scores(model, tokenizer, "addition", 96, samples=8)
    mixed = (found.mean(1) > 0) & (found.mean(1) < 1)
    assert found.amax(1).mean().item() >= 0.5, "share of prompts with a right sample"
    assert mixed.float().mean().item() >= 0.3, "share of prompts whose samples differ in score"


@pytest.mark.parametrize("task", ["reverse", "countdown"])
def test_it_answers_the_other_tasks_rightly_now_and_then(model, tokenizer, task):
    torch.manual_seed(0)
    found = scores(model, tokenizer, task, 48, samples=8)
    assert 0.02 <= found.mean().item() <= 0.6
    assert found.amax(1).mean().item() >= 0.25
