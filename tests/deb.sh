#!/usr/bin/env bash
# Builds the .deb without CUDA, installs it in a clean Debian 12 and runs it there: bash tests/deb.sh, as root.
# By hand or at night: the build takes minutes. The packages come from where this machine's apt has its own, and the
# model is that of fetch_model.sh. HEADRACE_ROOT: a folder for the Debian, which is removed afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tests/install.sh build model deb
model=$(bash tests/fetch_model.sh)

cmake -S . -B build/deb -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEADRACE_CUDA=OFF \
  -DHEADRACE_TESTS=OFF -DHEADRACE_BENCH=OFF
cmake --build build/deb
rm -f build/deb/*.deb
(cd build/deb && cpack -G DEB)
deb=$(echo build/deb/*.deb)
dpkg-deb --info "$deb"
dpkg-deb --contents "$deb"

root=${HEADRACE_ROOT:-$(mktemp -d)}
mkdir -p "$root" && chmod 755 "$root"  # apt downloads as a user of its own, who must be able to read it
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Codename: bookworm' | head -1)
[ -n "$mirror" ] || { echo "deb.sh: this machine's apt has no source of Debian 12 (bookworm)" >&2; exit 1; }
echo "== A clean Debian 12 ($SECONDS s)"
debootstrap --variant=minbase bookworm "$root" "$mirror" >"build/deb/debootstrap.log" ||
  { tail -5 build/deb/debootstrap.log >&2; exit 1; }
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"  # which the program reads memory and cores from
cp "$deb" "$root/tmp/headrace.deb"
cp "$model" "$root/tmp/model.gguf"

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
echo "== Installing ($SECONDS s)"
inside apt-get -q update
inside apt-get -q install -y --no-install-recommends /tmp/headrace.deb
echo "== Running ($SECONDS s)"
inside headrace --version
# The quick start's command (cli/quickstart.sh): a document that every Debian has.
text=$(inside headrace summarize /usr/share/common-licenses/GPL-3 -m /tmp/model.gguf --host-mem 2GiB)
echo "$text"
grep -qi license <<<"$text" || { echo "deb.sh: the summary of the GPL-3 does not name a license" >&2; exit 1; }
for file in /usr/bin/headrace /usr/share/man/man1/headrace.1 /usr/share/man/man1/headrace-cache-list.1 \
  /usr/share/bash-completion/completions/headrace /usr/share/zsh/vendor-completions/_headrace \
  /usr/share/fish/vendor_completions.d/headrace.fish \
  /usr/share/doc/headrace/README.md /usr/share/doc/headrace/LICENSE /usr/share/doc/headrace/docs/manual.md; do
  [ -s "$root$file" ] || { echo "deb.sh: the package has no $file" >&2; exit 1; }
done
inside apt-get -q remove -y headrace
[ ! -e "$root/usr/bin/headrace" ]
echo "The .deb installs and runs in a clean Debian 12. Took $SECONDS s."
