#!/usr/bin/env bash
# The smoke module with Bazel 7 and bzlmod: opt-in, since no package of Bazel 7 fits the release of Debian that CI runs on.
#
#     [PYTHON=.venv/bin/python] tests/bazel7.sh [FOLDER]
#
# Makes a Debian sid with bazel-bootstrap in FOLDER (a temporary one when left out; 2 GB, kept when it
# was named, so that a second run takes seconds to start) and there, with the environment of PYTHON, in which this
# checkout is installed: analysis tests, a build of everything on real EPs, the tests against the CPU EP, and a second
# output base that gets all of it from the disk cache. Needs root, debootstrap and bubblewrap. Modules come from the
# copies of Debian and not from a registry.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
# The environment as it is here, an editable checkout too.
binds=()
while read -r path; do
  binds+=(--ro-bind "$path" "$path")
done < <("$python" -I -c 'import os, sys
print(*sorted({sys.prefix, sys.base_prefix, *filter(os.path.isdir, sys.path)}), sep="\n")')
if [ $# -gt 0 ]; then
  folder=$(realpath -m "$1")
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
root=$folder/sid

# bwrap and not chroot: Bazel's sandbox needs a root that is a mount.
inside() {
  bwrap --bind "$root" / --dev /dev --proc /proc --ro-bind /sys /sys --tmpfs /tmp --ro-bind /etc/resolv.conf /etc/resolv.conf \
    --setenv HOME /root --setenv PATH /usr/sbin:/usr/bin:/sbin:/bin --setenv DEBIAN_FRONTEND noninteractive \
    "${binds[@]}" \
    --unsetenv PYTHONPATH --die-with-parent "$@"
}

if [ ! -e "$root/usr/bin/bazel" ]; then
  mkdir -p "$root"
  debootstrap --variant=minbase sid "$root" > "$folder/debootstrap.log" || { tail -n 20 "$folder/debootstrap.log" >&2; exit 1; }
  # By apt and not by debootstrap, which does not resolve virtual packages. A mirror's copy of sid may be some days old.
  echo 'Acquire::Check-Valid-Until "false"; APT::Sandbox::User "root";' > "$root/etc/apt/apt.conf.d/10local"
  inside apt-get update -qq
  inside apt-get install -y -qq --no-install-recommends bazel-bootstrap bazel-skylib bazel-platforms libffi8 \
    > "$folder/apt.log"
fi
rm -rf "$root/work" "$root/cache" "$root/stubs"
mkdir -p "$root/work" "$root/cache"
# Modules that Bazel's own tools name.
for name in apple_support buildozer protobuf rules_python zlib; do
  mkdir -p "$root/stubs/$name"
  echo "module(name = \"$name\")" > "$root/stubs/$name/MODULE.bazel"
  touch "$root/stubs/$name/BUILD.bazel"
done
# Bazel's own packages load these; nothing of ours is a Python target.
mkdir -p "$root/stubs/rules_python/python"
touch "$root/stubs/rules_python/python/BUILD.bazel"
cat > "$root/stubs/rules_python/python/defs.bzl" << 'STUB'
py_binary = native.py_binary
py_library = native.py_library
py_test = native.py_test

def py_runtime_pair(name, **_kwargs):
    native.filegroup(name = name)
STUB
cp -r rules "$root/work/"

in_module() { # FOLDER BASE COMMAND ARGUMENT ...
  local module=$1 base=$2 command=$3
  shift 3
  local share=/usr/share/bazel overrides=()
  for pair in rules_cc=$share/rules/cc rules_java=$share/rules/java rules_license=$share/rules/license \
    rules_proto=$share/rules/proto bazel_features=$share/tools/features bazel_skylib=$share/tools/skylib \
    platforms=$share/tools/platforms apple_support=/stubs/apple_support buildozer=/stubs/buildozer \
    protobuf=/stubs/protobuf rules_python=/stubs/rules_python zlib=/stubs/zlib; do
    overrides+=("--override_module=$pair")
  done
  echo "== $module: $command $*"
  (cd "$module" && bazel --output_base="/cache/$base" --max_idle_secs=60 "$command" \
    "${overrides[@]}" --registry=file:///stubs --lockfile_mode=off --noenable_workspace --color=no --noshow_progress \
    "--repo_env=EPCTX_BAZEL_PYTHON=$PYTHON" --spawn_strategy=processwrapper-sandbox,local --nobuild_runfile_links "$@")
}

everything() {
  bazel --version
  in_module /work/rules rules test //tests/...
  in_module /work/rules/e2e/smoke one build //... --disk_cache=/cache/disk
  in_module /work/rules/e2e/smoke one test //:vision_tests --disk_cache=/cache/disk
  in_module /work/rules/e2e/smoke two build //:package //:wheel //:pair --disk_cache=/cache/disk 2>&1 | tee /cache/two.log
  grep -q ' 9 disk cache hit' /cache/two.log # every action, and none compiled
}

# In one call and with its own process tree: servers must share a root, and end with it.
inside --unshare-pid --setenv PYTHON "$python" bash -euo pipefail -c "$(declare -f in_module everything); everything"
echo "passed: Bazel 7 with bzlmod"
