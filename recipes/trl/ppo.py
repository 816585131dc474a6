"""PPO in the shape that TRL 1.12 documents: the same file runs with TRL after changing its import.

python recipes/trl/prepare.py models          # a policy and a reward model, once
python recipes/trl/ppo.py models              # through Podium
python recipes/trl/compare.py models          # with both, where TRL 1.12 is installed
"""

import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from podium import PPOConfig, PPOTrainer  # TRL: from trl.experimental.ppo import PPOConfig, PPOTrainer

models = sys.argv[1]
output_dir = sys.argv[2] if len(sys.argv) > 2 else "runs/trl/ppo"
total_episodes = int(sys.argv[3]) if len(sys.argv) > 3 else 7680

tokenizer = AutoTokenizer.from_pretrained(f"{models}/policy", padding_side="left")
policy = AutoModelForCausalLM.from_pretrained(f"{models}/policy", dtype="float32")
ref_policy = AutoModelForCausalLM.from_pretrained(f"{models}/policy", dtype="float32")
reward_model = AutoModelForSequenceClassification.from_pretrained(f"{models}/reward", num_labels=1, dtype="float32")
value_model = AutoModelForSequenceClassification.from_pretrained(f"{models}/reward", num_labels=1, dtype="float32")


def tokenize(row):
    return {"input_ids": tokenizer(row["prompt"])["input_ids"]}


def prepare(split):
    dataset = Dataset.from_json(f"{models}/{split}.jsonl")
    return dataset.map(tokenize, remove_columns=dataset.column_names)


args = PPOConfig(
    output_dir=output_dir,
    learning_rate=1e-4,
    per_device_train_batch_size=64,
    gradient_accumulation_steps=4,
    total_episodes=total_episodes,
    num_ppo_epochs=2,
    num_mini_batches=1,
    response_length=6,
    temperature=1.0,
    stop_token="eos",
    missing_eos_penalty=1.0,
    kl_coef=0.01,
    num_sample_generations=0,
    gradient_checkpointing=False,
    bf16=False,
    use_cpu=True,
    report_to="none",
    save_strategy="no",
    logging_steps=5,
)

trainer = PPOTrainer(
    args=args,
    processing_class=tokenizer,
    model=policy,
    ref_model=ref_policy,
    reward_model=reward_model,
    value_model=value_model,
    train_dataset=prepare("train"),
    eval_dataset=prepare("eval"),
)
trainer.train()
trainer.save_model(output_dir)
trainer.generate_completions(sampling=True)
