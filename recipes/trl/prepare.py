"""Two small model folders and two data files for the other scripts here: `python recipes/trl/prepare.py models`.

The policy is the built-in model, which adds without carrying. The reward model is the same body with a score head,
trained for a minute (`podium train-reward`) to tell right sums from near misses, and written as transformers'
AutoModelForSequenceClassification.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from podium.cli.main import main as podium
from podium.config.schema import ModelConfig
from podium.data.prompts import build_messages, encode_messages
from podium.data.tasks import get_task
from podium.models.load import load_causal_lm, load_tokenizer, resolve_path
from podium.models.value import load_value_model

folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 160
tokenizer = load_tokenizer("builtin:tiny")
load_causal_lm(ModelConfig()).save_pretrained(folder / "policy")
tokenizer.save_pretrained(folder / "policy")

run = folder / "train-reward"
settings = ["optim.lr=1e-3", "optim.lr_decay=cosine", "optim.lr_warmup_steps=10", "data.train_batch_size=128"]
settings += [f"trainer.total_training_steps={steps}", f"trainer.default_local_dir={run}", "center_coef=0.01"]
assert podium(["train-reward", "task:addition", *settings]) == 0

trained = load_value_model(ModelConfig(path=str(run / f"checkpoints/global_step_{steps}/hf")))
classifier = AutoModelForSequenceClassification.from_pretrained(
    resolve_path("builtin:tiny"), num_labels=1, dtype=torch.float32
)
classifier.model.load_state_dict(trained.base_model.state_dict())
classifier.score.load_state_dict({"weight": trained.value_head.weight})
classifier.save_pretrained(folder / "reward")
tokenizer.save_pretrained(folder / "reward")

for split, rows in (("train", 4096), ("val", 128)):
    name = "eval" if split == "val" else split
    with (folder / f"{name}.jsonl").open("w") as file:
        for row in get_task("addition").rows(split, rows, 0):
            tokens = encode_messages(tokenizer, build_messages(row["prompt"]))
            file.write(json.dumps({"prompt": tokenizer.decode(tokens)}) + "\n")
