#!/bin/sh
# The whole of RLHF on built-in data: fine-tuning, pairs of the policy's own answers, a reward model, PPO against it.
#   sh recipes/rlhf/run.sh            in runs/podium/rlhf
#   sh recipes/rlhf/run.sh 2 runs/2   another seed, another folder
# Run it from the root of the repository. Each training goes on where it was interrupted.
set -e
seed=${1:-1}
out=${2:-runs/podium/rlhf}
sft=$out/sft/checkpoints/global_step_16/hf
judge=$out/reward/checkpoints/global_step_200/hf
podium sft recipes/rlhf/sft.yaml trainer.seed="$seed" trainer.default_local_dir="$out/sft"
podium train recipes/rlhf/sample.yaml trainer.seed="$seed" trainer.default_local_dir="$out/samples" \
    actor_rollout_ref.model.path="$sft"
podium data pairs "$out/samples/validation" --out "$out/pairs.parquet"
podium train-reward recipes/rlhf/reward.yaml trainer.seed="$seed" trainer.default_local_dir="$out/reward" \
    model.path="$sft" "data.train_files=['$out/pairs.parquet','task:addition?rows=8192']"
podium train recipes/rlhf/ppo.yaml trainer.seed="$seed" trainer.default_local_dir="$out/ppo" \
    actor_rollout_ref.model.path="$sft" critic.model.path="$judge" reward_model.model.path="$judge"
