#!/usr/bin/env bash
# Serves the tiny model with a real vLLM, in the foreground. It is ready when GET /health answers 200: 60 to 110 s.
# usage: serve.sh VENV_DIR PORT [further arguments of vLLM]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:?usage: serve.sh VENV_DIR PORT}
port=${2:?usage: serve.sh VENV_DIR PORT}
shift 2
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=1
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind # 1 GiB of KV cache, no core pinning
# The wheel's own `vllm` script looks for the metadata of a package named vllm and dies, so the module is started.
exec "$venv/bin/python" -m vllm.entrypoints.openai.api_server \
  --model "$here/tiny" --served-model-name tiny --host 127.0.0.1 --port "$port" \
  --dtype float32 --max-model-len 2048 --enforce-eager --max-num-seqs 8 --enable-prompt-tokens-details \
  --enable-prefix-caching --block-size 32 \
  --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser hermes "$@"
