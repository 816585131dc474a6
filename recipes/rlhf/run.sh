#!/bin/sh
# Supervised fine-tuning, a reward model, PPO against it: the whole of RLHF on built-in data.
# Run it from the root of the repository. Each step goes on where it was interrupted.
set -e
podium sft recipes/rlhf/sft.yaml
podium train-reward recipes/rlhf/reward.yaml
podium train recipes/rlhf/ppo.yaml
