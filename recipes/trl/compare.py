"""The script beside this file with TRL and with Podium, one after the other: `python recipes/trl/compare.py models`.

Only the import line differs. It needs TRL 1.12 and a transformers with which 1.12 still saves: 5.16 does, 5.19 does
not. `make test-trl` installs both beside Podium and runs this. Measured on one core of a busy CPU machine, 30 batches:
TRL 0.523 in the first five and 1.677 in the last five, Podium 0.486 and 1.657; one seed each.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

here = Path(__file__).parent
models, episodes = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "7680"
ours = (here / "ppo.py").read_text()
line = re.search(r"^from podium import (PPOConfig, PPOTrainer).*$", ours, re.MULTILINE)
theirs = ours.replace(line[0], f"from trl.experimental.ppo import {line[1]}")
(Path(models) / "ppo_with_trl.py").write_text(theirs)

runs = {"TRL": Path(models) / "ppo_with_trl.py", "Podium": here / "ppo.py"}
scores = {}
for name, script in runs.items():
    folder = Path(models) / f"out_{name.lower()}"
    done = subprocess.run(
        [sys.executable, str(script), models, str(folder), episodes], check=True, capture_output=True, text=True
    )
    assert (folder / "model.safetensors").is_file(), f"{name} saved no model"
    if name == "TRL":
        scores[name] = [float(number) for number in re.findall(r"'objective/scores': '?(-?[\d.e-]+)", done.stdout)]
    else:
        records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        scores[name] = [record["objective/scores"] for record in records if "objective/scores" in record]

for name, values in scores.items():
    few = max(1, len(values) // 6)
    first, last = sum(values[:few]) / few, sum(values[-few:]) / few
    sys.stdout.write(f"{name:7} {len(values)} batches: {first:.3f} in the first {few}, {last:.3f} in the last {few}\n")
    assert last > first, f"{name} did not improve"
