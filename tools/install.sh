#!/usr/bin/env bash
# Makes the virtual environment: install.sh PYTHON FOLDER
set -euo pipefail
python=$1 venv=$2
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "jaxrl needs Python 3.11 or newer; $python is $("$python" --version)" >&2
    exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
# Tested versions where we have them for this Python, else the newest that fit.
constraints="constraints-$version.txt"
[ -f "$constraints" ] && pip+=(--constraint "$constraints")
echo "installing into $venv (Python $version), a few minutes the first time"
if ! "${pip[@]}" --editable '.[plot,tasks,dev]'; then
    echo "reasoning-gym did not install (it needs a C compiler): going on without it"
    "${pip[@]}" --editable '.[plot,dev]'
fi
