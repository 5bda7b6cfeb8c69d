#!/bin/sh
# Makes sure of what pip cannot bring: a C++20 compiler, Python's headers and its venv module.
# As root on Debian or Ubuntu it installs what is missing; anybody else gets one line that says what to install.
# usage: system_packages.sh PYTHON [vulkan]
# With "vulkan" also what compiling for and running on a software Vulkan device needs.
set -eu
python=$1

if ! command -v "$python" >/dev/null 2>&1; then
    missing=" python3 python3-dev python3-venv"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: stratad needs Python 3.11 or newer; $python is $("$python" -c 'import platform; print(platform.python_version())')." \
         "Name another one: make PYTHON=python3.12 ..." >&2
    exit 1
else
    missing=""
    "$python" -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
    "$python" -c 'import pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())' || missing="$missing python3-dev"
fi
command -v c++ >/dev/null 2>&1 || missing="$missing g++"
command -v cc >/dev/null 2>&1 || missing="$missing gcc"
if [ "${2:-}" = vulkan ]; then
    [ -e /usr/include/vulkan/vulkan.hpp ] || missing="$missing libvulkan-dev"
    command -v glslc >/dev/null 2>&1 || missing="$missing glslc"
    [ -d /usr/share/cmake/SPIRV-Headers ] || [ -d /usr/lib/cmake/SPIRV-Headers ] || missing="$missing spirv-headers"
    ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1 || missing="$missing mesa-vulkan-drivers"
fi
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing system packages:$missing"
    apt-get update -qq
    # shellcheck disable=SC2086  # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "error: missing system packages; run: sudo apt-get install$missing" >&2
    exit 1
fi
