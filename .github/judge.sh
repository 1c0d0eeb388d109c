#!/usr/bin/env bash
# The steps of action.yml: installs the halfstep that lies beside it into an environment of its own, judges, and writes
# the result as Markdown to the job's summary. Exits as `halfstep judge` does: 1 where the gate does not pass.
#
#   JUDGE="train:build --speed-only --minutes 2" BASE=before GATE=not_slower THEIR_PYTHON=python3 .github/judge.sh
#
# RUNNER_TEMP is where the environment is made; GITHUB_STEP_SUMMARY is a file, or the terminal where it is not set.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
here=$(pwd)
venv="${RUNNER_TEMP:-/tmp}/halfstep-venv"
their_python=$(command -v "${THEIR_PYTHON:-python3}")
base=${BASE:-}
mapfile -t judge < <(xargs printf '%s\n' <<<"${JUDGE:?names what is judged, such as train.py}")  # quotes work

if [[ ! -x "${venv}/bin/halfstep" ]]; then
  python3 -m venv "${venv}"
  "${venv}/bin/pip" install --quiet --constraint "${root}/requirements.txt" "${root}"
fi

options=(--python "${their_python}" --set "compare.gate=${GATE:-not_slower}")
if [[ -n "${base}" ]]; then
  options+=(--variants base,branch)
  options+=(--set variants.base.policy=float32 --set "variants.base.task_path=$(cd "${base}" && pwd)")
  options+=(--set variants.branch.policy=float32 --set "serve.formats=[]")  # which are not what differs
fi

status=0
"${venv}/bin/halfstep" judge "${judge[@]}" "${options[@]}" || status=$?
if [[ -s "${here}/.halfstep/report.html" ]]; then
  "${venv}/bin/halfstep" report --markdown >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
fi
exit "${status}"
