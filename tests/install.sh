#!/usr/bin/env bash
# Installs the Debian packages that the build needs, and only those that are missing: install.sh SET...
#   build   compiler, CMake, libraries          tests   GoogleTest, Google Benchmark
#   model   what fetch_model.sh needs           checks  clang with its sanitizers, fuzzer and linker, clang-format, clang-tidy
#   deb     what deb.sh needs                    slurm   what slurm.sh needs
#   page    the browser of page_program_test     documents  the converters of documents, for their tests
#   shells  those whose completion is tested     clients  what clients_python.sh needs
# As root or with sudo. On another system than Debian it names the packages and lets CMake find what is there.
set -euo pipefail

packages=()
for set in "$@"; do
  case "$set" in
    build) packages+=(g++ cmake ninja-build pkg-config libboost-dev libcli11-dev libedit-dev liburing-dev libmimalloc-dev nlohmann-json3-dev
                      libpcre2-dev libssl-dev libutf8proc-dev libxxhash-dev) ;;
    tests) packages+=(libgtest-dev) ;;
    model) python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip); packages+=(ca-certificates) ;;
    checks) packages+=(clang-14 libclang-rt-14-dev lld-14 clang-format-14 clang-tidy-14) ;;
    deb) packages+=(dpkg-dev debootstrap) ;;
    page) packages+=(chromium) ;;
    documents) packages+=(poppler-utils pandoc) ;;
    clients) packages+=(python3-venv ca-certificates) ;;
    shells) packages+=(fish zsh) ;;
    slurm) packages+=(slurm-wlm munge) ;;
    *)
      echo "install.sh: unknown set '$set' (build, tests, model, checks, deb, page, clients, documents, shells, slurm)" >&2
      exit 2
      ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install.sh: no apt-get here; on Debian 12 these would be installed: ${packages[*]}" >&2
  exit 0
fi

installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qx "$package installed" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install.sh: missing packages: ${missing[*]}" >&2
    echo "  Run this as root, or install sudo, or: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing: ${missing[*]}" >&2
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null >&2; }
# An old package list names files that the mirror no longer has, so a failure is tried once more with a new list.
if compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null && apt install -y --no-install-recommends "${missing[@]}"; then
  exit 0
fi
apt update
apt install -y --no-install-recommends "${missing[@]}"
