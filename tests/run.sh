#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests: from any directory, as root or with sudo, again and again.
#   bash tests/run.sh            release build with warnings as errors, and all tests
#   bash tests/run.sh --asan     AddressSanitizer and UndefinedBehaviorSanitizer, without the slow tests; clang's warnings
#                                and its thread-safety analysis; each fuzz target for 15 seconds
#   bash tests/run.sh --tsan     ThreadSanitizer, the tests with threads
#   bash tests/run.sh --fuzz     the fuzz targets alone
#   bash tests/run.sh --format   clang-format finds nothing to change
#   bash tests/run.sh --tidy     clang-tidy finds no defect in the product (.clang-tidy has the checks)
#   bash tests/run.sh --all      what CI runs: format, tidy, release, asan, tsan
# HEADRACE_NIGHTLY=1 adds the tests that take minutes. HEADRACE_CACHE is where the real model is kept. JOBS limits the
# parallel jobs. At the end stands what was skipped, and why; the last line sums it up: "N passed, N failed, N skipped".
# The exit status is 0 only if none failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set/{s/^# \{0,1\}//p}' tests/run.sh; }

stages=()
for option in "$@"; do
  case "$option" in
    --asan | --tsan | --fuzz | --format | --tidy) stages+=("${option#--}") ;;
    --all) stages+=(format tidy release asan tsan) ;;
    -h | --help) usage; exit 0 ;;
    *) echo "run.sh: unknown option $option" >&2; usage >&2; exit 2 ;;
  esac
done
[ ${#stages[@]} -gt 0 ] || stages=(release)

export CUDAARCHS="${CUDAARCHS:-$(bash tests/cuda_archs.sh)}"
passed=0 failed=0 skipped=0 failures=() skips=() wrap=()
started=$SECONDS

# Two GiB a job: a compiler at -O3 over heavy templates needs about one.
jobs=${JOBS:-$(nproc)}
by_memory=$(awk '/MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
[ "$jobs" -le "$by_memory" ] || jobs=$((by_memory > 0 ? by_memory : 1))

fail() {
  failed=$((failed + 1))
  failures+=("$1")
  echo "run.sh: $1" >&2
}

# build PRESET [TARGET] [cmake options…]
build() {
  local preset=$1 target=${2:-all}
  echo "== Building $preset ($((SECONDS - started)) s)"
  if ! cmake --preset "$preset" "${@:3}" >"build/$preset.log" 2>&1; then
    cat "build/$preset.log"
    fail "$preset does not configure"
    return 1
  fi
  grep -h 'CUDA bodies' "build/$preset.log" || true
  if ! ${wrap[@]+"${wrap[@]}"} cmake --build "build/$preset" -j "$jobs" --target "$target"; then
    fail "$preset does not build"
    return 1
  fi
}

# results BUILD: a line a test, "STATUS PROGRAM: WHAT", from the XML files of GoogleTest's programs and ctest's JUnit
# file. STATUS is passed, skipped or failed. ctest knows the tests that are no GoogleTest programs, and those that left no
# file: they crashed, or ran out of time.
results() {
  local unescape='s/&quot;/"/g; s/&lt;/</g; s/&gt;/>/g; s/&apos;/'"'"'/g; s/&#x0A;/ /g; s/&amp;/\&/g'
  local file name status
  for file in "build/$1/results"/*.xml; do
    [ -f "$file" ] || continue  # no GoogleTest program ran, or all crashed
    name=$(basename "$file" .xml)
    awk -v program="$name" '
      function field(key) { return match($0, " " key "=\"[^\"]*") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "" }
      function flush() { if (test != "") print status, program ": " what; test = "" }
      /<testcase / { flush(); test = what = field("classname") "." field("name"); status = "passed" }
      /<skipped / && status != "failed" { status = "skipped"; what = field("message"); sub(/^[^&]*&#x0A;/, "", what) }
      /<failure /  { status = "failed"; what = test }
      END { flush() }' "$file"
  done | sed "$unescape"
  sed -n 's/.*<testcase name="\([^"]*\)".* status="\([a-z]*\)".*/\1 \2/p' "build/$1/junit.xml" | while read -r name status; do
    [ -f "build/$1/results/$name.xml" ] && [ "$status" = run ] && continue
    case "$status" in
      run) echo "passed $name: whole" ;;
      notrun) echo "failed $name: not run" ;;
      fail) grep -qs '<failure ' "build/$1/results/$name.xml" || echo "failed $name: crashed or took too long" ;;
      *) echo "skipped $name: $status" ;;
    esac
  done
}

# run_tests BUILD [TEST PRESET]: prints ctest's own summary and adds to the sums. CMakePresets.json has which tests a
# preset leaves out, and its environment.
run_tests() {
  local preset=$1 test_preset=${2:-$1} status=0 all=$PWD/build/$1/results.txt
  echo "== Testing $preset ($((SECONDS - started)) s)"
  rm -rf "build/$preset/junit.xml" "build/$preset/results"
  GTEST_OUTPUT="xml:$PWD/build/$preset/results/" ${wrap[@]+"${wrap[@]}"} \
    ctest --preset "$test_preset" --output-junit "$PWD/build/$preset/junit.xml" -j "$jobs" </dev/null | grep --line-buffered -v '^ *Start  *[0-9]*:' || status=$?
  if [ ! -f "build/$preset/junit.xml" ]; then
    fail "$preset ran no test"
    return
  fi
  results "$preset" >"$all"
  local bad
  bad=$(grep -c '^failed ' "$all" || true)
  passed=$((passed + $(grep -c '^passed ' "$all" || true))) failed=$((failed + bad))
  skipped=$((skipped + $(grep -c '^skipped ' "$all" || true)))
  while read -r times _ reason; do skips+=("$preset: $times x $reason"); done < <(grep '^skipped ' "$all" | sort | uniq -c)
  while read -r _ name; do failures+=("$preset: $name"); done < <(grep '^failed ' "$all")
  [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || fail "$preset: ctest ended with status $status"
}

stage_release() {
  build release all -DHEADRACE_WERROR=ON || return 0
  if ! HEADRACE_TEST_GGUF=$(bash tests/fetch_model.sh); then
    fail "the real model could not be fetched: the tests that need it cannot run"
    return 0
  fi
  if ! HEADRACE_TEST_SMOLLM2_64K=$(bash tests/smollm2_64k.sh build/release); then
    fail "SmolLM2-64K could not be made: the tests that need it cannot run"
    return 0
  fi
  HEADRACE_TEST_CLIENTS=
  if [ "${HEADRACE_NIGHTLY:-0}" = 1 ]; then
    HEADRACE_TEST_CLIENTS=$(timeout 300 bash tests/clients_python.sh) || {
      HEADRACE_TEST_CLIENTS=
      echo "run.sh: the clients could not be fetched: serve_clients will be skipped" >&2
    }
  fi
  export HEADRACE_TEST_GGUF HEADRACE_TEST_SMOLLM2_64K HEADRACE_TEST_CLIENTS
  if [ "${HEADRACE_NIGHTLY:-0}" = 1 ]; then run_tests release nightly; else run_tests release; fi
}

stage_asan() {
  build asan || return 0
  run_tests asan
}

stage_tsan() {
  # ThreadSanitizer cannot map its shadow where the kernel spreads addresses widely.
  if setarch "$(uname -m)" -R true 2>/dev/null; then wrap=(setarch "$(uname -m)" -R); fi
  build tsan thread_tests || { wrap=(); return 0; }
  run_tests tsan
  wrap=()
}

stage_fuzz() {
  build asan fuzz || return 0
  run_tests asan fuzz
}

stage_format() {
  echo "== Format"
  local tool=clang-format-14
  command -v $tool >/dev/null || tool=clang-format
  if find cache offload kernels runtime cli tests bench -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' |
    sort | tr '\n' '\0' | xargs -0 "$tool" --dry-run -Werror; then
    passed=$((passed + 1))
  else
    fail "clang-format would change files: clang-format-14 -i FILE"
  fi
}

# product_sources: what clang-tidy checks, a name a line: the CPU's bodies for one instruction set, no CUDA sources.
product_sources() {
  sed -n 's/^  "file": "\(.*\)"$/\1/p' build/tidy/compile_commands.json | grep -v -e '\.cu$' -e '_avx2\.dir' -e '_avx512' | sort -u
}

stage_tidy() {
  echo "== Tidy ($((SECONDS - started)) s)"
  if ! cmake --preset tidy >build/tidy.log 2>&1; then
    cat build/tidy.log
    fail "tidy does not configure"
    return
  fi
  if product_sources | xargs -d '\n' -P "$jobs" -n 1 clang-tidy-14 -quiet -p build/tidy 2>/dev/null; then
    passed=$((passed + 1))
  else
    fail "clang-tidy finds something"
  fi
}

sets=(build tests documents)
for stage in "${stages[@]}"; do
  case "$stage" in
    release) sets+=(model) ;;
    asan | tsan | fuzz | format | tidy) sets+=(checks) ;;
  esac
done
bash tests/install.sh "${sets[@]}"
if [[ " ${stages[*]} " == *" release "* ]]; then
  bash tests/install.sh page || echo "run.sh: no Chromium: the test of the page will be skipped" >&2
  bash tests/install.sh shells || echo "run.sh: no fish or zsh: the tests of their completion will be skipped" >&2
  if [ "${HEADRACE_NIGHTLY:-0}" = 1 ]; then
    bash tests/install.sh clients || echo "run.sh: no python3-venv: serve_clients will be skipped" >&2
  fi
fi
mkdir -p build
for stage in "${stages[@]}"; do "stage_$stage"; done

echo
[ "${HEADRACE_NIGHTLY:-0}" = 1 ] || echo "SKIPPED everywhere: the tests that take minutes (HEADRACE_NIGHTLY=1 runs them)"
for skip in ${skips[@]+"${skips[@]}"}; do echo "SKIPPED $skip"; done
for failure in ${failures[@]+"${failures[@]}"}; do echo "FAILED: $failure"; done
echo "Took $((SECONDS - started)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
