#!/usr/bin/env bash
# Checks and times private steps on one NVIDIA GPU, in one call of under ten minutes, offline.
#
#     bash benchmarks/speed/gpu.sh WHEELS RESULTS [options of bench.py]
#
# WHEELS is a folder of wheels (README.md: how to collect them), installed into a folder that is
# removed at the end. RESULTS gets checks-*.txt, and results.json with its report. A second call with
# the same RESULTS measures what the first had no time for. Failures do not stop it.
#
# Variables: PYTHON (python3, with JAX and PyTorch), DEVICE (gpu; cpu for a dry run) and
# LIMIT (570, the seconds after which it ends).
set -u -o pipefail

wheels=${1:?a folder of wheels} results=${2:?a folder for the results}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3} device=${DEVICE:-gpu} limit=${LIMIT:-570}
failures=()
mkdir -p "$results"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
export PYTHONPATH="$here/../..:$site" PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
export MPLBACKEND=Agg TF_CPP_MIN_LOG_LEVEL=2

# within SECONDS NAME COMMAND...: runs a command, at most so long and to the end of the limit.
within() {
    local most=$1 name=$2 left=$((limit - SECONDS))
    shift 2
    [ "$most" -gt "$left" ] && most=$left
    echo "==> [$SECONDS s] $name"
    if [ "$most" -lt 10 ]; then
        failures+=("$name: no time left")
        return 1
    fi
    timeout --kill-after=5 "$most" "$@" && return
    failures+=("$name: exit status $?")  # 124: out of time
    return 1
}

install() { "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
                --no-compile --upgrade --target "$site" "$@"; }

bench() { within "$1" "$2" "$python" "$here/bench.py" --device "$device" --rounds 1 --repeats 3 \
              --seconds 0.5 --steps 30 --limit 50 --process-limit 100 \
              --models cnn-1024 transformer cifar cnn-256 resnet head lstm mlp \
              --output "$results/results.json" "${@:3}"; }

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
echo "==> Installing into $site"
install "$wheels"/*.whl || for wheel in "$wheels"/*.whl; do
    install "$wheel" || failures+=("installation of $(basename "$wheel")")
done

# A framework that does not see the GPU would time the CPU.
frameworks=()
if [ "$device" = cpu ] || within 60 "JAX sees the GPU" "$python" -c \
        'import jax; print(jax.__version__, jax.devices()); assert jax.devices()[0].platform == "gpu"'; then
    frameworks+=(jax jax-privacy)
fi
if [ "$device" = cpu ] || within 60 "PyTorch sees the GPU" "$python" -c \
        'import torch; print(torch.__version__); assert torch.cuda.is_available()'; then
    frameworks+=(torch opacus)
fi

for backend in jax torch; do
    if [[ " ${frameworks[*]-} " == *" $backend "* ]]; then
        KERAS_BACKEND=$backend within 110 "Checks on $backend" \
            "$python" "$here/check_device.py" --device "$device" >"$results/checks-$backend.txt" 2>&1
        cat "$results/checks-$backend.txt"
    fi
done

if [ ${#frameworks[@]} -gt 0 ]; then
    bench $((limit - SECONDS - 100)) "Steps" --kinds wall --frameworks "${frameworks[@]}" \
        --ways plain shuffle poisson ghost hooks vmap scan "$@"
    if [[ " ${frameworks[*]} " == *" opacus "* ]]; then
        bench "$limit" "Plain steps with torch.compile" --kinds wall --frameworks opacus \
            --ways plain-compiled "$@"
    fi
    bench "$limit" "First fits and memory" --kinds start memory --frameworks "${frameworks[@]}" "$@"
fi
echo "==> Report"
[ -f "$results/results.json" ] && "$python" "$here/report.py" "$results/results.json"
[ ${#failures[@]} -gt 0 ] && printf 'Not done: %s\n' "${failures[@]}"
echo "==> Ended after $SECONDS s; ${#failures[@]} parts not done; results in $results"
[ ${#failures[@]} -eq 0 ]
