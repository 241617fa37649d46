# What a newcomer types: `make demo` to see a job run, `make test` to check everything. Both set up what they need.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo test lint bench shape fuzz docs screenshots kubernetes system-packages clean

demo: $(READY)
	$(VENV)/bin/mslaunch train --workers 2 --config examples/data_parallel/config.yaml

# Compiled first, since many environments forbid Python to do it by the way. Three at a time, since many tests wait.
test: $(READY) system-packages lint
	$(VENV)/bin/python -m compileall -q mslaunch
	$(VENV)/bin/pytest -n 3 --dist worksteal

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(READY) .venv-torch/.ready
	$(VENV)/bin/python -m bench

# How the tree looks from a distance, and what one launch walks through.
shape: $(READY)
	$(VENV)/bin/python -m tools.shape

# Hostile inputs at every border: CASES=n, BORDER=name, SEED=n, CASE=n for a single one.
fuzz: $(READY)
	$(VENV)/bin/python -m fuzz $(if $(CASES),--cases $(CASES)) $(if $(BORDER),--border $(BORDER)) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE))

# The documentation as a site: site/index.html.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The pictures of the documentation, from a real run.
screenshots: $(READY)
	$(VENV)/bin/python -m tools.screenshots

# Kubernetes for the tests, control plane and kubelet, from Debian's sources: ten minutes once. Without it those tests are skipped.
kubernetes:
	tools/kubernetes/build.sh

# torchrun, to measure beside: in an environment of its own, since MindSpore wants an older NumPy.
.venv-torch/.ready:
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/pip install --quiet "torch==2.13.0" numpy
	touch .venv-torch/.ready

# Real Open MPI, sshd, network namespaces, Slurm, tmux, Chromium and Prometheus for the tests. Without root or apt those tests are skipped, and pytest says so.
system-packages:
	@if command -v mpirun >/dev/null && command -v srun >/dev/null && [ -x /usr/sbin/sshd ] && [ -x /usr/sbin/ip ] && [ -x /usr/sbin/slurmctld ] && command -v tmux >/dev/null && command -v chromium >/dev/null && command -v prometheus >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openmpi-bin openssh-server iproute2 slurm-wlm munge tmux chromium prometheus >/dev/null; \
	else echo "mpirun, sshd, ip, Slurm, tmux, Chromium or Prometheus is not here and cannot be installed: the tests that need it will be skipped"; fi

$(READY): pyproject.toml
	@echo "Installing into $(VENV): MindSpore is large, this takes some minutes once."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --editable ".[mindspore,ui,dev,docs]"
	touch $(READY)

clean:
	rm -rf $(VENV) .venv-torch .mypy_cache .ruff_cache build dist site fuzz-findings
